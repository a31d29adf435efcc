"""Seeds of the simulations that the suite runs: a few fixed ones, and with --slow others for each commit.

STORM_FIRST_SEED names the first of the latter instead: whoever has to judge a change by the same simulations as the last.
"""

import os

from pykcl.testing.storm.__main__ import current_commit, first_seed_of
from pykcl.testing.storm.faults import KINDS

FIXED = (3, 5, 7, 11, 13, 17, 19, 23)
"""The same whatever the commit: a change of the docs breaks no test."""
COUNT = 100
COMMIT = current_commit()
FIRST = int(os.environ.get("STORM_FIRST_SEED", first_seed_of(COMMIT)))
SEEDS = range(FIRST, FIRST + COUNT)

FINE_WEATHER = frozenset(KINDS)
"""Every kind of fault left out."""
