# SPDX-License-Identifier: Apache-2.0
"""Every command of README.md and docs/ works as written. What is in ```sh blocks is run, line by line, on a small part of the
data: a stand-in for `lockstep` adds --train-images and the like. Commands that other tests or the CI's legs run, and those
for programs that are not here, are listed below."""
import glob
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from program import LOCKSTEP, MPIEXEC

SOURCE = os.environ["LOCKSTEP_SOURCE"]
# beginning of a command -> the file that runs it, and what must be in there
ELSEWHERE = {
    "scripts/quickstart": (".ci/run", "quickstart"),
    "scripts/check": (".ci/run", "scripts/check"),
    "cmake ": (".ci/install", "cmake"),
    "ctest ": ("scripts/check", "ctest"),
    "lockstep verify --faults": ("tests/program/test_verify.py", "--faults"),
}
ABSENT_HERE = ("spack ", "sbatch ", "scripts/flux/", "ramble ")  # in ```console blocks and tables only
STAND_IN = f"""#!/usr/bin/env bash
case $1 in
  train)
    arguments=()
    for argument in "$@"; do
      [ "$before" = --epochs ] && argument=1
      arguments+=("$argument")
      before=$argument
    done
    [[ " $* " == *" --data "* ]] || arguments+=(--data synthetic)
    [[ " $* " == *" --train-images "* ]] || arguments+=(--train-images 600 --test-images 50)
    exec {shlex.quote(LOCKSTEP)} "${{arguments[@]}}" ;;
  verify)
    [[ " $* " == *" --only "* ]] || set -- "$@" --only layers
    [[ " $* " == *" --quick "* ]] || set -- "$@" --quick
    exec {shlex.quote(LOCKSTEP)} "$@" ;;
  study)
    [ "$2" != batch ] || set -- "$@" --epochs 1 --seeds 1 --train-images 300
    exec {shlex.quote(LOCKSTEP)} "$@" --quick ;;
  allreduce) exec {shlex.quote(LOCKSTEP)} "$@" --iters 2 ;;
  *) exec {shlex.quote(LOCKSTEP)} "$@" ;;
esac
"""


def pages():
    return [os.path.join(SOURCE, "README.md"), *sorted(glob.glob(os.path.join(SOURCE, "docs", "*.md")))]


def read(path):
    with open(path) as file:
        return file.read()


def blocks(text, language):
    return re.findall(rf"(?ms)^ *```{language}\n(.*?)^ *```$", text)


def commands(block):
    joined = block.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]


class Commands(unittest.TestCase):
    def environment(self, folder):
        tools = os.path.join(folder, "bin")
        os.mkdir(tools)
        with open(os.path.join(tools, "lockstep"), "w") as file:
            file.write(STAND_IN)
        os.chmod(os.path.join(tools, "lockstep"), 0o755)
        if MPIEXEC:
            os.symlink(MPIEXEC[0], os.path.join(tools, "mpirun"))
        for name in ("scripts", "spack", "tests", "docs"):
            os.symlink(os.path.join(SOURCE, name), os.path.join(folder, name))
        # The interpreter of these tests has Matplotlib, which scripts/plot wants.
        python = os.path.dirname(sys.executable)
        return {**os.environ, "PATH": f"{tools}:{python}:{os.environ['PATH']}", "LOCKSTEP": os.path.join(tools, "lockstep"), "OMP_NUM_THREADS": "1"}

    def test_every_command_works(self):
        ran = 0
        for page in pages():
            with tempfile.TemporaryDirectory() as folder:
                environment = self.environment(folder)
                for block in blocks(read(page), "sh"):
                    for command in commands(block):
                        if any(command.startswith(start) for start in ELSEWHERE):
                            continue
                        if "mpirun" in command and not MPIEXEC:
                            continue
                        with self.subTest(page=os.path.basename(page), command=command):
                            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                                  capture_output=True, text=True, timeout=120)
                            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
                            ran += 1
        self.assertGreater(ran, 10)

    def test_what_runs_elsewhere_does(self):
        for start, (path, word) in ELSEWHERE.items():
            self.assertIn(word, read(os.path.join(SOURCE, path)), start)

    def test_options_of_all_commands_exist(self):
        """Also of those that are not run."""
        for page in pages():
            for name, rest in re.findall(r"(?m)\blockstep ((?:study )?\w+)((?: +-[^`|#\n]*)?)", "\n".join(blocks(read(page), r"(?:sh|console)"))):
                helped = subprocess.run([LOCKSTEP, *name.split(), "--help"], capture_output=True, text=True)
                self.assertEqual(helped.returncode, 0, f"{page}: lockstep {name}")
                for option in re.findall(r"(?:^| )--([\w-]+)", rest):
                    self.assertIn(f"--{option} ", helped.stdout.replace("\n", " \n").replace("]", " ]") + " ", f"{page}: lockstep {name}")

    def test_other_programs_stay_in_console_blocks(self):
        for page in pages():
            for block in blocks(read(page), "sh"):
                for command in commands(block):
                    self.assertFalse(command.startswith(ABSENT_HERE), f"{page}: {command}")

    def test_scripts_and_links_exist(self):
        for page in pages():
            text = read(page)
            for target in re.findall(r"\]\(((?!https?:)[^)#]+)", text):
                self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), target)), f"{page}: {target}")
            for path in re.findall(r"`((?:scripts|spack|tests|docs|miniapp|kernels|comm|verify|cmake|\.ci)/[\w./-]+)", text):
                self.assertTrue(os.path.exists(os.path.join(SOURCE, path)), f"{page}: {path}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
