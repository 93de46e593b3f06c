# SPDX-License-Identifier: Apache-2.0
"""scripts/plot draws every figure from records of real runs, and says what it cannot draw."""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from program import run

PLOT = os.path.join(os.environ["LOCKSTEP_SOURCE"], "scripts", "plot")
TRAIN = ["train", "--data", "synthetic", "--train-images", 600, "--test-images", 100, "--epochs", 2, "--timers"]


def plot(*arguments):
    return subprocess.run([sys.executable, "-B", PLOT, *arguments], capture_output=True, text=True, timeout=120)


class Figures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.trainings = [cls.record(f"train-{k}", *TRAIN, "--devices", k) for k in (1, 2, 4)]
        cls.sweep = [cls.record(f"sweep-{batch}-{rate}", *TRAIN, "--batch", batch, "--lr", rate) for batch in (64, 256) for rate in (0.1, 0.4)]
        help_text = run("--help").stdout
        cls.benchmark = [cls.record("allreduce", "allreduce", "--devices", 2, "--min-bytes", 1024, "--max-bytes", "256K", "--iters", 3)] if re.search(
            r"(?m)^  allreduce ", help_text) else []

    @classmethod
    def record(cls, name, *arguments):
        path = os.path.join(cls.folder.name, name + ".json")
        done = run(*arguments, "--json", path)
        if done.returncode:
            raise AssertionError(done.stderr)
        return path

    def draw(self, name, records, *words):
        with tempfile.TemporaryDirectory() as out:
            done = plot("--out", out, "--only", name, *records)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(os.listdir(out)), [name + ".png", name + ".svg"])
            with open(os.path.join(out, name + ".svg")) as file:
                svg = file.read()
            with open(os.path.join(out, name + ".png"), "rb") as file:
                png = file.read()
        for word in words:
            self.assertIn(word, svg)
        self.assertNotIn(">nan<", svg)
        self.check_ink(png)

    def check_ink(self, png):
        """Not an empty page: several colours over a white ground."""
        width, height = struct.unpack(">II", png[16:24])
        self.assertGreater(width, 300)
        data, at = b"", 8
        while at < len(png):
            length, kind = struct.unpack(">I4s", png[at:at + 8])
            if kind == b"IDAT":
                data += png[at + 8:at + 8 + length]
            at += 12 + length
        self.assertGreater(len(set(zlib.decompress(data))), 40)

    def test_accuracy(self):
        self.draw("accuracy", self.trainings, "1 device", "4 devices", "training loss", "test accuracy, %", "epoch")

    def test_scaling(self):
        self.draw("scaling", self.trainings, "images/s", "efficiency", "ideal")

    def test_breakdown(self):
        self.draw("breakdown", self.trainings, "executor::gradients", "4 devices")

    def test_sweep(self):
        self.draw("sweep", self.sweep, "learning rate", "0.4", "256")

    def test_allreduce(self):
        if not self.benchmark:
            self.skipTest("no allreduce command")
        self.draw("allreduce", self.benchmark, "ring", "tree", "predicted", "bound", "bandwidth")

    def test_all_at_once_and_the_same_bytes_again(self):
        outputs = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as out:
                self.assertEqual(plot("--out", out, *self.trainings).returncode, 0)
                self.assertLessEqual({"accuracy.svg", "scaling.png", "breakdown.svg"}, set(os.listdir(out)))
                with open(os.path.join(out, "accuracy.svg"), "rb") as file:
                    outputs.append(file.read())
        self.assertEqual(*outputs)

    def test_refuses(self):
        bad = os.path.join(self.folder.name, "bad.json")
        for content, word in (("no json", "not JSON"), ("{}", "no record"), (json.dumps({"schema": "lockstep/2", "subcommand": "train"}), "lockstep/2")):
            with open(bad, "w") as file:
                file.write(content)
            done = plot(bad)
            self.assertEqual(done.returncode, 1)
            self.assertIn(word, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("nowhere.json", plot("nowhere.json").stderr)
        self.assertEqual(plot("--only", "allreduce", self.trainings[0]).returncode, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
