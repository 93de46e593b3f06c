# SPDX-License-Identifier: Apache-2.0
"""Runs the built program as a user does. Paths come from ctest's environment."""
import json
import os
import subprocess

LOCKSTEP = os.environ["LOCKSTEP"]
MPIEXEC = os.environ.get("LOCKSTEP_MPIEXEC", "").split()  # empty in a build without MPI


def run(*arguments, ranks=0, environment=None, timeout=120):
    """ranks = 0: without a launcher. Returns the finished process with text output."""
    launcher = MPIEXEC + [str(ranks)] if ranks else []
    return subprocess.run(launcher + [LOCKSTEP, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(environment or {})})


def record(*arguments, **how):
    """The JSON record of a run that must succeed."""
    done = run(*arguments, "--json", "-", **how)
    if done.returncode != 0:
        raise AssertionError(f"{arguments} {how}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(f"{word} is not JSON")))
