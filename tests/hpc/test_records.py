# SPDX-License-Identifier: Apache-2.0
"""Every subcommand's JSON record keeps to docs/record.schema.json; a name that exists is not overwritten."""
import copy
import json
import os
import re
import tempfile
import unittest

import jsonschema
from program import MPIEXEC, record, run

SOURCE = os.environ["LOCKSTEP_SOURCE"]
with open(os.path.join(SOURCE, "docs", "record.schema.json")) as file:
    SCHEMA = json.load(file)
CHECKER = jsonschema.Draft202012Validator(SCHEMA)
TRAIN = ["train", "--data", "synthetic", "--train-images", 300, "--test-images", 20, "--epochs", 1]
COMMANDS = {"train": TRAIN, "bench": ["bench", "kernels", "--samples", 1], "info": ["info"], "verify": ["verify", "--only", "collectives"],
            "schedule": ["schedule", "--algorithm", "ring", "--ranks", 4, "--elements", 100], "simulate": ["simulate", "--ranks", 8],
            "allreduce": ["allreduce", "--devices", 2, "--min-bytes", 1024, "--max-bytes", 4096, "--iters", 2],
            "study batch": ["study", "batch", "--quick", "--epochs", 1, "--seeds", 1, "--train-images", 300],
            **{f"study {name}": ["study", name, "--quick"] for name in ("allreduce", "accuracy", "unequal", "overlap", "loss")}}


class Records(unittest.TestCase):
    def test_schema_is_one(self):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def check(self, found):
        errors = sorted(CHECKER.iter_errors(found), key=str)
        self.assertEqual([f"{error.json_path}: {error.message}" for error in errors], [])

    def test_every_command(self):
        for name in SCHEMA["properties"]["subcommand"]["enum"]:
            with self.subTest(command=name):
                found = record(*COMMANDS[name])
                self.check(found)
                self.assertEqual(found["subcommand"], name)

    def test_every_command_is_in_the_schema(self):
        known = {re.split("  +", line)[1] for line in run("--help").stdout.split("Commands:\n")[1].splitlines()} - {"man, completion"}
        known = {name if name.startswith("study ") else name.split()[0] for name in known}  # "bench kernels": "bench"
        self.assertLessEqual(known, set(SCHEMA["properties"]["subcommand"]["enum"]))

    def test_options(self):
        for options in (["--timers", "--log-steps", "--devices", 2], ["--reduction", "float", "--fuse", "off", "--steps", 1],
                        ["--devices", 2, "--bucket-bytes", 110000, "--overlap", "on"]):
            self.check(record(*TRAIN, *options))

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_processes(self):
        found = record(*TRAIN, ranks=2)
        self.check(found)
        self.assertEqual(found["parameters"]["processes"], 2)

    def test_environment_is_an_allow_list(self):
        found = record(*TRAIN, environment={"OMP_PLACES": "cores", "SECRET_TOKEN": "undisclosed", "AWS_KEY": "undisclosed"})
        self.assertEqual(found["environment"]["OMP_PLACES"], "cores")
        self.assertNotIn("undisclosed", json.dumps(found))
        self.check(found)

    def test_the_schema_can_refuse(self):
        good = record(*TRAIN)
        for break_it in (lambda r: r.pop("fom"), lambda r: r["result"].pop("steps"), lambda r: r["result"].update(parameters_sha256="x"),
                         lambda r: r["environment"].update(PATH="/"), lambda r: r.update(schema="lockstep/2"),
                         lambda r: r["parameters"].update(batch=0), lambda r: r["result"].pop("communication"), lambda r: r["result"]["epochs"][0].update(test_accuracy=1.5)):
            bad = copy.deepcopy(good)
            break_it(bad)
            self.assertFalse(CHECKER.is_valid(bad))

    def test_never_overwrites(self):
        for name in ("train", "schedule"):
            with self.subTest(command=name), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "record.json")
                with open(path, "w") as file:
                    file.write("mine")
                done = run(*COMMANDS[name], "--json", path)
                self.assertEqual(done.returncode, 2)
                with open(path) as file:
                    self.assertEqual(file.read(), "mine")
                self.assertEqual(run(*COMMANDS[name], "--json", path, "--force").returncode, 0)
                with open(path) as file:
                    self.check(json.load(file))


if __name__ == "__main__":
    unittest.main(verbosity=2)
