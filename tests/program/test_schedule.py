# SPDX-License-Identifier: Apache-2.0
"""lockstep schedule and lockstep simulate, as users run them."""
import json
import math
import os
import resource
import tempfile
import unittest

from program import MPIEXEC, record, run

ALGORITHMS = ["naive", "tree", "double_tree", "ring", "bidirectional_ring", "recursive_doubling", "halving_doubling", "direct",
              "hierarchical"]


class Schedule(unittest.TestCase):
    def test_every_algorithm_is_proved(self):
        for algorithm in ALGORITHMS:
            for ranks in (1, 2, 3, 5, 8):
                with self.subTest(algorithm=algorithm, ranks=ranks):
                    out = record("schedule", "--algorithm", algorithm, "-k", ranks, "-n", 1000)
                    self.assertEqual((out["schema"], out["subcommand"], out["algo"]), ("lockstep/1", "schedule", algorithm))
                    self.assertIs(out["proof"]["ok"], True)
                    self.assertIs(out["proof"]["equal_bits"], True)
                    self.assertEqual(len(out["schedule"]["list"]), out["schedule"]["transfers"])
                    self.assertEqual(len(out["proof"]["ranks"]), ranks)
                    self.assertEqual(out["model"]["predicted_s"] > 0, ranks > 1)
                    if ranks == 1:
                        self.assertIsNone(out["model"]["bound"])
                        self.assertIsNone(out["model"]["share_of_bound"])

    def test_what_people_read(self):
        done = run("schedule", "-a", "ring", "-k", 3, "-n", 10)
        self.assertEqual(done.returncode, 0)
        for words in ("step 0    arriving + own   0->1 c0  1->2 c1  2->0 c2", "step 3    copy             0->1 c0  1->2 c1  2->0 c2",
                      "((1 + 2) + 0), chunk 1", "equal bits    : yes", "with blocking sends in step 0",
                      "sends 56 B in 4 messages", "VERIFICATION: PASSED"):
            self.assertIn(words, done.stdout)

    def test_a_long_schedule_is_not_printed(self):
        done = run("schedule", "-a", "ring", "-k", 64, "-n", 10)
        self.assertLess(len(done.stdout.splitlines()), 30)
        self.assertIn("8064 transfers", done.stdout)

    def test_trace_ends_when_predicted(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            out = record("schedule", "-a", "hierarchical", "-k", 6, "--ranks-per-node", 3, "-n", 100000, "--alpha-between", "9e-6",
                         "--trace", path)
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            spans = [event for event in events if event["ph"] == "X"]
            self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in spans) * 1e-6, out["model"]["predicted_s"], places=12)
            self.assertEqual({e["pid"] for e in spans}, set(range(6)))
            rows = {}
            for span in spans:
                rows.setdefault((span["pid"], span["tid"]), []).append((span["ts"], span["ts"] + span["dur"]))
            for row in rows.values():
                row.sort()
                for (_, end), (start, _) in zip(row, row[1:]):
                    self.assertGreaterEqual(start, end - 1e-6)
            sent = sum(e["args"]["bytes"] for e in spans if e["cat"] == "send")
            self.assertEqual(sent, sum(r["bytes_sent"] for r in out["proof"]["ranks"]))

    def test_files_are_not_overwritten(self):
        with tempfile.TemporaryDirectory() as folder:
            for option in ("--json", "--trace"):
                path = os.path.join(folder, option)
                arguments = ("schedule", "-a", "tree", "-k", 2, "-n", 1, option, path)
                self.assertEqual(run(*arguments).returncode, 0)
                again = run(*arguments)
                self.assertEqual(again.returncode, 2)
                self.assertIn(option, again.stderr)
                self.assertEqual(run(*arguments, "--force").returncode, 0)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_once_under_a_launcher(self):
        done = run("schedule", "-a", "tree", "-k", 4, "-n", 1, ranks=2)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count("VERIFICATION"), 1)


class Simulate(unittest.TestCase):
    def test_rows_agree_with_schedule(self):
        machine = ("--alpha", "3e-6", "--beta", "2e-10", "--gamma", "7e-11", "--copy", "1e-11")
        out = record("simulate", "-k", 6, "--bytes", "4:1M", *machine)
        self.assertEqual([row["algo"] for row in out["rows"][:len(ALGORITHMS)]], ALGORITHMS)
        self.assertEqual(sorted({row["bytes"] for row in out["rows"]}), [4 ** i for i in range(1, 11)])
        for row in out["rows"]:
            if row["bytes"] in (4, 64, 1 << 20):
                one = record("schedule", "-a", row["algo"], "-k", 6, "-n", row["count"], *machine)
                self.assertAlmostEqual(row["predicted_s"], one["model"]["predicted_s"], places=12)
                self.assertEqual(row["bound"], one["model"]["bound"])
            self.assertGreaterEqual(row["predicted_s"] * (1 + 1e-9), row["bound_s"])
        for bytes_ in {row["bytes"] for row in out["rows"]}:
            rows = [row for row in out["rows"] if row["bytes"] == bytes_]
            best = [row for row in rows if row["best"]]
            self.assertEqual(len(best), 1)
            self.assertEqual(best[0]["predicted_s"], min(row["predicted_s"] for row in rows))

    def test_crossover_of_the_formula(self):
        # 2.4 alpha / beta bytes, from 3 (alpha + n beta) and 6 alpha + 2 * 7 / 8 n beta
        out = record("simulate", "-k", 8, "-a", "recursive_doubling,halving_doubling", "--alpha", "1e-6", "--beta", "1e-11",
                     "--gamma", 0)
        self.assertEqual([(c["from"], c["to"]) for c in out["crossovers"]], [("recursive_doubling", "halving_doubling")])
        self.assertLess(abs(out["crossovers"][0]["bytes"] / 2.4e5 - 1), 0.02)

    def test_the_book(self):
        for algorithm, ranks, milliseconds in (("naive", 4, 60), ("direct", 4, 15), ("naive", 5, 80)):
            out = record("simulate", "-k", ranks, "--bytes", 160000000, "-a", algorithm, "--alpha", 0, "--beta", 1 / 16e9, "--gamma", 0)
            self.assertAlmostEqual(out["rows"][0]["predicted_s"] * 1e3, milliseconds, places=6)

    def test_shared_memory(self):
        out = record("simulate", "-k", 4, "--model", "shared-memory", "--bytes", "64M", "--memory-bandwidth", "1e10", "--sync", 0)
        times = {row["algo"]: row["predicted_s"] for row in out["rows"]}
        self.assertAlmostEqual(times["fused"], 8 * 2 ** 26 / 1e10)
        self.assertAlmostEqual(times["ring"], 15 * 2 ** 26 / 1e10)
        self.assertEqual({row["bound"] for row in out["rows"]}, {"memory"})

    def test_fitted_here(self):
        for how in ({}, {"ranks": 2}) if MPIEXEC else ({},):
            out = record("simulate", "-k", 16, "--fit", "--bytes", "4:1M", **how)
            points = out["machine"]["fitted"]
            self.assertEqual(points[-1]["bytes"], 1 << 20)
            self.assertTrue(all(point["memory_bandwidth"] > 0 for point in points))
            self.assertTrue(all(row["predicted_s"] > 0 for row in out["rows"]))
            # The work that the bound is measured from; short, one signal, which a step takes many times as long as.
            out = record("simulate", "-k", 2, "--fit", "--bytes", "4:1M", **how)
            fused = {row["bytes"]: row for row in out["rows"] if row["algo"] == "fused"}
            for row in fused.values():
                self.assertLessEqual(row["bound_s"], row["predicted_s"])
            self.assertLess(fused[4]["predicted_s"], min(row["predicted_s"] for row in out["rows"] if row["bytes"] == 4 and row["algo"] != "fused") / 2)
        refused = run("simulate", "-k", 16, "--fit", "--alpha", "1e-6")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--fit and --alpha; expected one of them", refused.stderr)
        self.assertEqual(len(refused.stderr.strip().splitlines()), 1, refused.stderr)
        refused = run("simulate", "-k", 16, "--fit", "--devices", 1)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--devices", refused.stderr)

    def test_one_rank_takes_no_time(self):
        out = record("simulate", "-k", 1, "--bytes", "4")
        self.assertTrue(all(row["predicted_s"] == 0 and row["bound"] is None for row in out["rows"]))

    def test_many_ranks_fit_in_memory(self):
        out = record("simulate", "-k", 65536, "--ranks-per-node", 8, "--beta-between", "1e-10", timeout=600)
        self.assertEqual({row["algo"] for row in out["rows"]}, set(ALGORITHMS))
        self.assertEqual(max(row["bytes"] for row in out["rows"]), 16 << 30)
        self.assertTrue(all(math.isfinite(row["predicted_s"]) and row["predicted_s"] > 0 for row in out["rows"]))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self.assertLess(peak, 1 << 30)


class Refused(unittest.TestCase):
    def refuse(self, arguments, *words):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, f"{arguments}\n{done.stdout}\n{done.stderr}")
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_schedule(self):
        good = {"-a": "ring", "-k": 4, "-n": 100}
        for option, value, word in (("-a", "rign", "rign"), ("-a", "ring,tree", "one name"), ("-a", "", "--algorithm is empty"),
                                    ("-k", 0, "--ranks 0"), ("-k", 513, "513"), ("-k", "four", "four"), ("-n", -1, "--elements -1"),
                                    ("-n", 1 << 60, "--elements"), ("--alpha", -1, "--alpha"), ("--alpha", "nan", "--alpha"),
                                    ("--beta", "inf", "--beta"), ("--ports", 0, "--ports"), ("--element-bytes", 0, "--element-bytes"),
                                    ("--ranks-per-node", 3, "divisor"), ("--model", "fast", "fast"), ("--path", "short", "short"),
                                    ("--pipeline", -2, "--pipeline"), ("--memory-bandwidth", 0, "--memory-bandwidth"),
                                    ("--json", "no/such/folder/x", "no/such/folder"), ("--trace", "no/such/folder/x", "--trace")):
            with self.subTest(option=option, value=value):
                self.refuse(["schedule", *(x for pair in {**good, option: value}.items() for x in pair)], word)
        self.refuse(["schedule", "-a", "ring", "-k", 4], "elements")
        self.refuse(["schedule", "-a", "ring", "-k", 4, "-n", 1, "--model", "shared-memory", "--trace", "t"], "--trace")

    def test_simulate(self):
        for option, value, word in (("-k", 65537, "65537"), ("-k", 0, "--ranks"), ("--bytes", "1M:1K", "LOW:HIGH"),
                                    ("--bytes", "4Q", "4Q"), ("--bytes", "", "--bytes"), ("--bytes", "-4", "-4"),
                                    ("--bytes", "99999999999999999999", "--bytes"), ("--bytes", "9999999T", "--bytes"),
                                    ("--bytes", "2T", "1T"), ("--bytes", "0:3", "element"), ("--factor", 1, "--factor"),
                                    ("--factor", "nan", "--factor"), ("--algorithm", "all,ring", "all")):
            with self.subTest(option=option, value=value):
                self.refuse(["simulate", *(x for pair in {"-k": 8, option: value}.items() for x in pair)], word)
        self.refuse(["simulate"], "ranks")


if __name__ == "__main__":
    unittest.main(verbosity=2)
