# SPDX-License-Identifier: Apache-2.0
"""lockstep allreduce: the table, the record, the exit codes; and jobs that lose a rank in the middle of a sweep or of
a training run."""
import json
import os
import signal
import subprocess
import threading
import time
import unittest

from program import LOCKSTEP, MPIEXEC, run


def strict(text):
    """JSON without NaN or Infinity."""
    def refuse(constant):
        raise ValueError(constant)
    return json.loads(text, parse_constant=refuse)


class Benchmark(unittest.TestCase):
    def check_record(self, record, ranks, algorithms):
        self.assertEqual(record["schema"], "allreduce-bench/1")
        self.assertEqual(record["host"]["ranks"], ranks)
        self.assertGreater(record["calib"]["alpha_us"], 0)
        self.assertEqual({row["algo"] for row in record["rows"]}, set(algorithms))
        self.assertEqual(record["summary"]["exit"], 0)
        for row in record["rows"]:
            self.assertEqual(row["status"], "ok", row)
            self.assertEqual(row["check"]["wrong"], 0)
            self.assertIs(row["check"]["ranks_same_bits"], True)
            self.assertIs(row["check"]["guard_ok"], True)
            self.assertGreater(row["time_us"]["p50"], 0)
            self.assertLessEqual(row["time_us"]["min"], row["time_us"]["p50"])
            self.assertLessEqual(row["time_us"]["p50"], row["time_us"]["p99"])
            self.assertEqual(row["bytes"], row["count"] * (4 if row["dtype"] == "float" else 8))
            if row["algo"] not in ("mpi", "nccl"):
                self.assertEqual(row["check"]["rounding_wrong"], 0)
                self.assertIsNotNone(row["model"]["predicted_us"])
            if ranks == 1:
                self.assertIsNone(row["busbw_gbs"])
            else:
                self.assertAlmostEqual(row["busbw_factor"], 2 * (ranks - 1) / ranks)

    def test_in_process(self):
        for devices in (1, 3):
            result = run("allreduce", "--devices", str(devices), "-e", "64K", "-f", "64", "-n", "3", "-d", "all", "-o", "all",
                                 "--json", "-")
            self.assertEqual(result.returncode, 0, result.stderr)
            record = strict(result.stdout)
            self.check_record(record, devices, [r["algo"] for r in record["rows"]])
            self.assertIn("fused", [r["algo"] for r in record["rows"]])
            self.assertIn("VERIFICATION: PASSED", result.stderr)
            self.assertIn("# Out of bounds values : 0 OK", result.stderr)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_buffers_of_the_programs_own(self):
        """Of which no rank can update another's: there the bound is the probe's."""
        for registered, timed in (("on", True), ("off", False)):
            result = run("allreduce", "--transport", "shared-memory", "--registered", registered, "-b", "64K", "-e", "256K", "-f", "2", "-n", "3",
                         "--json", "-", ranks=2)
            self.assertEqual(result.returncode, 0, result.stderr)
            record = strict(result.stdout)
            self.check_record(record, 2, [r["algo"] for r in record["rows"]])
            for bound in (row["bound"] for row in record["rows"]):
                self.assertEqual(bound["updates_over_calls"] is not None, timed)
                of_updates = timed and bound["kind"] == "memory"  # on a busy machine a signal may take longer
                self.assertEqual(bound["efficiency"], bound["updates_over_calls" if of_updates else "over_p50"])

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_transports_agree(self):
        hashes = {}
        for transport in ("shared-memory", "messages"):
            result = run("allreduce", "-t", transport, "-a", "ring,naive,mpi", "-b", "4000", "-e", "400000", "-f", "100", "-n", "2",
                                 "--json", "-", ranks=3)
            self.assertEqual(result.returncode, 0, result.stderr)
            record = strict(result.stdout)
            self.check_record(record, 3, ["ring", "naive", "mpi"])
            for row in record["rows"]:
                if row["algo"] != "mpi":
                    hashes.setdefault((row["algo"], row["bytes"]), set()).add(row["check"]["result_hash"])
        for key, values in hashes.items():
            self.assertEqual(len(values), 1, key)

    def test_columns_in_the_order_of_nccl_tests(self):
        result = run("allreduce", "--devices", "2", "-b", "1K", "-e", "1K", "-a", "ring", "-n", "2")
        row = [line for line in result.stdout.splitlines() if line and line[0] == " "][0].split()
        self.assertEqual(row[:5], ["1024", "256", "float", "sum", "-1"])
        for place in (5, 9):
            microseconds, algbw, busbw = (float(x) for x in row[place:place + 3])
            self.assertAlmostEqual(algbw, 1024 / microseconds * 1e-3, delta=algbw * 0.01 / microseconds + 0.011)
            self.assertAlmostEqual(busbw, algbw, delta=0.02)  # 2 (k - 1) / k = 1
            self.assertEqual(row[place + 3], "0")
        self.assertEqual(row[13], "ring")

    def test_latencies_of_a_schedule(self):
        """By the formulas: k - 1 messages to the first rank and as many from it; two trees; 2 (k - 1) steps; log2 k."""
        result = run("allreduce", "-k", "4", "-b", "64K", "-e", "64K", "-n", "1", "-a", "naive,tree,ring,recursive_doubling", "--json", "-")
        self.assertEqual({row["algo"]: row["model"]["alpha_terms"] for row in strict(result.stdout)["rows"]},
                         {"naive": 6, "tree": 4, "ring": 6, "recursive_doubling": 2})

    def test_one_rank_exchanges_nothing(self):
        result = run("allreduce", "-k", "1", "-b", "64K", "-e", "64K", "-n", "1", "-a", "ring", "--json", "-")
        self.assertNotIn("# memory at", result.stderr)
        for point in strict(result.stdout)["calib"]["points"]:
            self.assertEqual([point[key] for key in ("add_us", "copy_us", "add_alone_us", "copy_alone_us")], [None] * 4)

    def test_bad_options(self):
        for options in (["-a", "rong"], ["-d", "half"], ["-b", "8", "-e", "4"], ["-t", "pigeon"], ["-f", "1"], ["-o", "avg"],
                        ["-b", "2T", "-e", "2T"], ["-e", "8388607T"]):
            result = run("allreduce", *options)
            self.assertEqual(result.returncode, 2, options)
            self.assertIn("expected", result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)


@unittest.skipUnless(MPIEXEC, "built without MPI")
class LostRank(unittest.TestCase):
    """A rank of four is killed, or stopped, in the middle."""

    timeout = 3

    def lose(self, how, ready, *arguments):
        """Sends rank 2 the signal once a line with `ready` is printed; everything must be over the deadline and two seconds later."""
        command = MPIEXEC + ["4", LOCKSTEP, *arguments, "--timeout", str(self.timeout)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []  # (when it came, line)
        begun = threading.Event()

        def read():
            for line in job.stdout:
                lines.append((time.monotonic(), line.rstrip()))
                if ready in line:
                    begun.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self.addCleanup(job.kill)
        self.assertTrue(begun.wait(120), lines)
        ranks = descendants(job.pid, LOCKSTEP)
        self.assertEqual(len(ranks), 4)
        time.sleep(0.5)
        victim = next(pid for pid in ranks if rank_of(pid) == 2)
        lost = time.monotonic()
        os.kill(victim, how)
        job.wait(timeout=60)
        over = time.monotonic() - lost
        reader.join(timeout=10)
        output = "\n".join(line for _, line in lines)
        # A rank that the launcher ends while it computes prints nothing; the launcher then names the one that was killed.
        messages = [(at, line) for at, line in lines if "lockstep: " in line or "noticed that process rank" in line]
        self.assertTrue(messages, output)
        self.assertIn("rank 2", messages[0][1])
        self.assertLess(messages[0][0] - lost, self.timeout + 2, output)
        self.assertLess(over, self.timeout + 2 + 2, output)  # the launcher has processes to collect
        self.assertNotEqual(job.returncode, 0, output)
        return messages[0][1]

    def test_killed_in_a_sweep(self):
        self.lose(signal.SIGKILL, "out-of-place", "allreduce", "-b", "1M", "-e", "1M", "-n", "100000", "-a", "ring,fused,tree")

    def test_stopped_in_a_sweep(self):
        self.lose(signal.SIGSTOP, "out-of-place", "allreduce", "-b", "64K", "-e", "64K", "-n", "100000", "-a", "ring,fused,tree")

    def test_stopped_while_training(self):
        message = self.lose(signal.SIGSTOP, "train loss", "train", "--data", "synthetic", "--train-images", "2000", "--test-images", "100",
                            "--epochs", "100000")
        self.assertRegex(message, "of (training step [0-9]+|the evaluation)")

    def test_killed_while_training(self):
        self.lose(signal.SIGKILL, "train loss", "train", "--data", "synthetic", "--train-images", "2000", "--test-images", "100", "--epochs", "100000")

    def test_lost_while_buckets_overlap(self):
        for how in (signal.SIGSTOP, signal.SIGKILL):
            self.lose(how, "train loss", "train", "--data", "synthetic", "--train-images", "2000", "--test-images", "100", "--epochs", "100000",
                      "--overlap", "on", "--bucket-bytes", "1")


def descendants(pid, name):
    """The processes of program `name` that pid started, itself or through helpers."""
    parents, found = {}, []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    for candidate in parents:
        ancestor = candidate
        while ancestor in parents and ancestor != pid:
            ancestor = parents[ancestor]
        try:
            if ancestor == pid and os.readlink(f"/proc/{candidate}/exe") == os.path.realpath(name):
                found.append(candidate)
        except OSError:
            pass
    return found


def rank_of(pid):
    with open(f"/proc/{pid}/environ") as file:
        variables = dict(item.split("=", 1) for item in file.read().split("\0") if "=" in item)
    return int(variables.get("OMPI_COMM_WORLD_RANK", variables.get("PMI_RANK", -1)))


if __name__ == "__main__":
    unittest.main()
