import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "operate"))

from fleet_table import FleetTable, SteppingClock
from ui_page import Page

from pykcl.runtime import SystemRuntime


@pytest.fixture
def clock():
    return SteppingClock()


@pytest.fixture
def table(clock):
    """A lease table in memory, empty, and a clock that only waiting moves."""
    return FleetTable(clock)


@pytest.fixture
def live_table():
    """The same in real time, for what is really served."""
    return FleetTable(SystemRuntime())


@pytest.fixture
def page(live_table):
    """A page over that table that really answers."""
    with Page(live_table) as served:
        yield served
