# SPDX-License-Identifier: Apache-2.0
from benchpark.directives import variant
from benchpark.experiment import Experiment
from benchpark.programming_model import ProgrammingModel, ProgrammingModelType
from benchpark.scaling import Scaling, ScalingMode


class Lockstep(
    Experiment,
    ProgrammingModel(ProgrammingModelType.Mpionly, ProgrammingModelType.Cuda, ProgrammingModelType.Rocm),
    Scaling(ScalingMode.Strong, ScalingMode.Weak),
):
    variant("workload", default="train", values=("train", "verify"), description="train, or the program's own checks")
    variant("version", default="main", values=("main", "latest"), description="Lockstep's version")

    def compute_applications_section(self):
        self.add_experiment_variable("resource_count", 1, False)
        if self.spec.satisfies("workload=train"):
            self.add_experiment_variable("epochs", 2, False)
            self.add_experiment_variable("batch", 256, True)
        self.add_experiment_variable("devices", 1, False)
        self.set_required_variables(
            n_resources="{resource_count}",
            process_problem_size="{batch} / {n_resources}",
            total_problem_size="{batch}",
        )
        # The minibatch is of all ranks together: it stays for strong scaling, and grows with them for weak.
        more_ranks = lambda var, itr, dim, scaling_factor: var.val(dim) * scaling_factor
        same = lambda var, itr, dim, scaling_factor: var.val(dim)
        self.register_scaling_config(
            {
                ScalingMode.Strong: {"resource_count": more_ranks, "batch": same},
                ScalingMode.Weak: {"resource_count": more_ranks, "batch": more_ranks},
            }
        )
        gpus = self.spec.satisfies("+cuda") or self.spec.satisfies("+rocm")
        self.add_experiment_variable("n_gpus" if gpus else "n_ranks", "{n_resources}", True)

    def compute_package_section(self):
        self.add_package_spec(self.name, [f"lockstep{self.determine_version()} +mpi"])
