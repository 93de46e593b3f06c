# SPDX-License-Identifier: Apache-2.0
import os
import re
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

import program

CHECKS = ["reference", "layers", "network", "differences", "schedules", "collectives", "traffic", "training", "devices", "float",
          "replicas", "repeat", "samples", "evaluation", "not-finite"]


def lines_of(output):
    """check -> ok or FAILED, in the order of the lines."""
    return {match[1]: match[2] for match in re.finditer(r"^(\S+) +(ok|FAILED) +[\d.]+ ", output, re.MULTILINE)}


class Verify(unittest.TestCase):
    def test_quick_runs_all_checks_in_their_order(self):
        done = program.run("verify", "--quick")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(list(lines_of(done.stdout)), CHECKS)
        self.assertIn("world : 1 process x 2, 3, 5, 8 devices\n", done.stdout)
        self.assertIn("15 of 15 checks passed", done.stdout)
        self.assertTrue(done.stdout.endswith("VERIFICATION: PASSED\n"), done.stdout)

    def test_help_names_the_checks(self):
        done = program.run("verify", "--help")
        self.assertEqual(done.returncode, 0)
        for name in CHECKS:
            self.assertIn(name + ":", done.stdout)

    def test_only(self):
        done = program.run("verify", "--quick", "--only", "traffic", "--only", "schedules,repeat")
        self.assertEqual(list(lines_of(done.stdout)), ["schedules", "traffic", "repeat"], done.stdout)

    def test_records(self):
        with tempfile.TemporaryDirectory() as folder:
            junit = os.path.join(folder, "junit.xml")
            record = program.record("verify", "--quick", "--only", "schedules,samples", "--junit", junit)
            self.assertEqual(record["schema"], "lockstep/1")
            self.assertEqual(record["subcommand"], "verify")
            self.assertIs(record["verification"]["passed"], True)
            self.assertEqual([result["name"] for result in record["verification"]["results"]], ["schedules", "samples"])
            suite = ElementTree.parse(junit).getroot().find("testsuite")
            self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "0"))
            again = program.run("verify", "--quick", "--only", "schedules", "--junit", junit)
            self.assertEqual(again.returncode, 2)
            self.assertIn("the file exists", again.stderr)

    def test_a_planted_fault_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            junit = os.path.join(folder, "junit.xml")
            done = program.run("verify", "--quick", "--plant", "broadcast not written back", "--only", "reference,replicas,evaluation",
                               "--junit", junit, environment={"OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertTrue(done.stdout.endswith("VERIFICATION: FAILED\n"))
            self.assertEqual(lines_of(done.stdout), {"reference": "ok", "replicas": "FAILED", "evaluation": "ok"})
            self.assertRegex(done.stdout, r"replicas .*k = 8, naive, step 1: ")
            suite = ElementTree.parse(junit).getroot().find("testsuite")
            self.assertEqual((suite.get("tests"), suite.get("failures")), ("3", "1"))

    def test_faults_are_all_caught(self):
        record = program.record("verify", "--faults", environment={"OMP_NUM_THREADS": "1"})
        self.assertGreaterEqual(len(record["faults"]), 20)
        for fault in record["faults"]:
            self.assertTrue(fault["caught"], fault["name"])
        self.assertIn("rows summed in float first", record["switched_off"]["devices"])

    def test_a_switched_off_check_lets_a_fault_through(self):
        done = program.run("verify", "--faults", "--only", "network,training,samples", environment={"OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"rows summed in float first +NOBODY")
        self.assertRegex(done.stdout, r"nominal batch length +training")

    def test_bad_options(self):
        for arguments, words in [(["--only", "nothing"], "expected one of reference, layers"),
                                 (["--plant", "a tree"], "expected one of: broadcast not written back"),
                                 (["--devices", "-1"], "--devices -1"), (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json: cannot be written: No such file")]:
            done = program.run("verify", *arguments)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(words, done.stderr)

    @unittest.skipUnless(program.MPIEXEC, "built without MPI")
    def test_real_ranks(self):
        done = program.run("verify", "--quick", ranks=2, environment={"OMP_NUM_THREADS": "1"}, timeout=600)  # a crowded machine
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(list(lines_of(done.stdout)), CHECKS)
        self.assertEqual(done.stdout.count("VERIFICATION: PASSED"), 1)
        refused = program.run("verify", "--faults", ranks=2)
        self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)


if __name__ == "__main__":
    unittest.main()
