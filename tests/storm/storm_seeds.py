"""Which storms the test suite runs: others for each commit, so that in time it sees all kinds."""

from pykcl.testing.storm.__main__ import current_commit, first_seed_of
from pykcl.testing.storm.faults import KINDS

COUNT = 100
COMMIT = current_commit()
FIRST = first_seed_of(COMMIT)
SEEDS = range(FIRST, FIRST + COUNT)

FINE_WEATHER = frozenset(KINDS)
"""Every kind of fault left out."""
