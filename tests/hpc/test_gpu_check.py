# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check without a GPU: what it says there, and what it makes of records (here of small runs of this build)."""
import glob
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PATH = os.path.join(os.environ["LOCKSTEP_SOURCE"], "scripts", "gpu-check")
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", PATH)
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)

SMALL = {
    "bench": ["bench", "kernels", "--samples", 1],
    "verify": ["verify", "--only", "schedules"],
    "train": ["train", "--data", "synthetic", "--train-images", 300, "--test-images", 50, "--epochs", 1],
    "profile": ["train", "--data", "synthetic", "--train-images", 300, "--test-images", 50, "--epochs", 1, "--timers"],
    "allreduce": ["allreduce", "--devices", 2, "--min-bytes", "4K", "--max-bytes", "1M", "--factor", 256, "--iters", 2, "--place", "in"],
}


class SmallCheck(gpu_check.Check):
    """Every command as the script gives it, but for its size; `spoil` may alter the record that it reads."""

    def __init__(self, folder, spoil=lambda name, record: None):
        super().__init__(os.environ["LOCKSTEP"], "no such folder", folder, True)
        self.spoil, self.asked = spoil, {}

    def lockstep(self, name, *arguments, seconds=60):
        self.asked[name] = [str(a) for a in arguments]
        small = SMALL[re.match("[a-z]+", name)[0]]
        if "nccl" in arguments:
            small = [*small, "--algorithms", "nccl"]
        record, problem = super().lockstep(name, *small, seconds=seconds)
        if record:
            self.spoil(name, record)
        return record, problem


class GpuCheck(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def rows(self, *steps, **options):
        check = SmallCheck(self.folder, **options)
        for step in steps:
            step(check)
        return check, {row["name"]: row for row in check.rows}

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/kfd"), "this machine has a GPU")
    def test_says_that_there_is_no_gpu(self):
        done = subprocess.run([sys.executable, "-B", PATH], capture_output=True, text=True, timeout=60, cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"\Agpu-check: no GPU on this machine .*\n\Z")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_program_for_hosts_is_refused(self):
        script = f"import runpy, glob; glob.glob = lambda path: ['gpu']; import sys; sys.argv[1:] = ['--build', {os.environ['LOCKSTEP_BUILD']!r}]; "
        done = subprocess.run([sys.executable, "-B", "-c", script + f"runpy.run_path({PATH!r}, run_name='__main__')"], capture_output=True,
                              text=True, timeout=60, cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("is not built for a GPU", done.stderr)

    def test_rows_say_what_the_records_say(self):
        check, rows = self.rows(gpu_check.roofline, gpu_check.verify, gpu_check.training, gpu_check.sweeps)
        self.assertEqual(rows["verify, 2 devices"]["text"], "1 of 1 checks passed")
        self.assertIs(rows["verify, 2 devices"]["passed"], True)
        self.assertEqual(check.asked["verify_2"], ["verify", "--quick", "--devices", "2"])
        peak = check.record["bench"]["result"]["machine"]["flops_per_s"]
        self.assertTrue(rows["multiply-add peak"]["text"].startswith(f"{peak * 1e-12:.2f} TFLOP/s"))
        images = check.record["train_256"]["fom"]["value"]
        self.assertIn(f"{images:.0f} images/s, {100 * images * 10.64e6 / peak:.0f} % of the multiply-add peak", rows["training, batch 256"]["text"])
        self.assertEqual(check.asked["train_256_graph"], [*check.asked["train_256"], "--graph"])
        graph = check.record["train_256_graph"]["fom"]["value"]
        self.assertIn(f", {graph:.0f} by graphs, same bits; accuracy", rows["training, batch 256"]["text"])
        step = next(timer for timer in check.record["profile"]["timers"] if timer["name"] == "lockstep::trainer::step")
        self.assertIn(f"{step['launches'] / step['calls']:.0f} kernels", rows["launches a step"]["text"])
        best = max((row for row in check.record["allreduce_in_process"]["rows"] if row["bytes"] == 1 << 20 and row["status"] == "ok"),
                   key=lambda row: row["busbw_gbs"])
        self.assertIn(f"{best['algo']}, 1 MiB: {best['busbw_gbs']:.0f} GB/s", rows["allreduce in process, 4 devices"]["text"])
        # A build without NCCL has nothing to measure there, which is said and is no failure.
        nccl = next(row for name, row in rows.items() if name.startswith("allreduce NCCL"))
        self.assertIsNot(nccl["passed"], False)
        text = gpu_check.table(check.rows)
        self.assertEqual(len(text.splitlines()), len(check.rows))
        self.assertLessEqual(len(text.splitlines()), 20)
        self.assertNotIn("FAILED", text)

    def test_failures_are_seen(self):
        def spoil(name, record):
            if name.startswith("verify"):
                record["verification"]["passed"] = record["verification"]["results"][0]["passed"] = False
            if name.startswith("train"):
                record["verification"]["passed"] = False
            if name.startswith("allreduce"):
                record["rows"][0]["check"]["ranks_same_bits"] = False

        check, rows = self.rows(gpu_check.verify, gpu_check.training, gpu_check.sweeps, spoil=spoil)
        for name in ("verify, 1 devices", "training, batch 256", "allreduce in process, 4 devices"):
            self.assertIs(rows[name]["passed"], False, name)
        self.assertIn("failed: schedules", rows["verify, 1 devices"]["text"])
        self.assertIn("FAILED", gpu_check.table(check.rows))

    def test_graphs_with_other_bits_or_without_a_result_are_failures(self):
        def spoil(name, record):
            if name == "train_256_graph":
                record["result"]["parameters_sha256"] = "0" * 64
            if name == "train_4096_graph":
                record["verification"]["passed"] = False

        _, rows = self.rows(gpu_check.training, spoil=spoil)
        self.assertIn("by graphs, OTHER bits", rows["training, batch 256"]["text"])
        self.assertIs(rows["training, batch 256"]["passed"], False)
        self.assertIn("by graphs, same bits", rows["training, batch 4096"]["text"])
        self.assertIs(rows["training, batch 4096"]["passed"], False)

        class Refusing(SmallCheck):
            def lockstep(self, name, *arguments, seconds=60):
                if name == "train_256_graph":
                    return None, "exit code 4: found devices' work that cannot be made a graph"
                record, problem = super().lockstep(name, *arguments, seconds=seconds)
                return record, "exit code 139: no output" if name == "train_4096_graph" else problem

        check = Refusing(self.folder)
        gpu_check.training(check)
        for batch, text in ((256, "by graphs: exit code 4: found devices' work"), (4096, "by graphs, same bits, exit code 139: no output")):
            row = next(row for row in check.rows if row["name"] == f"training, batch {batch}")
            self.assertIs(row["passed"], False)
            self.assertIn(text, row["text"])

    def test_a_program_that_dies_or_hangs_is_a_failure(self):
        program = os.path.join(self.folder, "test_reference")
        for script, expected in (("echo broken; exit 9", "exit code 9: broken"), ("sleep 60", "ended after 1 s")):
            with open(program, "w") as file:
                file.write(f"#!/bin/sh\n{script}\n")
            os.chmod(program, 0o755)
            check = gpu_check.Check(program, self.folder, self.folder, True)
            check.left = lambda: 1
            gpu_check.unit_tests(check)
            gpu_check.verify(check)
            for row in check.rows:
                self.assertIs(row["passed"], False)
                self.assertIn(expected, row["text"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
