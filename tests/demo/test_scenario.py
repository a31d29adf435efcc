"""The fleet as the demo reads it."""

import pytest

from pykcl.demo.scenario import FleetObserver
from pykcl.demo.view import DemoState
from pykcl.errors import TableGone, TemporaryError


class FailingTable:
    def __init__(self, error):
        self.error = error

    def scan(self):
        raise self.error


def observer_of(error):
    return FleetObserver(None, FailingTable(error), None, None, DemoState("http://127.0.0.1", 1, 4))


def test_a_fleet_whose_table_no_worker_has_created_yet_has_no_leases():
    """On a slow machine the first worker reports something, such as a call that is late, before it has a table."""
    observer = observer_of(TableGone("there is no table"))
    observer.scan()
    assert observer.leases == {}
    observer.leases = {"shardId-000000000000": object()}
    with pytest.raises(TableGone):
        observer.scan()


def test_what_the_last_scan_found_stands_while_the_table_does_not_answer():
    observer = observer_of(TemporaryError("no answer in time"))
    observer.leases = found = {"shardId-000000000000": object()}
    observer.scan()
    assert observer.leases == found
