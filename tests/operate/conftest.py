import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

from fleet_table import FleetTable, SteppingClock


@pytest.fixture
def clock():
    return SteppingClock()


@pytest.fixture
def table(clock):
    """A lease table in memory, empty, and a clock that only waiting moves."""
    return FleetTable(clock)
