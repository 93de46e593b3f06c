# SPDX-License-Identifier: Apache-2.0
import json
import os
import re
import subprocess
import tempfile
import unittest

from program import LOCKSTEP, MPIEXEC, record, run

SMALL = ["train", "--data", "synthetic", "--train-images", 700, "--test-images", 203, "--epochs", 2, "--log-steps"]


def essence(result):
    return [result[key] for key in ("parameters_sha256", "step_losses", "test_correct", "test_count")] + [
        (epoch["train_loss"], epoch["test_correct"]) for epoch in result["epochs"]]


class Placements(unittest.TestCase):
    """k devices, wherever they are, give one device's bits."""

    @classmethod
    def setUpClass(cls):
        cls.one = essence(record(*SMALL)["result"])

    def check(self, *options, **how):
        self.assertEqual(essence(record(*SMALL, *options, **how)["result"]), self.one)

    def test_in_process(self):
        for devices in (2, 3, 5, 8):
            for algorithm in ("naive", "tree", "ring"):
                with self.subTest(devices=devices, algorithm=algorithm):
                    self.check("--devices", devices, "--allreduce", algorithm)

    def test_threads(self):
        for threads in (1, 2, 3):
            self.check("--threads", threads)

    def test_unequal_shares(self):
        for weights in ("3,1", "1,3", "0,1", "1,1", "2,0.5,1"):
            self.check("--devices", weights.count(",") + 1, "--weights", weights)
        self.check("--devices", 2, "--weights", "3,1", "--bucket-bytes", 110000, "--overlap", "on")

    def test_buckets_and_micro_batches(self):
        self.check("--devices", 3, "--fuse", "off")
        for overlap in ("off", "on"):
            self.check("--devices", 3, "--bucket-bytes", 110000, "--overlap", overlap)
            self.check("--devices", 2, "--bucket-bytes", 1, "--overlap", overlap, "--accumulate", 5)
        self.check("--devices", 2, "--accumulate", 5)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_mpi(self):
        for ranks, devices in ((2, 1), (4, 1), (2, 2), (3, 2), (8, 1)):
            for algorithm in ("naive", "tree", "ring"):
                with self.subTest(ranks=ranks, devices=devices, algorithm=algorithm):
                    self.check("--devices", devices, "--allreduce", algorithm, ranks=ranks)


class Overlap(unittest.TestCase):
    def test_what_is_measured_and_printed(self):
        options = SMALL + ["--devices", 2, "--bucket-bytes", 110000]
        for overlap in ("off", "on"):
            done = run(*options, "--overlap", overlap)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"(?m)^buckets : b3 to b4, loss \(\d+ bytes\); ")
            self.assertNotIn("NOTE: overlap", done.stdout)
            found = re.search(r"(?m)^communication : ([\d.]+) s, of which ([\d.]+) s hidden behind compute and ([\d.]+) s exposed$", done.stdout)
            seconds, hidden, exposed = map(float, found.groups())
            self.assertAlmostEqual(seconds, hidden + exposed, delta=0.0021)
            result = record(*options, "--overlap", overlap)
            self.assertEqual(result["parameters"]["overlap"], overlap == "on")
            self.assertEqual([bucket["tensors"] for bucket in result["parameters"]["buckets"]],
                             ["b3 to b4, loss", "W3", "W1 to b2"])
            self.assertEqual(sum(bucket["bytes"] for bucket in result["parameters"]["buckets"]), 4 * 129069)
            whole = result["result"]["communication"]
            if overlap == "off":
                self.assertEqual(whole["hidden_seconds"], 0)
            for key, value in whole.items():
                self.assertAlmostEqual(value, sum(epoch["communication"][key] for epoch in result["result"]["epochs"]))
            for epoch in result["result"]["epochs"]:
                self.assertLessEqual(epoch["communication"]["exposed_seconds"], epoch["seconds"] * 1.001)

    def test_hides_communication_behind_backward(self):
        """Buckets that take milliseconds, and a backward of many, so that a busy machine's scheduler has time for both; an epoch is a step."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            found = record("train", "--data", "synthetic", "--train-images", 2048, "--test-images", 10, "--batch", 2048, "--epochs", 8,
                           "--devices", 64, "--allreduce", "naive", "--bucket-bytes", 110000, "--overlap", "on", "--trace", path)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        self.assertGreater(found["result"]["communication"]["hidden_seconds"], 0)
        # (begin, end), of the buckets on one of the tracks that show them, of backward's last segment on all devices.
        times = lambda name, detail: sorted({(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "lockstep::" + name
                                             and event["args"]["detail"].startswith(detail)})
        first, large = times("trainer::bucket", "1 of 3, b3 to b4, loss,"), times("trainer::bucket", "2 of 3, W3,")
        last_segments = times("executor::segment", "backward through layers 6 to 1")
        self.assertEqual((len(first), len(large), len(last_segments)), (8, 8, 8 * 32))  # of 64 devices those with one of the 32 shards
        together = 0
        for step in range(8):
            segments = last_segments[32 * step:32 * (step + 1)]
            # The exponents of W3 have been waited for, and so has what was sent before them.
            self.assertLess(first[step][1], segments[0][0])
            together += any(large[step][0] < end and begin < large[step][1] for begin, end in segments)
        self.assertGreater(together, 0)

    def test_needs_buckets(self):
        done = run(*SMALL, "--devices", 2, "--overlap", "on")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("NOTE: overlap is off: the first bucket is complete only when backward ends", done.stdout)

    @unittest.skipUnless("LOCKSTEP_MPI_FUNNELED" in os.environ, "built without MPI, or with sanitizers")
    def test_needs_an_mpi_that_takes_calls_from_threads(self):
        options = SMALL + ["--bucket-bytes", 110000, "--overlap", "on"]
        funneled = record(*options, ranks=2, environment={"LD_PRELOAD": os.environ["LOCKSTEP_MPI_FUNNELED"]})
        serialized = record(*options, ranks=2)
        self.assertFalse(funneled["parameters"]["overlap"])
        self.assertTrue(serialized["parameters"]["overlap"])
        self.assertEqual(essence(funneled["result"]), essence(serialized["result"]))
        done = run(*options, ranks=2, environment={"LD_PRELOAD": os.environ["LOCKSTEP_MPI_FUNNELED"]})
        self.assertEqual(done.stdout.count("NOTE: overlap is off: MPI takes calls from the main thread only"), 1)


class Sizes(unittest.TestCase):
    """Minibatches that do not divide, and fewer images than devices."""

    def same(self, devices, *options):
        arguments = ["train", "--data", "synthetic", "--log-steps", *options]
        self.assertEqual(essence(record(*arguments, "--devices", devices)["result"]), essence(record(*arguments)["result"]))

    def test_one_image_on_eight_devices(self):
        self.same(8, "--train-images", 1, "--batch", 1, "--epochs", 2, "--test-images", 1)

    def test_batch_257_on_five_devices(self):
        self.same(5, "--train-images", 800, "--batch", 257, "--epochs", 1, "--test-images", 10)

    def test_whole_training_set_as_one_batch_on_three_devices(self):
        self.same(3, "--batch", 60000, "--epochs", 1, "--test-images", 10)

    def test_ten_test_images_on_seven_devices(self):
        self.same(7, "--train-images", 64, "--epochs", 1, "--test-images", 10)


class FloatMode(unittest.TestCase):
    def test_losses_stay_near_one_device(self):
        one = record(*SMALL, "--reduction", "float")["result"]
        for algorithm in ("naive", "tree", "ring"):
            many = record(*SMALL, "--reduction", "float", "--devices", 4, "--allreduce", algorithm)["result"]
            for a, b in zip(one["step_losses"], many["step_losses"]):
                self.assertLessEqual(abs(a - b), 1e-5 * abs(a))


class ByMatrixProducts(unittest.TestCase):
    """--conv gemm: bits of its own, as independent of the placement as the direct kernels'."""

    OPTIONS = [*SMALL, "--batch", 100, "--conv", "gemm"]

    @classmethod
    def setUpClass(cls):
        done = run(*cls.OPTIONS)
        if "expected a host back end" in done.stderr:
            raise unittest.SkipTest(done.stderr)
        cls.one = record(*cls.OPTIONS)["result"]

    def test_placements(self):
        for options, how in ((("--devices", 3), {}), (("--threads", 1), {}), (("--threads", 3), {}), (("--devices", 2), {"ranks": 2}),
                             ((), {"environment": {"OPENBLAS_NUM_THREADS": "2"}})):
            if "ranks" in how and not MPIEXEC:
                continue
            with self.subTest(options=options, how=how):
                self.assertEqual(essence(record(*self.OPTIONS, *options, **how)["result"]), essence(self.one))

    def test_losses_are_near_the_direct_kernels(self):
        direct = record(*self.OPTIONS[:-2])["result"]
        self.assertNotEqual(self.one["parameters_sha256"], direct["parameters_sha256"])
        for a, b in zip(self.one["step_losses"], direct["step_losses"]):
            self.assertLessEqual(abs(a - b), 1e-5 * abs(a))


@unittest.skipIf("ASAN_OPTIONS" in os.environ, "sanitizers multiply memory")
class Memory(unittest.TestCase):
    def peak(self, *options):
        """Largest resident memory in MiB."""
        process = subprocess.Popen([LOCKSTEP, "train", *map(str, options)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss / 1024

    def test_default_run(self):
        """60,000 images in memory."""
        self.assertLess(self.peak("--data", "synthetic", "--steps", 20), 400)

    def test_does_not_grow_with_the_steps(self):
        few, many = (self.peak("--data", "synthetic", "--train-images", 2560, "--test-images", 256, "--epochs", 21, "--steps", steps) for steps in (10, 210))
        self.assertLess(many - few, 8)

    def test_grows_by_no_more_than_gradients_of_shards(self):
        """At most 33 rows of 129,069 floats instead of 16, whatever the batch."""
        small, large = (self.peak("--data", "synthetic", "--batch", batch, "--steps", 2, "--threads", 1) for batch in (64, 16384))
        self.assertLess(large - small, 17 * 129069 * 4 / 2**20 + 8)


class LearningRates(unittest.TestCase):
    RULE = ["--batch", 128, "--base-batch", 32, "--lr", 0.05]

    def test_grows_to_what_the_rule_makes_of_it(self):
        for rule, warmup, rates in (("kept", 0, [0.05, 0.05]), ("sqrt", 0, [0.1, 0.1]), ("linear", 0, [0.2, 0.2]), ("linear", 2, [0.125, 0.2])):
            found = record(*SMALL, *self.RULE, "--lr-rule", rule, "--warmup-epochs", warmup)
            for epoch, rate in zip(found["result"]["epochs"], rates):
                self.assertAlmostEqual(epoch["learning_rate"], rate, places=12)
            self.assertEqual((found["parameters"]["lr_rule"], found["parameters"]["warmup_epochs"]), (rule, warmup))

    def test_a_rule_is_the_rate_that_it_gives(self):
        scaled = essence(record(*SMALL, *self.RULE, "--lr-rule", "linear", "--devices", 3)["result"])
        self.assertEqual(scaled, essence(record(*SMALL, "--batch", 128, "--lr", 0.2)["result"]))
        self.assertNotEqual(scaled, essence(record(*SMALL, *self.RULE)["result"]))

    def test_a_ramp_goes_on_after_a_checkpoint(self):
        ramp = [*SMALL, *self.RULE, "--lr-rule", "linear", "--warmup-epochs", 2]
        whole = record(*ramp)["result"]
        with tempfile.TemporaryDirectory() as folder:
            first = record(*ramp, "--steps", 5, "--checkpoint", folder)["result"]
            second = record(*ramp, "--resume", folder, "--devices", 2)["result"]
        self.assertEqual(second["parameters_sha256"], whole["parameters_sha256"])
        self.assertEqual(first["step_losses"] + second["step_losses"], whole["step_losses"])


class Output(unittest.TestCase):
    def test_lines_and_record(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record.json")
            done = run(*SMALL, "--devices", 2, "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(re.findall(r"^FOM: [0-9.]+ images/s$", done.stdout, re.M)), 1)
            self.assertEqual(len(re.findall(r"^VERIFICATION: PASSED \(.*\)$", done.stdout, re.M)), 1)
            self.assertRegex(done.stdout, r"(?m)^ +1 .*%$")
            self.assertTrue(os.path.getsize(path) > 0)

            again = run(*SMALL, "--json", path)
            self.assertEqual(again.returncode, 2)
            self.assertIn("the file exists", again.stderr)
            self.assertEqual(run(*SMALL, "--json", path, "--force").returncode, 0)

    def test_a_run_that_meets_nan(self):
        """In a gradient; or in the parameters that the last update made, which no step looks at any more."""
        with tempfile.TemporaryDirectory() as folder:
            place = lambda name: os.path.join(folder, name)
            for number, (options, words, steps) in enumerate((
                    (["--lr", 1e30], "step 2: the gradient of W1 is not finite", 1),
                    (["--lr", 1e30, "--devices", 2, "--bucket-bytes", 1, "--overlap", "on", "--reduction", "float"], "is not finite", 1),
                    (["--lr", 1e39, "--steps", 1], "step 1: the parameters are not finite", 1))):
                done = run(*SMALL, *options, "--json", place(f"{number}.json"), "--save", place("weights"), "--checkpoint", place("checkpoints"))
                self.assertEqual((done.returncode, done.stderr), (1, ""))
                self.assertRegex(done.stdout, rf"(?s)\nFOM: [0-9.]+ images/s\nVERIFICATION: FAILED \(.*{words}; .*\)\n$")
                with open(place(f"{number}.json")) as file:
                    found = json.load(file)
                self.assertIs(found["verification"]["passed"], False)
                self.assertIn(words, found["verification"]["detail"])
                self.assertEqual(found["result"]["steps"], steps)
                self.assertEqual(os.listdir(place("checkpoints")), [])
                self.assertFalse(os.path.exists(place("weights")))

    def test_ends_with_figure_and_verdict(self):
        with tempfile.TemporaryDirectory() as folder:
            for options in ([], ["--timers", "--trace", os.path.join(folder, "trace")]):
                self.assertRegex(run(*SMALL, *options).stdout, r"\nFOM: .*\nVERIFICATION: PASSED .*\n$")

    def test_record_fields(self):
        found = record(*SMALL)
        self.assertEqual(found["subcommand"], "train")
        self.assertTrue(found["schema"])
        self.assertGreater(found["fom"]["value"], 0)
        self.assertEqual(found["fom"]["unit"], "images/s")
        self.assertIs(found["verification"]["passed"], True)
        result = found["result"]
        self.assertRegex(result["parameters_sha256"], "^[0-9a-f]{64}$")
        self.assertEqual(result["test_count"], 203)
        self.assertEqual(result["test_accuracy"], result["test_correct"] / 203)
        self.assertEqual(len(result["step_losses"]), 2 * 3)
        self.assertEqual([epoch["epoch"] for epoch in result["epochs"]], [1, 2])
        for epoch in result["epochs"]:
            for key in ("train_loss", "test_correct", "test_accuracy", "seconds", "images_per_s", "communication_share"):
                self.assertIsInstance(epoch[key], (int, float))

    def test_steps_stop_in_mid_epoch(self):
        result = record(*SMALL, "--steps", 4)["result"]
        self.assertEqual((result["steps"], len(result["step_losses"]), len(result["epochs"])), (4, 4, 2))

    def test_seeds_and_epochs_differ(self):
        first, second = (record(*SMALL, "--seed", seed)["result"] for seed in (1, 2))
        self.assertNotEqual(first["parameters_sha256"], second["parameters_sha256"])

    def test_help(self):
        self.assertRegex(run("--version").stdout, r"^lockstep [0-9.]+ \(.*\)\n$")
        for arguments in (["--help"], ["train", "--help"], ["info", "--help"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 0)
            self.assertIn("Usage: lockstep", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
