# SPDX-License-Identifier: Apache-2.0
"""The studies' small forms: what they claim is in what they measured, and can be wrong."""
import json
import math
import os
import tempfile
import unittest

from program import MPIEXEC, record, run


def claims(found, kind):
    return {claim["claim"]: claim["holds"] for claim in found["result"]["claims"] if claim["kind"] == kind}


class Study(unittest.TestCase):
    def check(self, found, equalities):
        self.assertTrue(found["verification"]["passed"])
        self.assertTrue(found["parameters"]["quick"])
        holds = claims(found, "equality")
        self.assertGreaterEqual(len(holds), equalities)
        self.assertEqual([claim for claim, held in holds.items() if not held], [])


class Batch(Study):
    @classmethod
    def setUpClass(cls):
        cls.found = record("study", "batch", "--quick", "--threads", 1, timeout=300)
        cls.summary = {(row["devices"], row["rule"]): row for row in cls.found["result"]["summary"]}

    def test_k_is_the_size_of_the_minibatch(self):
        self.check(self.found, 1)
        for run_ in self.found["result"]["runs"]:
            self.assertEqual(run_["batch"], 32 * run_["devices"])
            self.assertEqual(run_["steps"], 6 * math.ceil(4000 / run_["batch"]))
            scale = {"any": 1, "kept": 1, "sqrt": math.sqrt(run_["devices"])}.get(run_["rule"], run_["devices"])
            self.assertAlmostEqual(run_["scaled_lr"], run_["lr"] * scale)

    def test_runs_are_those_of_train(self):
        run_ = next(run_ for run_ in self.found["result"]["runs"] if (run_["devices"], run_["rule"], run_["seed"]) == (2, "warmup", 2))
        train = record("train", "--data", "synthetic", "--train-images", 4000, "--test-images", 1000, "--epochs", 6, "--devices", 2, "--batch", 64,
                       "--base-batch", 32, "--lr", 0.2, "--lr-rule", "linear", "--warmup-epochs", 1, "--seed", 2)["result"]
        self.assertEqual(run_["parameters_sha256"], train["parameters_sha256"])
        self.assertEqual(run_["test_accuracy"], [epoch["test_accuracy"] for epoch in train["epochs"]])

    def test_published_shape(self):
        one, kept, linear = self.summary[1, "any"], self.summary[2, "kept"], self.summary[2, "linear"]
        self.assertEqual(one["trained"], one["runs"])
        rank = lambda row: (row["trained"], row["last_three"])
        self.assertLess(rank(kept), rank(one))
        self.assertLess(rank(kept), rank(linear))
        self.assertEqual([claim for claim, held in claims(self.found, "order").items() if not held], [])

    def test_runs_that_did_not_learn_are_marked_and_not_averaged_in(self):
        self.check_means(self.found)
        # Of these seeds some learn in six short epochs, others do not.
        mixed = record("study", "batch", "--quick", "--devices", 1, "--seeds", 4, "--train-images", 1500, "--test-images", 200)
        self.check_means(mixed)
        self.assertEqual({run_["end"] for run_ in mixed["result"]["runs"]}, {"trained", "plateau"})

    def check_means(self, found):
        for row in found["result"]["summary"]:
            runs = [run_ for run_ in found["result"]["runs"] if (run_["devices"], run_["rule"]) == (row["devices"], row["rule"])]
            trained = [run_ for run_ in runs if run_["end"] == "trained"]
            self.assertEqual((row["runs"], row["trained"]), (len(runs), len(trained)))
            for run_ in runs:
                self.assertEqual(run_["end"] == "plateau", run_["train_loss"][-1] > 0.99 * math.log(10))
            for epoch, mean in enumerate(row["mean"]):
                self.assertAlmostEqual(mean, sum(run_["test_accuracy"][epoch] for run_ in trained) / len(trained))

    def test_a_rate_that_is_too_high_is_marked(self):
        found = record("study", "batch", "--quick", "--devices", 1, "--lr", "1e5", "--seeds", 1, "--epochs", 1, "--train-images", 1000)
        self.assertNotEqual(found["result"]["runs"][0]["end"], "trained")
        self.assertIsNone(found["result"]["best"][0]["rule"])


class Allreduce(Study):
    def check_bytes(self, found):
        k, n = found["parameters"]["devices"], 129068
        busiest = {(row["algorithm"], row["calls"]): row["busiest_bytes"] for row in found["result"]["methods"]}
        self.assertEqual(busiest["naive", 1], 4 * (k - 1) * n)
        self.assertEqual(busiest["naive", 8], 4 * (k - 1) * n)
        self.assertAlmostEqual(busiest["ring", 1] / (8 * (k - 1) / k * n), 1, places=3)
        self.assertAlmostEqual(busiest["direct", 1] / (8 * (k - 1) / k * n), 1, places=3)
        # W1, W3 and so on belong to device 0, which takes in k - 1 of each and one sum of each of the others.
        owned = {2: 180 + 25000 + 102400 + 1280, 4: 180 + 102400}[k]
        received, sent = (k - 1) * owned + n - owned, (k - 1) * owned + n - owned
        self.assertEqual(busiest["owners", 1], 4 * max(received, sent))

    def test_in_process(self):
        found = record("study", "allreduce", "--quick")
        self.check(found, 9 + 3)
        self.check_bytes(found)
        network = {(row["algorithm"], row["calls"]): row["network_s"] for row in found["result"]["methods"]}
        self.assertGreater(network["naive", 1], network["owners", 1])
        self.assertGreater(network["owners", 1], network["direct", 1])
        for algorithm in ("naive", "tree", "ring", "direct"):
            self.assertGreater(network[algorithm, 8], network[algorithm, 1])
        for row, milliseconds in zip(found["result"]["book"], (60, 80, 15, 5.185)):
            self.assertAlmostEqual(row["predicted_s"] * 1e3, milliseconds, places=3)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_processes(self):
        found = record("study", "allreduce", "--quick", "--devices", 1, ranks=2)
        self.check(found, 9 + 3)
        self.check_bytes(found)


class Accuracy(Study):
    def check_counts(self, found, *options, **how):
        test = 1001
        for row in found["result"]["rows"]:
            k = row["devices"]
            self.assertEqual(row["whole"], {"correct": found["result"]["correct"], "images": test, "accuracy": found["result"]["correct"] / test})
            for padded, unit in ((row["padded_to_devices"], k), (row["padded_to_minibatches"], 32 * k)):
                self.assertEqual(padded["images"], math.ceil(test / unit) * unit)
                # No more and no fewer correct ones than the images counted twice allow.
                more = padded["correct"] - found["result"]["correct"]
                self.assertTrue(0 <= more <= padded["images"] - test)
        wide = next(row for row in found["result"]["rows"] if row["devices"] >= 7)["padded_to_minibatches"]
        # Those counted twice are the first ones.
        first = record("study", "accuracy", "--quick", *options, "--test-images", wide["images"] - test, "--devices", 1, **how)["result"]["correct"]
        self.assertEqual(wide["correct"], found["result"]["correct"] + first)
        self.assertNotEqual(wide["accuracy"], found["result"]["correct"] / test)

    def test_in_process(self):
        found = record("study", "accuracy", "--quick", "--threads", 1)
        self.check(found, 4)
        self.assertGreater(found["result"]["correct"], 300)  # of 1001: has learned
        self.check_counts(found, "--threads", 1)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_processes(self):
        found = record("study", "accuracy", "--quick", "--devices", "1,4", "--steps", 20, ranks=2)
        self.assertEqual([row["devices"] for row in found["result"]["rows"]], [2, 8])
        self.check_counts(found, "--steps", 20, ranks=2)


class Unequal(Study):
    def check_rows(self, found):
        equal, slow = found["result"]["rows"]
        self.assertEqual((equal["slower"], slow["slower"]), (1, 8))
        self.assertEqual(equal["parameters_sha256"], slow["parameters_sha256"])
        shares = [int(share) for share in slow["shards"].split(":")]
        self.assertEqual(sum(shares), 16)
        self.assertGreater(shares[0], shares[1])
        self.assertLess(slow["weighted_s"], slow["equal_s"])
        self.assertLess(slow["left_out_s"], slow["equal_s"])
        self.assertGreater(equal["left_out_s"], equal["equal_s"])
        self.assertLess(slow["predicted_weighted_s"], slow["predicted_equal_s"])
        self.assertLess(slow["predicted_left_out_s"], slow["predicted_equal_s"])

    def test_in_process(self):
        found = record("study", "unequal", "--quick", "--threads", 1)
        self.check(found, 2)
        self.check_rows(found)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_processes(self):
        found = record("study", "unequal", "--quick", "--devices", 1, "--threads", 1, "--weights", "4,1", ranks=2)
        self.check(found, 2)
        self.check_rows(found)

    def test_one_device_has_nothing_to_share(self):
        done = run("study", "unequal", "--quick", "--devices", 1)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("expected 2 or more", done.stderr)


class Overlap(Study):
    def check_rows(self, found):
        rows = found["result"]["rows"]
        self.assertEqual([(row["buckets"], row["overlap"]) for row in rows], [(1, False), (3, False), (3, True), (8, False), (8, True)])
        self.assertEqual(len({row["parameters_sha256"] for row in rows}), 1)
        for row in rows:
            self.assertGreater(row["communication_s"], 0)
            self.assertGreater(row["predicted_communication_s"], 0)
            if not row["overlap"]:
                self.assertEqual(row["exposed_s"], row["communication_s"])
                self.assertAlmostEqual(row["predicted_exposed_s"], row["predicted_communication_s"])
        for off, on in (rows[1:3], rows[3:5]):
            self.assertLess(on["predicted_exposed_s"], off["predicted_exposed_s"])
            self.assertLessEqual(on["exposed_s"], on["communication_s"])

    def test_in_process(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            found = record("study", "overlap", "--quick", "--threads", 1, "--trace", trace)
            with open(trace) as file:
                self.assertIn("traceEvents", json.load(file))
        self.check(found, 2)
        self.check_rows(found)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_processes(self):
        found = record("study", "overlap", "--quick", "--devices", 1, "--threads", 1, ranks=2)
        self.check(found, 2)
        self.check_rows(found)

    def test_one_device_talks_to_nobody(self):
        done = run("study", "overlap", "--quick", "--devices", 1)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))


class Loss(Study):
    def check_rows(self, found):
        for row in found["result"]["rows"]:
            self.assertEqual(row["parameters_sha256"], found["result"]["parameters_sha256"])
            self.assertNotEqual(row["exit_code"], 0)
            self.assertGreaterEqual(row["checkpoint_step"], 100)
            self.assertLess(row["checkpoint_step"], 300)
            self.assertAlmostEqual(row["lost_s"], row["first_s"] + row["second_s"] - found["result"]["undisturbed_s"])

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_ranks(self):
        found = record("study", "loss", "--quick", "--launcher", " ".join(MPIEXEC))
        self.check(found, 7)
        self.check_rows(found)
        self.assertEqual([row["how"] for row in found["result"]["rows"]], ["killed", "stopped"])
        stopped = found["result"]["rows"][1]
        self.assertRegex(stopped["message"], "rank 1 .* of training step [12][0-9][0-9]")
        self.assertGreater(stopped["until_end_s"], 1.5)  # the deadline, less what had passed already

    def test_without_a_launcher(self):
        # Isolated: a single program of Open MPI 4 would look for ssh on the path.
        done = run("study", "loss", "--quick", environment={"PATH": "/nowhere", "OMPI_MCA_ess_singleton_isolated": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("no launcher found"), 1)
        self.assertIn("VERIFICATION: PASSED", done.stdout)

    def test_a_launcher_that_is_not_there(self):
        done = run("study", "loss", "--quick", "--launcher", "nowhere -n")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (4, 1), done.stderr)
        self.assertIn("nowhere", done.stderr)

    def test_a_launcher_that_numbers_no_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            launcher, numbers = os.path.join(folder, "launcher"), os.path.join(folder, "numbers")
            with open(launcher, "w") as file:
                file.write(f'#!/bin/sh\nshift\necho $$ >> {numbers}\nexec "$@"\n')
            os.chmod(launcher, 0o755)
            done = run("study", "loss", "--quick", "--launcher", launcher)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (4, 1), done.stderr)
            self.assertIn("rank 1 was not found", done.stderr)
            with open(numbers) as file:
                started = file.read().split()
        self.assertEqual(len(started), 2)
        self.assertFalse([pid for pid in started if os.path.exists(f"/proc/{pid}")])


class Names(unittest.TestCase):
    def test_studies_are_listed(self):
        for arguments, word in ((["study"], "alone"), (["study", "nothing"], "'nothing'")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
            for text in (word, "batch", "allreduce", "accuracy", "unequal", "overlap", "loss"):
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
