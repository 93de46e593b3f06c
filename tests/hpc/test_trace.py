# SPDX-License-Identifier: Apache-2.0
"""--trace and --timers: a timeline that a viewer can read, and numbers that add up."""
import json
import os
import re
import tempfile
import unittest
from collections import defaultdict

from program import MPIEXEC, record, run

SMALL = ["train", "--data", "synthetic", "--train-images", 600, "--test-images", 50, "--epochs", 1]


class Trace(unittest.TestCase):
    def trace(self, *options, **how):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            done = run(*SMALL, "--trace", path, *options, **how)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path) as file:
                timeline = json.load(file)
        self.assertEqual(timeline["otherData"]["events_dropped"], 0)
        names = {(event["pid"], event["tid"]): event["args"]["name"] for event in timeline["traceEvents"] if event["name"] == "thread_name"}
        tracks = defaultdict(list)
        for event in timeline["traceEvents"]:
            if event["ph"] == "X":
                tracks[names[event["pid"], event["tid"]], event["pid"]].append(event)
            else:
                self.assertEqual(event["ph"], "M")
        for events in tracks.values():
            self.check_nesting(events)
        return tracks

    def check_nesting(self, events):
        """On one track an event lies inside another or apart from it."""
        open_until = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = event["ts"], event["ts"] + event["dur"]
            self.assertGreaterEqual(event["dur"], 0)
            self.assertGreaterEqual(begin, 0)
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            if open_until:
                self.assertLessEqual(end, open_until[-1] + 1e-3, event)
            open_until.append(end)

    def test_in_process(self):
        tracks = self.trace("--devices", 3)
        self.assertEqual({name for name, _ in tracks}, {"host", "device 0", "device 1", "device 2"})
        host = [event["name"] for event in tracks["host", 0]]
        self.assertEqual(host.count("lockstep::trainer::step"), 3)
        shards = defaultdict(set)
        for device in range(3):
            events = tracks[f"device {device}", 0]
            names = {event["name"] for event in events}
            self.assertEqual([event["args"]["detail"] for event in events if event["name"] == "lockstep::trainer::bucket"],
                             3 * ["1 of 1, W1 to b4, loss, 1032552 bytes"])
            self.assertLessEqual({"lockstep::trainer::shards", "lockstep::executor::gradients", "lockstep::comm::copy_from",
                                  "lockstep::comm::reduce_from", "lockstep::kernels::sgd"}, names)
            for event in events:
                detail = event.get("args", {}).get("detail", "")
                if event["name"] == "lockstep::trainer::shards":
                    first, last, of = map(int, re.fullmatch(r"(\d+) to (\d+) of (\d+)", detail).groups())
                    shards[of].update(range(first, last + 1))
                if event["name"].endswith("_from"):
                    self.assertEqual(re.fullmatch(r"rank \d to (\d), \d+ bytes", detail).group(1), str(device))
        for of, seen in shards.items():
            self.assertEqual(seen, set(range(of)))

    def test_overlap(self):
        """Buckets on tracks of their own beside the segments of backward, while which they are reduced."""
        # On a busy machine the thread may get its turn only when the step waits for it.
        self.assertTrue(any(self.overlapped() > 0 for _ in range(10)))

    def overlapped(self):
        tracks = self.trace("--devices", 3, "--bucket-bytes", 110000, "--overlap", "on")
        devices = [f"device {device}" for device in range(3)]
        self.assertEqual({name for name, _ in tracks}, {"host", *devices, *(f"{name}, communication" for name in devices)})
        inside = lambda event, outer: outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + 1e-3
        together = lambda a, b: a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"]
        named = lambda track, name: [event for event in track if event["name"] == f"lockstep::{name}"]
        overlapped = 0
        for device in devices:
            compute, communication = tracks[device, 0], tracks[f"{device}, communication", 0]
            segments, buckets = named(compute, "executor::segment"), named(communication, "trainer::bucket")
            self.assertEqual([event["args"]["detail"] for event in segments],
                             3 * ["forward and backward through layers 9 to 7", "backward through layers 6 to 1"])
            self.assertEqual([event["args"]["detail"] for event in buckets],
                             3 * ["1 of 3, b3 to b4, loss, 11352 bytes", "2 of 3, W3, 819200 bytes", "3 of 3, W1 to b2, 202000 bytes"])
            transfers = named(communication, "comm::reduce_from") + named(communication, "comm::copy_from")
            for bucket in buckets:
                self.assertTrue(any(inside(event, bucket) for event in transfers), bucket)
            # Exponents are agreed once a bucket, and waited for; and all buckets once a step.
            self.assertEqual(len(named(compute, "trainer::wait")), 3 * 4)
            overlapped += sum(together(bucket, segment) for bucket in buckets for segment in segments)
        return overlapped

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_processes(self):
        tracks = self.trace("--devices", 2, "--allreduce", "tree", ranks=2)
        self.assertEqual(set(tracks), {("host", 0), ("device 0", 0), ("device 1", 0), ("host", 1), ("device 2", 1), ("device 3", 1)})
        self.assertTrue(any(event["name"] == "lockstep::comm::wait" for events in tracks.values() for event in events))
        # One clock: the first steps of both processes overlap.
        first = [min(event["ts"] for event in tracks["host", process] if event["name"] == "lockstep::trainer::step") for process in (0, 1)]
        last = [max(event["ts"] for event in tracks["host", process]) for process in (0, 1)]
        self.assertLess(max(first), min(last))

    def test_never_overwrites(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            with open(path, "w") as file:
                file.write("mine")
            done = run(*SMALL, "--trace", path)
            self.assertEqual(done.returncode, 2)
            self.assertIn("the file exists", done.stderr)
            with open(path) as file:
                self.assertEqual(file.read(), "mine")
            self.assertEqual(run(*SMALL, "--trace", path, "--force").returncode, 0)
        self.assertEqual(run(*SMALL, "--trace", "no/such/folder/x").returncode, 2)


class Timers(unittest.TestCase):
    def test_table_and_record(self):
        plain, timed = record(*SMALL, "--devices", 2), record(*SMALL, "--devices", 2, "--timers")
        self.assertEqual(plain["result"]["parameters_sha256"], timed["result"]["parameters_sha256"])
        self.assertNotIn("timers", plain)
        timers = {timer["name"]: timer for timer in timed["timers"]}
        self.assertEqual(timers["lockstep::trainer::step"]["calls"], 3)
        self.assertEqual(timers["lockstep::executor::gradients"]["calls"], 6)
        for timer in timers.values():
            self.assertLessEqual(timer["own_seconds"], timer["seconds"] * (1 + 1e-9) + 1e-9)
        # Kernels know themselves, steps what they launched on both devices.
        kernels = [timer for name, timer in timers.items() if "gradient" in name or "::kernels::" in name]
        self.assertEqual(timers["lockstep::kernels::sgd"]["launches"], 6)
        launches, fills = timers["lockstep::trainer::step"]["launches"], timers.get("Kokkos::ViewFill-1D", {"launches": 0})["launches"]
        self.assertGreaterEqual(launches, sum(timer["launches"] for timer in kernels))
        self.assertLessEqual(launches, sum(timer["launches"] for timer in kernels) + fills + timers["lockstep::comm::allreduce"]["launches"])
        own = sum(timer["own_seconds"] for timer in timers.values())
        step = timers["lockstep::trainer::step"]["seconds"]
        self.assertGreaterEqual(own, step * 0.999)
        self.assertLess(own - step, 1.5 * sum(timers[name]["seconds"] for name in timers if "evaluate" in name or "count" in name) + 0.05)
        table = run(*SMALL, "--timers").stdout
        self.assertRegex(table, r"(?m)^ +[\d.]+ +[\d.]+ % +[\d.]+ +3  lockstep::trainer::step$")
        self.assertRegex(table, r"(?m)^kernel launches a step : [1-9][\d.]*$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
