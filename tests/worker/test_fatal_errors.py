"""Wherever a worker meets a FatalError, the whole worker stops with it: also one that no module knows by name."""

import pytest

from pykcl import FatalError, NativeFleet, SetupError, StreamMissing, TableGone, WrongStream, WrongTable

AUDIT = 20.0


class StreamDoomed(FatalError):
    """No module of pykcl has heard of it."""


class TableDoomed(TableGone):
    """Neither of this one."""


def _stream_raises(method):
    def doom(worker):
        setattr(worker._adapters[1], method, _raising(StreamDoomed))

    return doom


def _table_raises(method):
    def doom(worker):
        setattr(worker._adapters[0], method, _raising(TableDoomed))

    return doom


def _write_raises(kind):
    def doom(worker):
        table = worker._adapters[0]
        write, refuse = table.write, _raising(TableDoomed)
        table.write = lambda built, **options: (refuse if built.kind == kind else write)(built, **options)

    return doom


def _raising(error):
    def refuse(*_, **__):
        raise error("nothing mends this")

    return refuse


def _split(fleet):
    """Both children need a lease, and their parent an end."""
    fleet.kinesis.split("orders", fleet.open_shards()[0])
    fleet.put(20)


def _drop_ranges(fleet):
    for item in fleet.items().values():
        row = {name: value for name, value in item.items() if "HashKey" not in name}
        fleet.dynamodb.put_raw("orders-app", row)


def _put(fleet):
    fleet.put(20)


def _nothing(fleet):
    pass


SITES = {
    "the shards are listed": (_stream_raises("list_shards"), _nothing),
    "the lease table is scanned": (_table_raises("scan"), _nothing),
    "a heartbeat is sent": (_write_raises("renew"), _nothing),
    "a shard is read": (_stream_raises("fetch"), _put),
    "a checkpoint is written": (_write_raises("checkpoint"), _put),
    "the end of a shard is written": (_write_raises("end"), _split),
    "a hash range is filled in": (_write_raises("fill"), _drop_ranges),
}


@pytest.mark.parametrize("site", SITES)
def test_a_fatal_error_stops_the_worker_when(new_fleet, site):
    doom, provoke = SITES[site]
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", audit_interval=AUDIT, audit_confidence_threshold=1)
    fleet.wait_delivered(fleet.put(10))
    fleet.wait(lambda: worker.initialized, what="the worker to join")
    doom(worker)
    provoke(fleet)
    fleet.wait(lambda: worker.failure is not None, 10 * AUDIT, "the end of the worker")
    assert isinstance(worker.failure, StreamDoomed | TableDoomed)
    worker.stop()


@pytest.mark.parametrize(
    "doom", [_write_raises("take"), _stream_raises("open")], ids=["a lease is taken", "a shard is opened"]
)
def test_a_fatal_error_stops_a_worker_that_takes_its_first_lease_when(new_fleet, doom):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    doom(worker)
    worker.start()
    fleet.wait(lambda: worker.failure is not None, what="the end of the worker")
    assert isinstance(worker.failure, StreamDoomed | TableDoomed)


def test_the_errors_that_stop_a_running_worker_are_fatal_and_still_set_up_errors():
    assert issubclass(FatalError, SetupError)
    for kind in (StreamMissing, TableGone, WrongStream):
        assert issubclass(kind, FatalError)


def test_what_a_running_worker_goes_on_with_or_never_meets_is_not_fatal():
    assert not issubclass(NativeFleet, FatalError)
    assert not issubclass(WrongTable, FatalError)
