# SPDX-License-Identifier: Apache-2.0
"""Job scripts, ReFrame, Ramble and Benchpark: their commands and expressions meet the program as it is."""
import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

from program import LOCKSTEP, MPIEXEC, run

SOURCE = os.environ["LOCKSTEP_SOURCE"]
SMALL = "--data synthetic --train-images 300 --test-images 20 --epochs 2"


def load(path, modules):
    """The Python file, with stand-ins for modules that it imports."""
    saved = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        specification = importlib.util.spec_from_file_location("loaded", path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module
    finally:
        for name, old in saved.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


class Ramble(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.calls = []
        appkit = types.ModuleType("ramble.appkit")
        for name in ("executable", "workload", "workload_variable", "software_spec", "required_package", "figure_of_merit",
                     "figure_of_merit_context", "success_criteria", "tags", "maintainers"):
            setattr(appkit, name, lambda *arguments, _name=name, **options: cls.calls.append((_name, arguments, options)))
        appkit.ExecutableApplication = object
        load(os.path.join(SOURCE, "spack", "ramble", "applications", "lockstep", "application.py"),
             {"ramble": types.ModuleType("ramble"), "ramble.appkit": appkit})
        cls.values = {arguments[0]: options["default"] for name, arguments, options in cls.calls if name == "workload_variable"}
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.output = cls.execute("train").stdout

    @classmethod
    def execute(cls, name):
        template = next(arguments[1] for call, arguments, _ in cls.calls if call == "executable" and arguments[0] == name)
        command = template.format(**{**cls.values, "data": "synthetic", "epochs": "1"}, experiment_run_dir=cls.folder.name).split()
        if command[0] != "lockstep":
            raise AssertionError(command)
        return run(*command[1:], *(["--train-images", 300, "--test-images", 20] if name == "train" else ["--quick", "--only", "layers"]))

    def each(self, name):
        return [(arguments, options) for call, arguments, options in self.calls if call == name]

    def success(self, text):
        """All criteria hold; Ramble wants one of match and anti_match in each."""
        lines, verdicts = text.splitlines(), []
        for _, options in self.each("success_criteria"):
            (kind,) = {"match", "anti_match"} & set(options)
            found = any(re.search(options[kind], line) for line in lines)
            verdicts.append(found == (kind == "match"))
        self.assertGreater(len(verdicts), 1)
        return all(verdicts)

    def test_figures_of_merit(self):
        found = {}
        for (name,), options in self.each("figure_of_merit"):
            self.assertNotIn("{", options["fom_regex"], "Ramble would expand it")
            if name == "Checks passed":  # of the other workload
                continue
            matches = [match for line in self.output.splitlines() if (match := re.search(options["fom_regex"], line))]
            self.assertEqual(len(matches), 1, name)
            found[name] = matches[0][options["group_name"]]
        with open(os.path.join(self.folder.name, "lockstep.json")) as file:
            record = json.load(file)
        self.assertAlmostEqual(float(found["FOM"]), record["fom"]["value"], delta=0.06)
        self.assertEqual(found["Parameters SHA-256"], record["result"]["parameters_sha256"])
        epoch = record["result"]["epochs"][0]
        self.assertAlmostEqual(float(found["Training loss"]), epoch["train_loss"], delta=1e-4)
        self.assertAlmostEqual(float(found["Test accuracy"]), epoch["test_accuracy"], delta=1e-4)
        (_, context), = self.each("figure_of_merit_context")
        self.assertEqual([match["epoch"] for line in self.output.splitlines() if (match := re.search(context["regex"], line))], ["1"])

    def test_success_needs_the_verdict(self):
        self.assertTrue(self.success(self.output))
        self.assertFalse(self.success(self.output.replace("PASSED", "FAILED")))
        self.assertFalse(self.success(self.output + "VERIFICATION: FAILED (x)\n"))
        self.assertFalse(self.success("\n".join(line for line in self.output.splitlines() if "VERIFICATION" not in line)))
        self.assertFalse(self.success(run("--help").stdout))

    def test_verify_workload(self):
        done = self.execute("verify")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(self.success(done.stdout))
        options = next(options for (name,), options in self.each("figure_of_merit") if name == "Checks passed")
        matches = [match for line in done.stdout.splitlines() if (match := re.search(options["fom_regex"], line))]
        self.assertEqual([match[options["group_name"]] for match in matches], ["1"])

    def test_variables_are_declared(self):
        for (_, template), _ in self.each("executable"):
            self.assertLessEqual(set(re.findall(r"{(\w+)}", template)), set(self.values) | {"experiment_run_dir"})


class Benchpark(unittest.TestCase):
    class Experiment:
        chosen = set()

        def __init__(self):
            self.variables, self.packages, self.scaling = {}, [], {}
            self.name = "lockstep"
            self.spec = types.SimpleNamespace(satisfies=lambda text: text in self.chosen)

        def add_experiment_variable(self, name, value, *_):
            self.variables[name] = value

        def set_required_variables(self, **values):
            self.required = values

        def register_scaling_config(self, config):
            self.scaling = config

        def determine_version(self):
            return "@main"

        def add_package_spec(self, _, specs):
            self.packages += specs

    def experiment(self, *chosen):
        modules = {}
        for name, members in (("benchpark", {}), ("benchpark.directives", {"variant": lambda *_, **__: None}),
                              ("benchpark.experiment", {"Experiment": self.Experiment}),
                              ("benchpark.programming_model", {"ProgrammingModel": lambda *kinds: type("Model", (), {}),
                                                               "ProgrammingModelType": types.SimpleNamespace(Mpionly=0, Cuda=1, Rocm=2)}),
                              ("benchpark.scaling", {"Scaling": lambda *modes: type("Modes", (), {}),
                                                     "ScalingMode": types.SimpleNamespace(Strong="strong", Weak="weak")})):
            modules[name] = types.ModuleType(name)
            vars(modules[name]).update(members)
        found = load(os.path.join(SOURCE, "spack", "benchpark", "experiments", "lockstep", "experiment.py"), modules).Lockstep()
        found.chosen = set(chosen)
        found.compute_applications_section()
        found.compute_package_section()
        return found

    def test_scaling(self):
        found = self.experiment("workload=train")
        value = types.SimpleNamespace(val=lambda dim: 256)
        self.assertEqual({mode: {name: scale(value, 0, None, 2) for name, scale in config.items()} for mode, config in found.scaling.items()},
                         {"strong": {"resource_count": 512, "batch": 256}, "weak": {"resource_count": 512, "batch": 512}})
        self.assertEqual(found.packages, ["lockstep@main +mpi"])
        self.assertIn("n_ranks", found.variables)
        self.assertIn("n_gpus", self.experiment("workload=train", "+cuda").variables)

    def test_variables_are_the_applications(self):
        with open(os.path.join(SOURCE, "spack", "ramble", "applications", "lockstep", "application.py")) as file:
            known = set(re.findall(r'workload_variable\("(\w+)"', file.read()))
        self.assertLessEqual(set(self.experiment("workload=train").variables) - {"resource_count", "n_ranks"}, known)


@unittest.skipUnless(MPIEXEC, "built without MPI")
class ReFrame(unittest.TestCase):
    def reframe(self, *arguments, program=LOCKSTEP):
        with tempfile.TemporaryDirectory() as folder:
            reframe = os.path.join(os.path.dirname(sys.executable), "reframe")
            report = os.path.join(folder, "report.json")
            environment = {**os.environ, "TMPDIR": folder, "PATH": os.path.dirname(MPIEXEC[0]) + ":" + os.environ["PATH"]}
            done = subprocess.run([reframe, "-C", os.path.join(SOURCE, "scripts", "reframe", "settings.py"), "-c",
                                   os.path.join(SOURCE, "scripts", "reframe", "lockstep.py"), "--prefix", folder, "--report-file", report,
                                   "-S", "program=" + program, "-S", "arguments=" + SMALL, *arguments], capture_output=True, text=True,
                                  timeout=300, cwd=folder, env=environment)
            found = None
            if os.path.exists(report):
                with open(report) as file:
                    found = json.load(file)
            return done, found

    def test_runs_on_this_machine(self):
        done, report = self.reframe("-r", "-n", "LockstepTrain%ranks=2%devices=2")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-1000:])
        cases = report["runs"][0]["testcases"]
        self.assertEqual([case["result"] for case in cases], ["pass"])
        self.assertIn("rate", json.dumps(cases[0]["perfvalues"]))

    def test_lists_all(self):
        done, _ = self.reframe("-l")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("Found 6 check(s)", done.stdout)

    def test_a_wrong_result_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            liar = os.path.join(folder, "lockstep")
            with open(liar, "w") as file:
                file.write("#!/bin/sh\necho 'FOM: 10.0 images/s'\necho 'VERIFICATION: FAILED (x)'\n")
            os.chmod(liar, 0o755)
            done, _ = self.reframe("-r", "-n", "LockstepTrain%ranks=1%devices=1", program=liar)
        self.assertNotEqual(done.returncode, 0)


class JobScripts(unittest.TestCase):
    """With stand-ins for srun and flux that run one process and note what they were asked for."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("srun", "flux"):
            path = os.path.join(self.folder, name)
            with open(path, "w") as file:
                file.write('#!/bin/bash\necho "$0 $*" >>"$LOG"\n[ "$1" != run ] || shift\n'
                           'while [[ $1 == -* ]]; do [ "$1" != -o ] || shift; shift; done\nexec "$@"\n')
            os.chmod(path, 0o755)

    def script(self, name, *arguments, code=0, **variables):
        log = os.path.join(self.folder, "log")
        done = subprocess.run([os.path.join(SOURCE, "scripts", name), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, env={**os.environ, "PATH": self.folder + ":" + os.environ["PATH"], "LOG": log, **variables})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if not os.path.exists(log):
            return done, []
        with open(log) as file:
            return done, file.read().splitlines()

    SLURM = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "2"}

    def test_slurm(self):
        for name in ("node.sh", "gpus.sh"):
            _, log = self.script("slurm/" + name, "train", *SMALL.split(), **self.SLURM)
            self.assertTrue(os.path.exists(os.path.join(self.folder, "lockstep-7.json")))
            os.remove(os.path.join(self.folder, "lockstep-7.json"))
        self.assertIn("--gpus-per-task=1", log[-1])

    def test_slurm_scaling(self):
        for kind in ("strong", "weak"):
            self.script("slurm/scaling.sh", kind, *SMALL.split(), **self.SLURM)
            batches = []
            for ranks in (1, 2):
                with open(os.path.join(self.folder, f"lockstep-{kind}-7-{ranks}.json")) as file:
                    batches.append(json.load(file)["parameters"]["batch"])
            self.assertEqual(batches, [256, 256] if kind == "strong" else [256, 512])

    def test_flux(self):
        _, log = self.script("flux/gpus.sh", 2, 4, "train", *SMALL.split())
        self.assertIn("--ntasks=8", log[-1])
        self.script("flux/scaling.sh", "strong", 2, *SMALL.split())
        self.assertEqual(len(glob.glob(os.path.join(self.folder, "lockstep-strong-*.json"))), 2)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_mpirun(self):
        done, _ = self.script("mpirun", 2, "train", *SMALL.split(), LAUNCHER=MPIEXEC[0], OMP_NUM_THREADS="1")
        self.assertIn("devices : 2 (2 processes x 1)", done.stdout)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_mpirun_with_more_ranks_than_cores(self):
        """And as whoever runs this, without what ctest tells Open MPI."""
        told = {name: os.environ.pop(name) for name in list(os.environ)
                if "oversubscribe" in os.environ[name] or "oversubscribe" in name or "RUN_AS_ROOT" in name}
        self.addCleanup(os.environ.update, told)
        ranks = os.cpu_count() + 1
        done, _ = self.script("mpirun", ranks, "train", *SMALL.split(), LAUNCHER=MPIEXEC[0])
        self.assertIn(f"devices : {ranks} ({ranks} processes x 1)", done.stdout)

    def test_wrong_arguments(self):
        for name, arguments in (("mpirun", ["many"]), ("slurm/scaling.sh", ["sideways"]), ("flux/gpus.sh", [2]), ("flux/scaling.sh", ["x", 2])):
            done, _ = self.script(name, *arguments, code=2, **self.SLURM)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn("expected", done.stderr)
        self.script("slurm/gpus.sh", code=1, SLURM_JOB_ID="")

    @unittest.skipUnless(shutil.which("shellcheck"), "no shellcheck")
    def test_shellcheck(self):
        scripts = []
        for folder in ("scripts", "scripts/slurm", "scripts/flux", "tests/hpc", ".ci"):
            for path in filter(os.path.isfile, glob.glob(os.path.join(SOURCE, folder, "*"))):
                with open(path, "rb") as file:
                    if file.readline().endswith(b"bash\n"):
                        scripts.append(path)
        self.assertGreater(len(scripts), 6)
        done = subprocess.run(["shellcheck", "--severity=error", *scripts], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
