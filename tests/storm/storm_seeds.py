"""Which storms the test suite runs: others for each commit, so that in time it sees all kinds.

STORM_FIRST_SEED names the first one instead: whoever has to judge a change by the same storms as the last one.
"""

import os

from pykcl.testing.storm.__main__ import current_commit, first_seed_of
from pykcl.testing.storm.faults import KINDS

COUNT = 100
COMMIT = current_commit()
FIRST = int(os.environ.get("STORM_FIRST_SEED", first_seed_of(COMMIT)))
SEEDS = range(FIRST, FIRST + COUNT)

FINE_WEATHER = frozenset(KINDS)
"""Every kind of fault left out."""
