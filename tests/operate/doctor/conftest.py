import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from doctor_world import World


@pytest.fixture
def world(monkeypatch):
    """A healthy set-up: a stream of two shards, its lease table, and one pykcl worker whose heart beats."""
    with World(monkeypatch) as made:
        yield made
