"""Every kind of fault happens where its name says, is counted when it happened, and a worker that bears it badly is caught."""

import random
from dataclasses import replace

import pytest

from pykcl.aws import lease_table
from pykcl.errors import InternalError
from pykcl.events import BatchSkipped
from pykcl.model import lease_writes
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.shard import HashRange
from pykcl.planning.lease_view import LeaseView
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Fault, MemoryDynamoDB, timed_out
from pykcl.testing.simulation import Guarantee, GuaranteeBroken
from pykcl.testing.simulation.course import draw_options
from pykcl.testing.simulation.delivery import DeliveryChecker, RecordLog
from pykcl.testing.simulation.guarantees import Violations
from pykcl.testing.simulation.processors import Skips
from pykcl.testing.simulation.service_faults import DynamoFaults, Outages, StaleScan
from pykcl.worker.leader import Leader
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.record_delivery import RecordDelivery
from pykcl.worker.shard_sync import DeletedLeaseRestorer
from tests.simulation.course import run_simulation
from tests.simulation.faults import FleetFaults, ProducerFaults
from tests.simulation.seeds import NO_FAULTS
from tests.simulation.world import CheckedWorld

FIRST = 62000
MOST = 60


def simulations_with(*kinds, options=None):
    """Simulations with these kinds of faults and no others, and where those are on: (seed, outcome)."""
    off = NO_FAULTS - set(kinds)
    for seed in range(FIRST, FIRST + MOST):
        faults = FleetFaults(seed, off=off)
        if all(map(faults.has, kinds)) and (options is None or options(_options(seed, faults))):
            yield seed, run_simulation(seed, off=off)


def _options(seed, faults):
    return draw_options(seed, random.Random(f"{seed}/story"), faults, own_processor=False)


def a_simulation_with(*kinds, options=None):
    """The first of them in which every kind happened."""
    for _, outcome in simulations_with(*kinds, options=options):
        if all(outcome.injected[kind] for kind in kinds):
            return outcome
    raise AssertionError(f"{kinds} did not happen in {MOST} seeds")


def broken_in_a_simulation_with(*kinds, options=None):
    """The guarantee that the first simulation broke that broke one."""
    for _, outcome in simulations_with(*kinds, options=options):
        if outcome.broken is not None:
            assert isinstance(outcome.broken, GuaranteeBroken), outcome.broken
            return outcome.broken.guarantee
    return None


# -- each happens, and a sound worker comes through ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "F10.kms", "F13.recreated", "F14.while", "F14.credentials", "F15.deleted", "F15.counter", "F15.checkpoint", "F15.reset",
        "F15.ranges", "F16", "F18.creating", "F18.initialize", "F18.checkpoint",
    ],
)  # fmt: skip
def test_it_happens_and_every_guarantee_is_kept(kind):
    assert a_simulation_with(kind).summary == "kept"


def test_a_second_stop_while_leases_are_released_happens_and_every_guarantee_is_kept():
    assert a_simulation_with("F18.releasing", "F18.stop").summary == "kept"


def test_a_stop_while_lease_lost_runs_happens_and_every_guarantee_is_kept():
    assert a_simulation_with("F18.losing", "F15.counter").summary == "kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("on_error", lambda options: options.get("on_error") == "skip"),
        ("on_error", lambda options: options.get("on_error") == "raise"),
        ("processor_timeout", lambda options: "processor_timeout" in options),
        ("max_leases", lambda options: "max_leases" in options),
        ("start", lambda options: not isinstance(options["initial_position"], str)),
    ],
    ids=["skip", "raise", "processor_timeout", "max_leases", "AT_TIMESTAMP"],
)
def test_an_option_is_drawn_and_every_guarantee_is_kept(name, wanted):
    outcome = a_simulation_with("F17.raises", "F17.hangs", options=wanted)
    assert outcome.summary == "kept", name


# -- a worker that bears it badly is caught --------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_takes_a_table_made_anew_for_its_own(monkeypatch):
    monkeypatch.setattr(lease_table, "_have_vanished", lambda known, seen: False)
    monkeypatch.setattr(lease_table, "_went_back", lambda known, rows: False)
    assert broken_in_a_simulation_with("F13.recreated") in (
        Guarantee.SILENT_AFTER_LOSS,
        Guarantee.NO_FALSE_ALARM,
    )


@pytest.mark.slow
def test_a_worker_that_abandons_a_shard_whose_row_was_deleted(monkeypatch):
    monkeypatch.setattr(DeletedLeaseRestorer, "to_restore", lambda self, now: [])
    monkeypatch.setattr(DeletedLeaseRestorer, "is_due", lambda self, now: False)
    assert broken_in_a_simulation_with("F15.deleted") in (Guarantee.ALL_DELIVERED, Guarantee.BALANCE)


def test_a_worker_that_believes_that_counters_only_grow(monkeypatch):
    observe = LeaseView.observe

    def strict(self, rows, now):
        rows = list(rows)
        for row in rows:
            known = self.leases.get(row.key)
            if known is not None and getattr(row, "counter", known.counter) < known.counter:
                raise InternalError(f"the counter of {row.key} fell")
        return observe(self, rows, now)

    monkeypatch.setattr(LeaseView, "observe", strict)
    assert broken_in_a_simulation_with("F15.counter") is Guarantee.NO_FALSE_ALARM


def _filling_without_condition(monkeypatch, instead):
    request = LeaseWrite.request

    def careless(self):
        operation, params = request(self)
        if self.kind == "fill":
            params["ConditionExpression"] = instead
            wanted = params["ExpressionAttributeValues"]
            params["ExpressionAttributeValues"] = {
                k: wanted[k] for k in (":startingHashKey", ":endingHashKey")
            }
        return operation, params

    monkeypatch.setattr(LeaseWrite, "request", careless)


@pytest.mark.parametrize("is_careless", [True, False])
def test_a_worker_that_makes_a_row_where_it_wants_to_fill_in_a_hash_range(monkeypatch, is_careless):
    """Its condition speaks of the counter, so only the row that comes of it can tell."""
    if is_careless:
        always = "attribute_exists(leaseCounter) OR attribute_not_exists(leaseCounter)"
        _filling_without_condition(monkeypatch, always)
    worlds, make, fill = [], CheckedWorld.__init__, Leader._fill_one

    def made(self, *args, **options):
        make(self, *args, **options)
        worlds.append(self)

    def the_row_goes_first(self, one, until):
        worlds[-1].beliefs.stolen(one.seen.key)
        worlds[-1].dynamodb.tables[TABLE].rows.pop(one.seen.key, None)
        fill(self, one, until)

    monkeypatch.setattr(CheckedWorld, "__init__", made)
    monkeypatch.setattr(Leader, "_fill_one", the_row_goes_first)
    # With the condition it makes no row; that rows go is what other guarantees suffer from.
    assert (broken_in_a_simulation_with("F15.ranges") is Guarantee.CONDITIONAL) is is_careless


def test_a_worker_that_fills_in_hash_ranges_unconditionally(monkeypatch):
    _filling_without_condition(monkeypatch, "attribute_not_exists(nothing)")
    assert broken_in_a_simulation_with("F15.ranges") is Guarantee.CONDITIONAL


def test_a_worker_that_moves_the_counter_when_it_fills_in_a_hash_range(monkeypatch):
    fill = lease_writes.fill_hash_range

    def counted(seen, found):
        write = fill(seen, found)
        return replace(
            write, after=write.after.with_(counter=seen.counter + 1), written=("counter", "hash_range")
        )

    monkeypatch.setattr(lease_writes, "fill_hash_range", counted)
    assert broken_in_a_simulation_with("F15.ranges") in (
        Guarantee.SILENT_AFTER_LOSS,
        Guarantee.COUNTER_BY_ONE,
    )


def test_a_worker_that_fills_in_the_hash_range_of_another_shard(monkeypatch):
    fill = lease_writes.fill_hash_range
    monkeypatch.setattr(lease_writes, "fill_hash_range", lambda seen, found: fill(seen, HashRange(0, 9)))
    assert broken_in_a_simulation_with("F15.ranges") is Guarantee.COUNTER_BY_ONE


def test_a_worker_that_never_fills_in_a_hash_range(monkeypatch):
    monkeypatch.setattr(Leader, "_fill", lambda self, fills: None)
    assert broken_in_a_simulation_with("F15.ranges") is Guarantee.BALANCE


def test_a_worker_that_lists_the_shards_with_each_scan(monkeypatch):
    monkeypatch.setattr(Leader, "audit", lambda self, view, shards, **_: True)
    assert broken_in_a_simulation_with("F15.ranges") is Guarantee.BUDGETS


def test_a_worker_that_ends_for_a_key_that_cannot_be_used_for_a_while(monkeypatch):
    ends = RecordDelivery._trouble_ends_it

    def at_once(self, error):
        if "KMS" in str(error):
            self._context.on_fatal(error)
            return True
        return ends(self, error)

    monkeypatch.setattr(RecordDelivery, "_trouble_ends_it", at_once)
    assert broken_in_a_simulation_with("F10.kms") is Guarantee.NO_FALSE_ALARM


def test_a_worker_that_holds_a_lease_whose_reader_died(monkeypatch):
    run = LeaseWorker.run

    def keeps_it(self):
        remove, self._context.held.remove = self._context.held.remove, lambda held: None
        try:
            run(self)
        finally:
            self._context.held.remove = remove

    monkeypatch.setattr(LeaseWorker, "run", keeps_it)
    assert broken_in_a_simulation_with() is Guarantee.FAILOVER


# -- what is skipped by guarantee --------------------------------------------------------------------------------


@pytest.fixture
def skips():
    checker = DeliveryChecker(RecordLog(lambda: 0), Violations())
    for number in (1, 2, 3):
        checker.record_log.shard("s").add((number, 0), 0)
    return Skips(checker)


def _skipped(first, last, records):
    return BatchSkipped(shard="s", records=records, first=f"{first}:0", last=f"{last}:0")


def test_the_batch_that_raised_is_owed_no_more_and_counts_as_skipped(skips):
    owning = skips._checker.ownership_starts("w1", "s", (0, 0))
    skips.raises(owning, [(1, 0), (2, 0)])
    skips.heard("w1", _skipped(1, 2, 2))
    skips._checker._violations.check()
    assert (skips.skipped, skips._checker.record_log.owed(), owning.after) == (2, {"s": 1}, (2, 0))


@pytest.mark.parametrize(("first", "last", "records"), [(1, 3, 3), (2, 3, 2), (1, 2, 1)])
def test_a_worker_that_skips_anything_else(skips, first, last, records):
    skips.raises(skips._checker.ownership_starts("w1", "s", (0, 0)), [(1, 0), (2, 0)])
    skips.heard("w1", _skipped(first, last, records))
    with pytest.raises(GuaranteeBroken, match="NO_GAP"):
        skips._checker._violations.check()
    assert skips._checker.record_log.owed() == {"s": 3}


def test_a_worker_that_skips_what_did_not_raise(skips):
    skips.heard("w1", _skipped(1, 2, 2))
    with pytest.raises(GuaranteeBroken, match="NO_GAP"):
        skips._checker._violations.check()


# -- counted when it happened ----------------------------------------------------------------------------------


def _table(fault=None):
    client = MemoryDynamoDB(fault=fault)
    client.create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return client


def _put(client, key):
    return client.put_item(
        TableName="t", Item={"leaseKey": {"S": key}}, ConditionExpression="attribute_not_exists(leaseKey)"
    )


def _table_with(fault):
    """A table in which this goes wrong with every PutItem."""
    return _table(lambda operation, params: fault if operation == "PutItem" else None)


def test_an_answer_is_lost_only_if_the_write_was_applied():
    lost = []
    client = _table_with(Fault(after=timed_out(), on_effect=lambda: lost.append("PutItem")))
    with pytest.raises(type(timed_out())):
        _put(client, "a")
    assert lost == ["PutItem"]
    with pytest.raises(Exception, match="conditional request failed"):
        _put(client, "a")
    assert lost == ["PutItem"]


def test_a_write_that_is_under_way_counts_when_it_arrives():
    arrived = []
    client = _table_with(Fault(postponed=timed_out(), on_effect=lambda: arrived.append("PutItem")))
    with pytest.raises(type(timed_out())):
        _put(client, "a")
    assert arrived == []
    client.deliver_postponed()
    assert arrived == ["PutItem"]


@pytest.mark.parametrize(
    ("by_hand", "counter", "is_late"), [(False, 1, True), (True, 1, False), (True, 5, True)]
)
def test_a_write_that_other_hands_made_void_is_not_kept_under_way(by_hand, counter, is_late):
    """Seed 67829452156. 1) Another library puts the counter of a lease from 5 to 1; 2) its owner, who knows nothing of it
    yet, writes a checkpoint on condition of 5, which would be refused; 3) the same worker takes the lease again and comes to
    5; 4) the write arrives, and moves the checkpoint back. No condition protects from a counter that was put back.
    """

    class Late(FleetFaults):
        def is_due(self, name):
            return name == "F7"

    outages, rows = Outages(), {"a": {"leaseCounter": {"N": str(counter)}}}
    faults = DynamoFaults(
        Late(1), outages, host=lambda: "w1", now=lambda: 0.0, spares=lambda host: False, rows=lambda: rows
    )
    if by_hand:
        faults.changed_by_hand("a")
    write = {
        "TableName": "t", "Key": {"leaseKey": {"S": "a"}},
        "ExpressionAttributeValues": {":seenCounter": {"N": "5"}, ":checkpoint": {"S": "9"}},
    }  # fmt: skip
    fault = faults("UpdateItem", write)
    assert (fault is not None and fault.postponed is not None) == is_late


def test_a_forbidden_action_counts_when_it_is_refused():
    faults, outages = FleetFaults(1, off=NO_FAULTS), Outages()
    client = _table(
        DynamoFaults(
            faults, outages, host=lambda: "w1", now=lambda: 0.0, spares=lambda host: False, rows=dict
        )
    )
    outages.forbidden[("Scan", "w1")] = 10.0
    assert (faults.injected["F14.while"], outages.refused) == (0, set())
    client.get_item(TableName="t", Key={"leaseKey": {"S": "a"}})
    assert faults.injected["F14.while"] == 0
    with pytest.raises(Exception, match="not authorized"):
        client.scan(TableName="t")
    assert (faults.injected["F14.while"], outages.refused) == (1, {"w1"})


def test_every_action_is_refused_while_the_credentials_of_a_host_are():
    faults, outages, now = FleetFaults(1, off=NO_FAULTS), Outages(), [0.0]
    host = ["w1"]
    client = _table(
        DynamoFaults(
            faults, outages, host=lambda: host[0], now=lambda: now[0], spares=lambda host: False, rows=dict
        )
    )
    outages.replace_keys("w1", 10.0, random.Random(1))
    for call in (client.scan, client.describe_table):
        with pytest.raises(Exception, match=r"ExpiredToken|UnrecognizedClient|InvalidSignature"):
            call(TableName="t")
    host[0] = "w2"
    client.scan(TableName="t")
    host[0], now[0] = "w1", 11.0
    client.scan(TableName="t")
    assert (faults.injected["F14.credentials"], outages.refused) == (2, {"w1"})


def test_a_scan_that_is_a_moment_old_shows_what_was_deleted_and_not_what_is_new():
    class Always(FleetFaults):
        def happens(self, name, about=""):
            return name == "F8.stale"

    client = _table()
    for number in range(9):
        _put(client, f"k{number}")
    old = {"leaseKey": {"S": "gone"}}
    for first in (None, "k3"):
        start = {} if first is None else {"ExclusiveStartKey": {"leaseKey": {"S": first}}}
        scan = StaleScan(client, Always(1), "w1", lambda seconds: {"gone": old, "k5": None})
        keys = [item["leaseKey"]["S"] for item in scan(TableName="t", Limit=4, **start)["Items"]]
        fresh = [item["leaseKey"]["S"] for item in client.scan(TableName="t", Limit=4, **start)["Items"]]
        assert [key for key in keys if key != "gone"] == [key for key in fresh if key != "k5"]
    everything = [item["leaseKey"]["S"] for item in _pages(scan)]
    assert sorted(everything) == sorted({"gone", *(f"k{number}" for number in range(9))} - {"k5"})
    assert scan(TableName="t", ConsistentRead=True) == client.scan(TableName="t", ConsistentRead=True)


def _pages(scan):
    start = {}
    while True:
        answer = scan(TableName="t", Limit=2, **start)
        yield from answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


@pytest.mark.slow
def test_a_malformed_record_counts_when_it_is_fetched():
    from pykcl.testing.simulation.chaos import Producer

    put = []
    note = Producer._note_malformed
    try:
        Producer._note_malformed = lambda self, shard_id, number: (
            put.append(number) or note(self, shard_id, number)
        )
        outcome = a_simulation_with("F16")
    finally:
        Producer._note_malformed = note
    assert 0 < outcome.injected["F16"] <= len(put)


def test_every_kind_has_a_text_of_its_own():
    kinds = ProducerFaults.kinds
    assert len({kind.what for kind in kinds.values()}) == len(kinds)
