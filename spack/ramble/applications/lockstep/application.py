# SPDX-License-Identifier: Apache-2.0
from ramble.appkit import *


class Lockstep(ExecutableApplication):
    """Data-parallel training of a small network on k devices, checked against what one device computes"""

    name = "lockstep"
    tags("proxy-app", "machine-learning", "collectives", "mpi", "gpu")

    executable("train", "lockstep train --data {data} --epochs {epochs} --batch {batch} --devices {devices} "
               "--allreduce {algorithm} --json {experiment_run_dir}/lockstep.json --force", use_mpi=True)
    executable("verify", "lockstep verify --devices {devices}", use_mpi=True)
    workload("train", executables=["train"])
    workload("verify", executables=["verify"])

    workload_variable("data", default="auto", description="auto, fashion-mnist, synthetic, or a folder", workloads=["train"])
    workload_variable("epochs", default="10", description="Passes over the training images", workloads=["train"])
    workload_variable("batch", default="256", description="Images a step, of all devices together", workloads=["train"])
    workload_variable("algorithm", default="ring", description="Allreduce algorithm", workloads=["train"])
    workload_variable("devices", default="1", description="Devices of each process", workloads=["train", "verify"])

    software_spec("lockstep", pkg_spec="lockstep", package_manager="spack*")
    required_package("lockstep", package_manager="spack*")

    figure_of_merit("FOM", fom_regex=r"^FOM: (?P<rate>[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?) images/s$", group_name="rate", units="images/s")
    figure_of_merit("Parameters SHA-256", fom_regex=r"^parameters sha256 : (?P<digest>[0-9a-f]+)$", group_name="digest", units="")
    figure_of_merit("Checks passed", fom_regex=r"^(?P<checks>[0-9]+) of [0-9]+ checks passed$", group_name="checks", units="checks")
    figure_of_merit_context("epoch", regex=r"^ +(?P<epoch>[0-9]+) .*\([ ]*[0-9]+/[0-9]+\).*%$", output_format="epoch {epoch}")
    figure_of_merit("Training loss", fom_regex=r"^ +[0-9]+ +(?P<loss>[0-9.]+) .*\([ ]*[0-9]+/[0-9]+\).*%$", group_name="loss", units="",
                    contexts=["epoch"])
    figure_of_merit("Test accuracy", fom_regex=r"^ +[0-9]+ +[0-9.]+ +(?P<accuracy>[0-9.]+) \([ ]*[0-9]+/[0-9]+\).*%$", group_name="accuracy",
                    units="", contexts=["epoch"])

    success_criteria("passed", mode="string", match=r"^VERIFICATION: PASSED\b", file="{experiment_run_dir}/{experiment_name}.out")
    success_criteria("not_failed", mode="string", anti_match=r"^VERIFICATION: FAILED", file="{experiment_run_dir}/{experiment_name}.out")
