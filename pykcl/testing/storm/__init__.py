"""A storm: the unmodified worker, several of them, in simulation, with every fault we know, under judges.

`run_storm(seed)` is one fleet from birth through chaos to rest; `python -m pykcl.testing.storm --seeds 100` runs many,
also over a processor of your own.
"""

from pykcl.testing.storm.outcome import Outcome
from pykcl.testing.storm.promises import Promise, PromiseBroken
from pykcl.testing.storm.storm import run_storm

__all__ = ["Outcome", "Promise", "PromiseBroken", "run_storm"]
