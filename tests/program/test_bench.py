# SPDX-License-Identifier: Apache-2.0
"""lockstep bench kernels and info --roofline, as users run them."""
import unittest

from program import record, run


class Bench(unittest.TestCase):
    def test_each_kernel_has_work_a_time_and_a_limit(self):
        for arguments in (("bench", "kernels", "--samples", 1), ("info", "--roofline")):
            with self.subTest(arguments=arguments):
                out = record(*arguments, "--threads", 1)
                self.assertEqual((out["schema"], out["subcommand"]), ("lockstep/1", arguments[0]))
                for rate in ("flops_per_s", "l1_read_bytes_per_s", "l2_read_bytes_per_s", "shared_read_bytes_per_s",
                             "memory_copy_bytes_per_s"):
                    self.assertGreater(out["result"]["machine"][rate], 0)
                kernels = {kernel["name"]: kernel for kernel in out["result"]["kernels"]}
                for name in ("conv2d 2 data gradient", "conv2d 2 data gradient, gemm"):
                    self.assertEqual(kernels[name]["flops"], 2 * 16 * 1600000)
                # The same work, one beside the other.
                for name in kernels:
                    if name.endswith(", gemm"):
                        self.assertEqual(kernels[name]["flops"], kernels[name[:-6]]["flops"], name)
                for name, kernel in kernels.items():
                    self.assertGreater(kernel["seconds"], 0, name)
                    self.assertGreater(kernel["bytes"], 0, name)
                    self.assertIn(kernel["limit"], ("flops", "bytes"), name)

    def test_what_people_read(self):
        done = run("bench", "kernels", "--samples", 1, "--threads", 1)
        self.assertEqual(done.returncode, 0)
        for words in ("multiply-add peak", "conv2d 1 weight gradient", "exact sum of 16 rows", "fingerprints"):
            self.assertIn(words, done.stdout)

    def test_one_of_both(self):
        for conv, absent in (("direct", "conv2d 1 forward, gemm"), ("gemm", "conv2d 1 forward")):
            out = record("bench", "kernels", "--samples", 1, "--threads", 1, "--conv", conv)
            names = [kernel["name"] for kernel in out["result"]["kernels"]]
            self.assertIn("load images", names)
            self.assertIn("conv2d 1 forward" + (", gemm" if conv == "gemm" else ""), names)
            self.assertNotIn(absent, names)

    def test_nothing_to_time(self):
        for arguments in (("bench",), ("bench", "kernel"), ("bench", "kernels", "--samples", 0),
                          ("bench", "kernels", "--conv", "fft")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), arguments)


if __name__ == "__main__":
    unittest.main()
