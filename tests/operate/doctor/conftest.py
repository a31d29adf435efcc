import pytest
from doctor_world import World


@pytest.fixture
def world(monkeypatch):
    """A healthy set-up: a stream of two shards, its lease table, and one pykcl worker whose heart beats."""
    with World(monkeypatch) as made:
        yield made
