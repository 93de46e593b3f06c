# SPDX-License-Identifier: Apache-2.0
"""Man page and completion come from the option tables: what --help lists is in both."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from program import run


def commands():
    lines = run("--help").stdout.split("Commands:\n")[1].splitlines()
    return [re.split("  +", line)[1] for line in lines if not line.startswith("  man,")]


def usage(command):
    return re.match(r"Usage: (.*) \[options\]", run(*command.split(), "--help").stdout)[1]


def options(command):
    return re.findall(r"(?m)^\s+(?:-(\w) \[ )?--([\w-]+)", run(*command.split(), "--help").stdout)


class Manual(unittest.TestCase):
    def test_has_every_option(self):
        page = run("man").stdout.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
        self.assertTrue(page.startswith(".TH LOCKSTEP 1"))
        sections = dict(re.findall(r"(?ms)^\.SS (lockstep [\w ]+)$(.*?)(?=^\.S[SH] )", page))
        self.assertEqual(list(sections), [usage(command) for command in commands()])
        self.assertIn("lockstep bench kernels", sections)
        for command, section in zip(commands(), sections.values()):
            for letter, name in options(command):
                if name != "help":
                    self.assertRegex(section, rf"(?m)^{f'-{letter}, ' if letter else ''}--{name}( value)?$")
        for code in range(5):
            self.assertRegex(page, rf"(?m)^\.TP\n{code}\n")

    @unittest.skipUnless(shutil.which("man"), "no man")
    def test_is_roff(self):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(run("man").stdout)
            file.flush()
            done = subprocess.run(["man", "--warnings=all", "-E", "UTF-8", "-l", file.name], capture_output=True, text=True,
                                  env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
        if done.returncode:
            self.skipTest(done.stderr)
        self.assertEqual([line for line in done.stderr.splitlines() if "can't break line" not in line], [])
        self.assertIn("EXIT STATUS", done.stdout)


@unittest.skipUnless(shutil.which("bash"), "no bash")
class Completion(unittest.TestCase):
    def complete(self, *words):
        """What bash would offer after these words; the last is the one being typed."""
        script = run("completion").stdout + f"""
COMP_WORDS=({' '.join(repr(word) for word in words)})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_lockstep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
        done = subprocess.run(["bash", "-u", "-c", script], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_commands(self):
        self.assertEqual(self.complete("lockstep", ""), [*dict.fromkeys(command.split()[0] for command in commands()), "help"])
        self.assertIn("batch", self.complete("lockstep", "study", ""))
        self.assertEqual(self.complete("lockstep", "study", "ba"), ["batch"])
        self.assertEqual(self.complete("lockstep", "tr"), ["train"])

    def test_options(self):
        for command in commands():
            self.assertEqual(sorted(self.complete("lockstep", *command.split(), "--")), sorted({"--help"} | {"--" + name for _, name in options(command)}))
        self.assertEqual(self.complete("lockstep", "train", "--tra"), ["--train-images", "--trace"])

    def test_values(self):
        self.assertIn("ring", self.complete("lockstep", "train", "--allreduce", ""))
        self.assertEqual(self.complete("lockstep", "train", "--reduction", ""), ["exact", "float"])
        self.assertEqual(self.complete("lockstep", "train", "--fuse", "of"), ["off"])
        self.assertEqual(self.complete("lockstep", "train", "--json", ""), [])  # bash goes on with file names


class Info(unittest.TestCase):
    def test_prints_build_machine_and_data(self):
        text = run("info").stdout
        for key in ("Lockstep", "Kokkos", "compiler", "MPI", "host", "cores", "affinity", "threads", "data"):
            self.assertRegex(text, rf"(?m)^{key} : \S")
        self.assertIn("Kokkos configuration:", text)

    def test_names_data_that_cannot_be_used(self):
        done = run("info", environment={"LOCKSTEP_DATA": "/nowhere"})
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"(?m)^data : unusable: .*/nowhere")


if __name__ == "__main__":
    unittest.main(verbosity=2)
