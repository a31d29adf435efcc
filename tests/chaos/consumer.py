"""What the workers of a run process with: the consumer of all fleets of processes, in a build that may be a wrong one."""

import os

import chaos_breaks
from fleet_consumer import Consumer

__all__ = ["Consumer"]

chaos_breaks.apply(os.environ.get(chaos_breaks.BREAK_VARIABLE, ""))
