# SPDX-License-Identifier: Apache-2.0
"""Bad input gives one line that names what was found and what was expected, exit code 2, and no trace."""
import gzip
import json
import os
import resource
import shutil
import struct
import subprocess
import tempfile
import unittest

from program import LOCKSTEP, MPIEXEC, record, run

TINY = ["train", "--data", "synthetic", "--train-images", 300, "--test-images", 10, "--epochs", 1]
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def images(count, side=28):
    return struct.pack(">4I", 0x803, count, side, side) + bytes(i % 251 for i in range(count * side * side))


def labels(count):
    return struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count))


class Refused(unittest.TestCase):
    def refuse(self, arguments, *words, code=2, **how):
        done = run(*arguments, **how)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])


class Options(Refused):
    def test_commands(self):
        self.refuse([], "no command")
        self.refuse(["trian"], "trian")

    def test_unknown_and_malformed(self):
        self.refuse(["train", "--bogus"], "--bogus")
        self.refuse(["train", "--batch"], "batch")
        self.refuse(["train", "--batch", "many"], "batch", "many")
        self.refuse(["train", "--epoch", "3"], "--epoch")
        self.refuse(["train", "left-over"], "train")

    def test_out_of_range(self):
        for option, value in (("--devices", 0), ("--devices", -1), ("--batch", 0), ("--epochs", -1), ("--steps", -5), ("--seed", -1),
                              ("--lr", "nan"), ("--lr", -0.1), ("--timeout", 0), ("--threads", -2), ("--accumulate", 0),
                              ("--allreduce", "rings"), ("--reduction", "double"), ("--conv", "both"), ("--fuse", "maybe"),
                              ("--bucket-bytes", -1), ("--overlap", "yes"), ("--lr-rule", "square"), ("--base-batch", 0),
                              ("--warmup-epochs", -1), ("--warmup-epochs", 2),
                              ("--weights", "1,2"), ("--weights", "0"), ("--weights", "1,"), ("--weights", "-1"),
                              ("--batch", 99999999999999999999)):
            with self.subTest(option=option, value=value):
                self.refuse(["train", "--data", "synthetic", option, value], option.lstrip("-"))

    def test_two_bucket_layouts(self):
        self.refuse(["train", "--data", "synthetic", "--fuse", "off", "--bucket-bytes", 4096], "--fuse off", "--bucket-bytes 4096")

    def test_a_graph_without_gpus(self):
        if "GPU runtime : none" not in run("info").stdout:
            self.skipTest("built for GPUs")
        self.refuse(["train", "--data", "synthetic", "--graph"], "--graph in a program whose devices are ", "built for CUDA or HIP")

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_ranks_with_other_buckets(self):
        script = 'exec "$0" train --data synthetic --train-images 300 --test-images 10 --bucket-bytes $((1 + ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}))'
        done = subprocess.run(MPIEXEC + ["2", "sh", "-c", script, LOCKSTEP], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "process 1: arguments 'train .* --bucket-bytes 2'; expected process 0's, 'train .* --bucket-bytes 1'")
        self.assertEqual(done.stderr.count("lockstep: "), 1)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_ranks_with_other_data(self):
        script = 'cd $0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$@"'
        with tempfile.TemporaryDirectory() as folder:
            for rank in (0, 1):
                os.makedirs(os.path.join(folder, str(rank), "data"))
                for name, content in zip(FILES, (images(20 + rank), labels(20 + rank), images(10), labels(10))):
                    with open(os.path.join(folder, str(rank), "data", name), "wb") as file:
                        file.write(content)
            done = subprocess.run(MPIEXEC + ["2", "sh", "-c", script, folder, LOCKSTEP, "train", "--data", "data", "--epochs", "1"],
                                  capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "the training set differs between ranks: rank 1 has '21 images, .*'; expected '20 images, .*'")

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_a_process_that_does_not_start(self):
        script = '[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] || exec sleep 60; exec "$@"'
        done = subprocess.run(MPIEXEC + ["2", "sh", "-c", script, "sh", LOCKSTEP, *map(str, TINY), "--timeout", "2"], capture_output=True, text=True,
                              timeout=30)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("lockstep: deadline passed: not all of 2 processes had started MPI after 2 s\n", done.stderr)

    def test_numbers_of_threads(self):
        self.refuse([*TINY, "--threads", 600], "--threads 600", "512")
        for value in ("0", "-3", "abc", "", "600", "99999999999999999999", "2;"):
            done = run(*TINY, environment={"OMP_NUM_THREADS": value})
            self.assertEqual(done.returncode, 2, value)
            self.assertIn(f"OMP_NUM_THREADS is '{value}', expected a number from 1 to 512", done.stderr)
        two = record(*TINY, "--threads", 2)["environment"]["threads"]  # 1 where Kokkos has no threads
        for value in ("2,1", " 2 "):
            self.assertEqual(record(*TINY, environment={"OMP_NUM_THREADS": value})["environment"]["threads"], two)

    def test_empty_values(self):
        for option in ("--json", "--resume", "--checkpoint", "--save", "--weights", "--trace"):
            self.refuse([*TINY, option, ""], f"{option} is empty")
        self.refuse(["train", "--data", ""], "--data is empty")
        self.refuse(["verify", "--only", ""], "--only is empty")
        self.refuse(["verify", "--only", ","], "--only ; expected one of")

    def test_places_that_are_no_files(self):
        with tempfile.TemporaryDirectory() as folder:
            place = lambda name: os.path.join(folder, name)
            self.refuse([*TINY, "--json", folder, "--force"], folder, "found a folder")
            os.symlink(place("nothing"), place("link"))
            self.refuse([*TINY, "--json", place("link")], "link to nothing")
            self.refuse([*TINY, "--json", place("n" * 250)], "cannot be written", "File name too long")
            os.symlink(place("real"), place("alias"))
            for name in ("real", "real.tmp"):
                with open(place(name), "w") as file:
                    file.write("mine")
            self.refuse([*TINY, "--json", place("alias")], "the file exists")
            self.assertEqual(run(*TINY, "--json", place("alias"), "--force").returncode, 0)
            self.assertTrue(os.path.islink(place("alias")))
            with open(place("real")) as file:
                self.assertEqual(json.load(file)["subcommand"], "train")
            with open(place("real.tmp")) as file:
                self.assertEqual(file.read(), "mine")
            self.assertEqual(run(*TINY, "--json", "/dev/null").returncode, 0)
            self.assertFalse(os.path.isfile("/dev/null"))
            self.refuse([*TINY, "--json", place("a"), "--trace", f"{folder}/../{os.path.basename(folder)}/a"], "given for --json too")
            self.assertEqual(sorted(os.listdir(folder)), ["alias", "link", "real", "real.tmp"])

    def test_full_disks(self):
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([LOCKSTEP, *map(str, TINY)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (4, "lockstep: standard output could not be written\n"))
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
            done = subprocess.run([LOCKSTEP, "schedule", "-a", "direct", "-k", "64", "-n", "1000", "--trace", trace], capture_output=True, text=True,
                                  timeout=60, preexec_fn=limit)
            self.assertEqual((done.returncode, os.listdir(folder)), (4, []), done.stderr)
            # MPI has files of its own, and may say so.
            self.assertRegex("\n".join(line for line in done.stderr.splitlines() if line.startswith("lockstep: ")), "^.*: File too large$")

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_only_the_first_process_needs_the_folder_of_the_record(self):
        script = 'mkdir -p $0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; cd $0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; [ $PWD != $0/0 ] || mkdir -p sub; exec "$@"'
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(MPIEXEC + ["2", "sh", "-c", script, folder, LOCKSTEP, *map(str, TINY), "--json", "sub/record.json"], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(os.listdir(os.path.join(folder, "0", "sub")), ["record.json"])
        done = run("train", "--json", "no/such/folder/x.json", ranks=2)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("no/such/folder"), 1)

    def test_two_outputs_at_one_place(self):
        self.refuse([*TINY, "--json", "-", "--trace", "-"], "--trace -", "expected another file")
        self.refuse(["verify", "--json", "-", "--junit", "-"], "--junit -", "expected another file")
        for option in ("--save", "--save-allreduce-table"):
            self.refuse([*TINY, "--allreduce", "auto", option, "-"], f"{option} -", "expected a file")
        done = run(*TINY, "--trace", "-")
        self.assertIn("traceEvents", json.loads(done.stdout))
        self.assertIn("VERIFICATION: PASSED", done.stderr)

    def test_tables_of_algorithms(self):
        with tempfile.TemporaryDirectory() as folder:
            table = os.path.join(folder, "table")
            for option in ("--allreduce-table", "--save-allreduce-table"):
                self.refuse([*TINY, option, table], f"{option} {table}", "expected --allreduce auto")
            save = [*TINY, "--devices", 2, "--allreduce", "auto", "--save-allreduce-table", table]
            self.assertEqual(run(*save).returncode, 0)
            self.refuse(save, table, "the file exists")
            self.assertEqual(run(*save, "--force").returncode, 0)

    def test_what_is_not_text(self):
        """Bytes that are not UTF-8 do not cost the record of a run."""
        done = subprocess.run([os.fsencode(LOCKSTEP), *map(os.fsencode, map(str, TINY)), b"--json", b"-"], capture_output=True, timeout=60,
                              env={**os.environb, b"SLURM_JOB_ID": b"7\xff"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["environment"]["SLURM_JOB_ID"], "7\ufffd")

    def test_more_images_than_there_are(self):
        self.refuse(["train", "--data", "synthetic", "--train-images", 60001], "60001", "60000")

    def test_record_in_a_missing_folder(self):
        self.refuse(["train", "--json", "no/such/folder/x.json"], "no/such/folder")

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_once_under_a_launcher(self):
        done = run("train", "--bogus", ranks=2)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("--bogus"), 1)


class DataFiles(Refused):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for name, content in zip(FILES, (images(20), labels(20), images(10), labels(10))):
            self.write(name, content)

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)

    def refuse_data(self, *words):
        self.refuse(["train", "--data", self.folder, "--epochs", 1], *words)

    def test_good_files_train(self):
        self.assertEqual(run("train", "--data", self.folder, "--epochs", 1).returncode, 0)
        for name in FILES:  # by content, not by name
            with open(os.path.join(self.folder, name), "rb") as file:
                self.write(name, gzip.compress(file.read()))
        self.assertEqual(run("train", "--data", self.folder, "--epochs", 1).returncode, 0)

    def test_missing(self):
        os.remove(os.path.join(self.folder, FILES[2]))
        self.refuse_data(FILES[2])
        self.refuse(["train", "--data", os.path.join(self.folder, "nowhere")], "nowhere")

    def test_error_page(self):
        self.write(FILES[0], b"<!DOCTYPE html><html>404 Not Found</html>" * 18)
        self.refuse_data(FILES[0], "<!")

    def test_empty_and_truncated(self):
        self.write(FILES[1], b"")
        self.refuse_data(FILES[1])
        self.write(FILES[1], labels(20)[:-3])
        self.refuse_data(FILES[1], "28", "25")
        self.write(FILES[1], labels(20)[:6])
        self.refuse_data(FILES[1])
        self.write(FILES[1], gzip.compress(labels(20))[:-9])
        self.refuse_data(FILES[1])

    def test_corrupt_archive(self):
        content = bytearray(gzip.compress(images(20)))
        content[len(content) // 2] ^= 0x55
        self.write(FILES[0], bytes(content))
        self.refuse_data(FILES[0])

    def test_trailing_bytes(self):
        self.write(FILES[0], images(20) + b"x")
        self.refuse_data(FILES[0], "more than 15696 bytes", "expected 15696")
        self.write(FILES[0], gzip.compress(images(20)) + b"rubbish")
        self.refuse_data(FILES[0])

    def test_wrong_header(self):
        self.write(FILES[0], labels(20))
        self.refuse_data(FILES[0], "0x00000803", "0x00000801")
        self.write(FILES[0], struct.pack("<4I", 0x803, 20, 28, 28) + images(20)[16:])
        self.refuse_data(FILES[0], "byte order")
        self.write(FILES[0], struct.pack(">4I", 0x803, 20, 27, 28) + bytes(20 * 27 * 28))
        self.refuse_data(FILES[0], "27")
        self.write(FILES[0], struct.pack(">4I", 0x803, 0xFFFFFFFF, 28, 28) + images(20)[16:])
        self.refuse_data(FILES[0], "4294967295")

    def test_label_out_of_range(self):
        content = bytearray(labels(20))
        content[8 + 7] = 10
        self.write(FILES[1], bytes(content))
        self.refuse_data(FILES[1], "10")

    def test_unequal_numbers(self):
        self.write(FILES[1], labels(19))
        self.refuse_data("20", "19")

    def test_folder_instead_of_file(self):
        os.remove(os.path.join(self.folder, FILES[3]))
        os.mkdir(os.path.join(self.folder, FILES[3]))
        self.refuse_data(FILES[3])


if __name__ == "__main__":
    unittest.main(verbosity=2)
