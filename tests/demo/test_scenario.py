"""The fleet as the demo reads it."""

import pytest

from pykcl.demo.scenario import FleetObserver
from pykcl.demo.view import DemoState
from pykcl.errors import TableGone


class MissingTable:
    def scan(self):
        raise TableGone("there is no table")


def test_a_fleet_whose_table_no_worker_has_created_yet_has_no_leases():
    """On a slow machine the first worker reports something, such as a call that is late, before it has a table."""
    observer = FleetObserver(None, MissingTable(), None, None, DemoState("http://127.0.0.1", 1, 4))
    observer.scan()
    assert observer.leases == {}
    observer.leases = {"shardId-000000000000": object()}
    with pytest.raises(TableGone):
        observer.scan()
