# SPDX-License-Identifier: Apache-2.0
"""scripts/plot draws every figure from records of real runs, and says what it cannot draw."""
import json
import os
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
        cls.trace = os.path.join(cls.folder.name, "trace.json")
        cls.trainings = [cls.record("train-1", *TRAIN), cls.record("train-3", *TRAIN, "--devices", 3, "--trace", cls.trace)]
        cls.sweep = [cls.record(f"sweep-{batch}-{rate}", *TRAIN, "--batch", batch, "--lr", rate) for batch, rate in ((64, 0.1), (256, 0.4))]
        cls.benchmark = cls.record("allreduce", "allreduce", "--devices", 2, "--min-bytes", 1024, "--max-bytes", "64K", "--iters", 2)
        studies = [cls.record("study-batch", "study", "batch", "--quick", "--devices", "1,2", "--epochs", 2, "--train-images", 300, "--batch", 16,
                              "--lr", 0.9)]
        studies += [cls.record(f"study-{name}", "study", name, "--quick") for name in ("allreduce", "accuracy", "unequal", "overlap", "loss")]
        cls.studies = studies
        cls.out = os.path.join(cls.folder.name, "figures")
        cls.done = plot("--out", cls.out, *cls.trainings, *cls.sweep, *studies, cls.benchmark, cls.trace)

    @classmethod
    def record(cls, name, *arguments):
        path = os.path.join(cls.folder.name, name + ".json")
        done = run(*arguments, "--json", path)
        if done.returncode:
            raise AssertionError(done.stderr)
        return path

    def check(self, name, *words):
        with open(os.path.join(self.out, name + ".svg")) as file:
            svg = file.read()
        with open(os.path.join(self.out, name + ".png"), "rb") as file:
            self.check_ink(file.read())
        for word in words:
            self.assertIn(word, svg)
        self.assertNotIn(">nan<", svg)

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

    def test_draws_all(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        names = ("accuracy", "allreduce", "batch", "breakdown", "loss", "overlap", "padding", "parts", "scaling", "sweep", "timeline", "unequal")
        self.assertEqual(sorted(os.listdir(self.out)), sorted(f"{name}.{form}" for name in names for form in ("png", "svg")))
        self.assertEqual(len(self.done.stdout.splitlines()), 2 * len(names))

    def test_accuracy(self):
        self.check("accuracy", "1 device", "3 devices", "training loss", "test accuracy, %", "epoch")

    def test_scaling(self):
        self.check("scaling", "images/s", "efficiency", "ideal")

    def test_breakdown(self):
        self.check("breakdown", "executor::gradients", "3 devices")

    def test_sweep(self):
        self.check("sweep", "learning rate", "0.4", "256")

    def test_studies(self):
        self.check("batch", "k = 2, batch 32", "test accuracy, %")
        self.check("parts", "owners", "measured here", "predicted, network", "naive, 8 calls")
        self.check("padding", "padded to k shares", "reported test accuracy, %")
        self.check("unequal", "equal shares", "slow device left out", "predicted")
        self.check("overlap", "8 buckets, overlap on", "hidden", "predicted exposed")
        self.check("loss", "undisturbed", "killed", "until the job ends")

    def test_sweep_of_a_study(self):
        with open(self.studies[0]) as file:
            record = json.load(file)
        for row, mean in zip(record["result"]["summary"], (0.25, 0.5, 0.75, 0.875, 1.0)):
            row.update(trained=row["runs"], mean=[mean, mean])
        path = os.path.join(self.folder.name, "sweep-study.json")
        with open(path, "w") as file:
            json.dump(record, file)
        out = os.path.join(self.folder.name, "sweep-study")
        self.assertEqual(plot("--out", out, "--only", "sweep", path).returncode, 0)
        with open(os.path.join(out, "sweep.svg")) as file:
            svg = file.read()
        for text in (">25.0<", ">50.0<", ">75.0<", ">87.5<", ">1.8<"):  # the rate of linear, not of the ramp
            self.assertIn(text, svg)
        self.assertNotIn(">100.0<", svg)

    def test_timeline(self):
        self.check("timeline", "device 0", "device 2", "exact sums")

    def test_allreduce(self):
        self.check("allreduce", "ring", "tree", "predicted", "bound", "bandwidth")

    def test_the_same_bytes_again(self):
        again = os.path.join(self.folder.name, "again")
        self.assertEqual(plot("--out", again, "--only", "sweep", *self.trainings, *self.sweep).returncode, 0)
        self.assertEqual(sorted(os.listdir(again)), ["sweep.png", "sweep.svg"])
        for name in os.listdir(again):
            with open(os.path.join(self.out, name), "rb") as first, open(os.path.join(again, name), "rb") as second:
                self.assertEqual(first.read(), second.read())

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
