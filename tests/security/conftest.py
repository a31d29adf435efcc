"""Hostile input: whatever comes from outside ends in a value or in an error of ours, and nothing of it in a log."""

import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

from hostile_wire import HostileWire


@pytest.fixture(scope="module")
def hostile_wire() -> HostileWire:
    return HostileWire()
