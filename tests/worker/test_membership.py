"""The leases that a leader of KCL 3.x has assigned, as the worker finds them."""

from contextlib import suppress
from random import Random
from threading import Lock
from types import SimpleNamespace

import pytest

from pykcl.errors import TemporaryError
from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.worker.membership import Membership

FAILOVER = 10.0


class SlowTable:
    """A table with a lease that another process of this worker identifier renews every three seconds.

    slow: the operation that takes `delay` seconds, and shows what is true at its end.
    """

    def __init__(self, slow):
        self.now, self.slow, self.delay = 100.0, slow, 0.0

    def owned_by(self, worker):
        self.now += self.delay * (self.slow == "query")
        return {"a"}

    def read(self, key):
        self.now += self.delay * (self.slow == "read")
        metadata = PykclMetadata(owner="me", process_token="theirs")
        return Lease(key, AT_TRIM_HORIZON, counter=int(self.now // 3), owner="me", metadata=metadata)


def membership_on(table):
    return Membership(
        SimpleNamespace(
            runtime=SimpleNamespace(lock=Lock, monotonic=lambda: table.now, random=lambda: Random(1)),
            config=SimpleNamespace(worker_metrics="throughput", failover_time=FAILOVER),
            table=table,
            held=SimpleNamespace(all=list),
            worker_id="me",
            process_token="mine",
        )
    )


@pytest.mark.parametrize("slow", ["query", "read"])
def test_a_lease_of_a_living_process_of_the_same_identifier_is_not_adopted_after_a_slow_answer(slow):
    """Native seed 130734: it was seen standing still since before the answer came, and so for the failover time."""
    table = SlowTable(slow)
    membership = membership_on(table)
    for delay in (0.0, 44.0, 0.0, 0.0, 44.0, 0.0):
        table.delay = delay
        membership.query_at_once()
        assert membership.assigned(table.now, ()) == []
        table.now += 1.0


def test_a_read_that_fails_brings_no_query_before_its_time(monkeypatch):
    """Native seed 133007: a worker that may query and not read queried once a second."""
    table, queries = SlowTable(""), []
    membership = membership_on(table)

    def owned_by(worker):
        queries.append(table.now)
        return {"a"}

    def read(key):
        raise TemporaryError("refused")

    monkeypatch.setattr(table, "owned_by", owned_by)
    monkeypatch.setattr(table, "read", read)
    for _ in range(40):
        with suppress(TemporaryError):
            membership.assigned(table.now, ())
        table.now += 0.5
    assert 8 <= len(queries) <= 12
