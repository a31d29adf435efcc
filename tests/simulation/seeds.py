"""Seeds of the simulations that the suite runs: a few fixed ones, and with --slow others for each commit.

PYKCL_FIRST_SEED names the first of the latter instead, to repeat the simulations of another commit.
"""

import os
import re
import subprocess

from tests.simulation.faults import KINDS

FIXED_COMMIT = "0" * 12
"""Stands for the commit outside of a git repository."""


def current_commit() -> str:
    """Return the commit of the working folder, with a + when files differ from it; FIXED_COMMIT outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return FIXED_COMMIT
    found = done.stdout.strip()
    return found if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{7,}\+?", found) else FIXED_COMMIT


def first_seed_of(commit: str) -> int:
    """Return the first seed of a commit: each has others, so that in time all kinds of simulations run."""
    return int(commit[:7], 16) * 1000


FIXED = (3, 5, 7, 11, 13, 17, 19, 23)
"""The same whatever the commit: a change of the docs breaks no test."""
COUNT = 100
COMMIT = current_commit()
FIRST = int(os.environ.get("PYKCL_FIRST_SEED", first_seed_of(COMMIT)))
SEEDS = range(FIRST, FIRST + COUNT)

NO_FAULTS = frozenset(KINDS)
"""Every kind of fault left out."""
