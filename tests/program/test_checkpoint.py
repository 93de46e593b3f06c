# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: interrupted runs end with the bits of uninterrupted ones, and damaged or foreign files are refused."""
import glob
import hashlib
import os
import random
import re
import signal
import subprocess
import tempfile
import time
import unittest

import safetensors_file
from program import LOCKSTEP, MPIEXEC, record, run

# 3,754 images in batches of 16 make the 235 steps of a full epoch; the last one has 10.
TRAIN = ["train", "--data", "synthetic", "--train-images", 3754, "--batch", 16, "--test-images", 64, "--log-steps"]


def checkpoints(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))


def last_step(folder):
    """0 before the first checkpoint."""
    if not os.path.isdir(folder):
        return 0
    return max((int(re.search(r"(\d+)\.safetensors$", path).group(1)) for path in checkpoints(folder)), default=0)


def outcome(run_record):
    result = run_record["result"]
    return [result["parameters_sha256"], result["test_correct"], result["epochs"][-1]["train_loss"]]


class InFolder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = os.path.join(holder.name, "checkpoints")
        self.file = os.path.join(holder.name, "weights.safetensors")

    def refused(self, *arguments, words):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class Resume(InFolder):
    def test_stop_in_the_middle_of_an_epoch(self):
        whole = record(*TRAIN, "--epochs", 2)
        first = record(*TRAIN, "--epochs", 2, "--steps", 117, "--devices", 2, "--checkpoint", self.folder, "--every", 50)
        self.assertEqual([os.path.basename(path) for path in checkpoints(self.folder)],
                         ["step-00000100.safetensors", "step-00000117.safetensors"])
        second = record(*TRAIN, "--epochs", 2, "--devices", 3, "--resume", self.folder)
        self.assertEqual(outcome(second), outcome(whole))
        self.assertEqual(second["result"]["resumed_at_step"], 117)
        self.assertIn(f"3 replicas equal at every one of {2 * 235 - 117} steps", second["verification"]["detail"])
        self.assertEqual(first["result"]["step_losses"] + second["result"]["step_losses"], whole["result"]["step_losses"])
        self.assertEqual([epoch["train_loss"] for epoch in second["result"]["epochs"]],
                         [epoch["train_loss"] for epoch in whole["result"]["epochs"]])

    def test_stop_between_epochs_and_in_the_second(self):
        whole = record(*TRAIN, "--epochs", 3)
        for steps in (235, 300):
            record(*TRAIN, "--epochs", 3, "--steps", steps, "--checkpoint", self.folder, *(["--resume", self.folder] if steps > 235 else []))
        self.assertEqual(outcome(record(*TRAIN, "--epochs", 3, "--resume", self.folder, "--checkpoint", self.folder)), outcome(whole))
        self.assertEqual([os.path.basename(path) for path in checkpoints(self.folder)],
                         ["step-00000470.safetensors", "step-00000705.safetensors"])

    def test_a_finished_run_has_nothing_left_to_do(self):
        whole = record(*TRAIN, "--epochs", 1, "--checkpoint", self.folder)
        again = record(*TRAIN, "--epochs", 1, "--resume", self.folder)
        self.assertEqual(again["result"]["parameters_sha256"], whole["result"]["parameters_sha256"])
        self.assertEqual(again["result"]["epochs"], [])

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_other_placements(self):
        whole = record(*TRAIN, "--epochs", 1)
        record(*TRAIN, "--epochs", 1, "--steps", 60, "--devices", 2, "--checkpoint", self.folder, ranks=2)
        for ranks, devices in ((4, 1), (2, 2), (1, 5)):
            self.assertEqual(outcome(record(*TRAIN, "--epochs", 1, "--devices", devices, "--resume", self.folder, ranks=ranks)),
                             outcome(whole))


class Killed(InFolder):
    """Killed at a random moment, a run that writes a checkpoint every step resumes to the same bits."""
    SMALL = ["train", "--data", "synthetic", "--train-images", 500, "--batch", 64, "--test-images", 64, "--epochs", 6]

    @staticmethod
    def kill(process):
        """The process and its descendants: a launcher's ranks are not in its process group, and any of its threads starts them."""
        known = [process.pid]
        for pid in known:
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                with open(path) as file:
                    known += [int(child) for child in file.read().split()]
        children = known[1:]
        for pid in children + [process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate()
        while any(os.path.exists(f"/proc/{child}") for child in children):
            time.sleep(0.01)

    def test_at_twenty_moments(self):
        expected = record(*self.SMALL)["result"]["parameters_sha256"]
        seed = random.randrange(10**6)
        draw = random.Random(seed)
        caught = 0
        for trial in range(20):
            folder = os.path.join(self.folder, str(trial))
            ranks = draw.choice((0, 0, 2)) if MPIEXEC else 0
            launcher = MPIEXEC + [str(ranks)] if ranks else []
            arguments = [*self.SMALL, "--checkpoint", folder, "--every", 1]
            process = subprocess.Popen(launcher + [LOCKSTEP, *map(str, arguments), "--devices", str(draw.randint(1, 3))],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            moment = draw.randint(1, 47)
            while process.poll() is None and last_step(folder) < moment:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.005))  # a step, about
            if process.poll() is None:
                self.kill(process)
            with self.subTest(trial=trial, seed=seed):
                for path in checkpoints(folder):
                    safetensors_file.read(path)
                left = checkpoints(folder)
                caught += 0 < last_step(folder) < 48
                resume = ["--resume", folder] if left else []
                result = record(*arguments, *resume, "--devices", draw.randint(1, 4), ranks=draw.choice((0, 3)) if MPIEXEC else 0)["result"]
                self.assertEqual(result["parameters_sha256"], expected)
        self.assertGreater(caught, 5, "most runs had ended before they were killed: the test proves little")


class Refused(InFolder):
    RUN = TRAIN + ["--epochs", 1, "--steps", 20]

    def setUp(self):
        super().setUp()
        record(*self.RUN, "--checkpoint", self.folder, "--every", 10)
        self.older, self.newest = checkpoints(self.folder)

    def test_truncated(self):
        os.truncate(self.newest, os.path.getsize(self.newest) - 1000)
        self.refused(*self.RUN, "--resume", self.folder, words=[self.newest, "truncated", "--resume " + self.older])
        self.refused(*self.RUN, "--resume", self.newest, words=[self.newest, "truncated"])
        whole = record(*TRAIN, "--epochs", 1, "--steps", 40)
        resumed = record(*TRAIN, "--epochs", 1, "--steps", 40, "--resume", self.older, "--checkpoint", self.folder, "--every", 5)
        self.assertEqual(outcome(resumed), outcome(whole))

    def test_one_changed_bit(self):
        with open(self.newest, "r+b") as file:
            file.seek(-5000, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-5000, os.SEEK_END)
            file.write(bytes([byte ^ 4]))
        self.refused(*self.RUN, "--resume", self.folder, words=[self.newest, "damaged: SHA-256", "--resume " + self.older])

    def test_foreign(self):
        for content in (b"", b"<!DOCTYPE html><html>Not found</html>", b"\2\0\0\0\0\0\0\0{}"):
            with open(self.newest, "wb") as file:
                file.write(content)
            self.refused(*self.RUN, "--resume", self.folder, words=[self.newest, "expected", "--resume " + self.older])
        record(*self.RUN, "--save", self.file)
        self.refused(*self.RUN, "--resume", self.file, words=[self.file, "not a checkpoint"])

    def test_settings(self):
        for option, value, name in (("--batch", 32, "batch 16, expected 32"), ("--seed", 2, "seed 1, expected 2"),
                                    ("--lr", 0.1, "learning_rate 0.2, expected 0.1"),
                                    ("--lr-rule", "sqrt", "learning_rate 0.2, expected 0.2 at batch 256, sqrt"),
                                    ("--reduction", "float", "reduction exact, expected float"),
                                    ("--conv", "gemm", "conv direct, expected gemm"),
                                    ("--train-images", 100, "train_images 3754, expected 100")):
            arguments = list(self.RUN)
            if option in arguments:
                del arguments[arguments.index(option):arguments.index(option) + 2]
            self.refused(*arguments, option, value, "--resume", self.folder, words=[self.newest, name])

    def test_places(self):
        self.refused(*self.RUN, "--resume", self.folder + "-not", words=[self.folder + "-not", "no such"])
        self.refused(*self.RUN, "--checkpoint", self.folder, words=[self.folder, "--resume"])
        self.refused(*self.RUN, "--every", 5, words=["--every", "--checkpoint"])
        self.refused(*self.RUN, "--checkpoint", self.newest, words=[self.newest, "is no folder"])
        self.refused(*self.RUN, "--save", self.newest, words=[self.newest, "exists"])
        self.refused(*self.RUN, "--save", self.folder + "-not/file", words=["--save", "cannot be written", "No such file"])
        self.refused(*TRAIN, "--steps", 3, "--resume", self.folder, words=[self.folder, "expected at most 3, where this run ends"])
        os.mkdir(self.folder + "-empty")
        self.refused(*self.RUN, "--resume", self.folder + "-empty", words=["holds no checkpoint"])


class Save(InFolder):
    def test_weights(self):
        result = record(*TRAIN, "--epochs", 1, "--steps", 3, "--save", self.file)["result"]
        metadata, tensors = safetensors_file.read(self.file)
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual({name: shape for name, (shape, _) in tensors.items()},
                         {"W1": [20, 1, 3, 3], "b1": [20], "W2": [50, 20, 5, 5], "b2": [50], "W3": [800, 128], "b3": [128],
                          "W4": [128, 10], "b4": [10]})
        in_order = b"".join(tensors[name][1] for name in ("W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"))
        self.assertEqual(hashlib.sha256(in_order).hexdigest(), result["parameters_sha256"])
        record(*TRAIN, "--epochs", 1, "--steps", 4, "--save", self.file, "--force")
        self.assertNotEqual(safetensors_file.read(self.file)[1], tensors)


if __name__ == "__main__":
    unittest.main()
