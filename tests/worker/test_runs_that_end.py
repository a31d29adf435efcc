"""A run with an end: every record that arrived before `until` is delivered, none after it, and the workers stop."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import Random

import pytest

from pykcl.config import Config
from pykcl.errors import ConfigError, FatalError, SetupError
from pykcl.events import DataLost, StopReason, WorkerStopping
from pykcl.handlers.functions import Context, handler
from pykcl.model.checkpoint import AT_SHARD_END
from pykcl.model.kpl import aggregate
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.planning.run_end import (
    OUT_OF_ORDER_MILLIS,
    chosen_part,
    is_finished,
    is_over,
    part_of_run,
    records_before,
)
from pykcl.testing.fleet import STREAM, TABLE, Fleet, RecordingProcessor
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation
from pykcl.times import format_time

BEGAN = Simulation(seed=0).now


def millis_at(seconds):
    """Epoch milliseconds, so many seconds after a simulation has begun."""
    return EPOCH_MILLIS + int((BEGAN + seconds) * 1000)


def time_at(seconds):
    return datetime.fromtimestamp(millis_at(seconds) / 1000, tz=UTC)


def arrived_at(*millis):
    return [Record(b"x", "k", str(number), at) for number, at in enumerate(millis, 1)]


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_the_records_of_a_page_that_arrived_before_the_end_are_left_in_order():
    page = arrived_at(98, 101, 99, 100, 102)
    assert [record.sequence_number for record in records_before(page, 100)] == ["1", "3"]
    assert records_before(page, 103) is page
    assert list(records_before([], 100)) == []


END = 100_000
BEYOND = END + OUT_OF_ORDER_MILLIS


@pytest.mark.parametrize(
    ("arrivals", "behind", "requested_after", "finished"),
    [
        ([END], 0, END, False),  # a record before the end may follow this one
        ([BEYOND - 1], 3_000, BEYOND + 9_000, False),
        ([BEYOND], 3_000, END, True),
        ([BEYOND, END - 1], 3_000, END, True),
        ([], 0, BEYOND - 1, False),  # one that arrived in time may have been put after this page
        ([], 0, BEYOND, True),
        ([END - 1], 0, BEYOND, True),
        ([], 1, BEYOND + 9_000, False),  # an empty page before the tip shows nothing
        ([], None, BEYOND + 9_000, False),
    ],
)
def test_a_shard_is_finished_once_no_record_before_the_end_can_follow(
    arrivals, behind, requested_after, finished
):
    page = arrived_at(*arrivals)
    assert is_finished(page, behind, until=END, requested_after=requested_after) is finished


def test_a_table_without_leases_is_of_no_run_that_is_over():
    assert not is_over({})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until": "2026-11-20T10:00:00"}, "until='2026-11-20T10:00:00' has no time zone"),
        ({"until": datetime(2026, 11, 20, 10)}, "until=2026-11-20T10:00:00 has no time zone"),  # noqa: DTZ001
        ({"until": "LATEST"}, "until='LATEST' is not a time"),
        ({"until": 5}, "until=5 is not a time"),
        ({"initial_position": time_at(5), "until": time_at(5)}, "is not after initial_position"),
        ({"until": time_at(5), "retrieval": "fanout"}, "retrieval='fanout' contradicts until"),
        (
            {"until": time_at(5), "max_record_age": 60.0, "dead_letters": "discard"},
            "max_record_age=60.0 contradicts until",
        ),
        ({"until": time_at(5), "fleet_mode": "3x"}, "fleet_mode='3x' contradicts until"),
    ],
)
def test_an_end_that_is_none_or_contradicts_something_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Config(application="orders-app", stream="orders", **options)


# -- runs --------------------------------------------------------------------------------------------------------------


class Run:
    """A run over a stream that is written to, and resharded, before, in and after the range."""

    def __init__(self, seed, until=60, chosen=()):
        """chosen: shards that the run is given, of at least three; none: it reads all."""
        self.simulation = Simulation(seed=seed)
        self.chosen, self.shard_of = chosen, {}
        self.random, self.until = Random(seed), until
        self.begin = self.random.choice([None, 10, 25])
        self.arrived = {}

    def __enter__(self):
        self.simulation.__enter__()
        self.fleet = Fleet(self.simulation, shards=3 if self.chosen else self.random.randint(1, 3))
        return self

    def __exit__(self, *error):
        self.simulation.__exit__(*error)

    def write(self, seconds):
        """Put records, and reshard now and then, for so long."""
        stop = self.simulation.now + seconds
        while self.simulation.now < stop:
            at = EPOCH_MILLIS + int(self.simulation.now * 1000)
            number = len(self.arrived)
            if self.random.random() < 0.2:
                payloads = [f"{number}.{part}".encode() for part in range(3)]
                for blob in aggregate([(f"k{number}", None, payload) for payload in payloads]):
                    put = self.fleet.kinesis.put_record(STREAM, blob.data, f"k{number}")
            else:
                payloads = [b"%d" % number]
                put = self.fleet.kinesis.put_record(STREAM, payloads[0], f"k{number}")
            self.shard_of.update(dict.fromkeys(payloads, put.shard_id))
            self.arrived.update(dict.fromkeys(payloads, at))
            if self.random.random() < 0.05:
                self.reshard()
            self.simulation.sleep(self.random.choice([0.01, 0.3, 2.0]))

    def reshard(self):
        shards = self.fleet.kinesis.list_shards(STREAM, operation=None)
        if self.fleet.kinesis.describe(STREAM, operation=None).status != "ACTIVE":
            return
        open_shards = sorted(
            (shard for shard in shards if shard.is_open), key=lambda one: one.hash_range.first
        )
        if len(open_shards) > 1 and self.random.random() < 0.5:
            self.fleet.kinesis.merge(STREAM, open_shards[0].shard_id, open_shards[1].shard_id)
        else:
            self.fleet.kinesis.split(STREAM, self.random.choice(open_shards).shard_id)

    def start(self, name, **options):
        options = {"until": time_at(self.until), "max_records": 7, **options}
        if self.begin is not None:
            options["initial_position"] = time_at(self.begin)
        if self.chosen:
            options["shards"] = ",".join(self.chosen)
        return self.fleet.start(name, **options)

    def wait_until_over(self, *workers, timeout=300.0):
        for worker in workers:
            self.fleet.wait(lambda one=worker: one.join(0.0), timeout, f"the end of {worker.worker_id}")

    @property
    def wanted(self):
        first, limit = millis_at(self.begin or 0), millis_at(self.until)
        return {
            payload
            for payload, at in self.arrived.items()
            if first <= at < limit and self.shard_of[payload] in self.read
        }

    @property
    def read(self):
        """The shards that the run reads."""
        shards = self.fleet.kinesis.list_shards(STREAM, operation=None)
        found = {f"shardId-{int(name):012d}" for name in self.chosen} or {one.shard_id for one in shards}
        while more := {
            one.shard_id for one in shards if one.shard_id not in found and found.intersection(one.parents)
        }:
            found |= more
        return found

    def check(self):
        delivered = set(self.fleet.ledger.payloads)
        assert delivered - self.wanted == set(), "nothing after the end is delivered"
        assert self.wanted - delivered == set(), "nothing before the end is lost"
        assert all(lease.checkpoint == AT_SHARD_END for lease in self.fleet.rows().values())


@pytest.mark.parametrize("seed", range(12))
def test_a_run_delivers_what_arrived_before_its_end_and_nothing_else(seed):
    with Run(seed) as run:
        run.write(run.random.choice([30, 90]))
        worker = run.start("w1")
        run.write(run.random.choice([1, 60]))
        run.wait_until_over(worker)
        run.check()
        assert run.fleet.ledger.duplicates == 0


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_run_of_several_workers_of_which_some_die_loses_nothing_and_all_others_end(seed):
    with Run(seed) as run:
        run.write(30)
        run.start("w1")
        second = run.start("w2")
        run.write(run.random.uniform(0.5, 12.0))
        run.simulation.kill("w1")
        run.write(run.random.uniform(5.0, 60.0))
        third = run.start("w3")
        run.wait_until_over(second, third)
        run.check()


@pytest.mark.parametrize("seed", range(12))
def test_a_run_over_some_shards_reads_them_and_what_comes_after_them_and_nothing_else(seed):
    with Run(seed, until=80, chosen=("0", "2") if seed % 2 else ("1",)) as run:
        run.write(30)
        workers = [run.start("w1")]
        run.write(20)
        workers.append(run.start("w2"))
        run.write(50)
        run.wait_until_over(*workers)
        run.check()
        assert run.fleet.rows().keys() <= run.read
        assert {lease.metadata.shards for lease in run.fleet.rows().values()} == {
            "000,002" if seed % 2 else "001"
        }
        assert run.fleet.happened(DataLost) == []


@pytest.mark.parametrize("chosen", ["0", "1", "0,1"])
def test_the_child_of_a_merge_is_read_if_one_of_its_parents_is(new_fleet, chosen):
    """It is reached through the end of its parent, whose reader makes its lease."""
    fleet = new_fleet(shards=3)
    first, second, _ = fleet.open_shards()
    worker = fleet.start("w1", until=time_at(100), shards=chosen)
    fleet.simulation.sleep(20)
    fleet.kinesis.merge(STREAM, first, second)
    fleet.simulation.sleep(20)
    child = "shardId-000000000003"
    put = fleet.put(30)
    fleet.wait(lambda: worker.join(0.0), 200.0)
    read = {(first, second)[int(number)] for number in chosen.split(",")}
    assert fleet.rows().keys() == {*read, child}
    assert set(fleet.ledger.payloads) < set(put)
    assert set(fleet.rows()[child].parents) == set(read)


def test_a_shard_that_the_stream_does_not_have_is_refused_with_those_it_has(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", until=time_at(100), shards="1,7")
    fleet.wait(lambda: worker.failure is not None)
    assert isinstance(worker.failure, FatalError)
    assert "lists no shardId-000000000007" in str(worker.failure)
    assert "lists 2: shardId-000000000000, shardId-000000000001. Do: name shards" in str(worker.failure)
    assert fleet.rows() == {}


def test_a_chosen_shard_that_has_expired_goes_on_by_its_row(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    first = fleet.start("w1", until=time_at(100), shards="0")
    fleet.simulation.sleep(10)
    first.stop()
    second = fleet.worker("w2", until=time_at(100), shards="shardId-000000000000")
    _, stream = second._adapters
    whole = stream.list_shards
    stream.list_shards = lambda: replace(listing := whole(), shards=listing.shards[1:])
    second.start()
    fleet.wait(lambda: second.join(0.0), 200.0)
    assert second.failure is None
    assert set(fleet.ledger.payloads) < set(put)


def test_a_part_of_a_stream_is_whole_in_itself():
    shards = [
        Shard("a"),
        Shard("b"),
        Shard("ab", ("a", "b")),
        Shard("c"),
        Shard("d", ("gone",)),
        Shard("e", ("ab",)),
    ]
    assert chosen_part(shards, (), {}) == tuple(shards)
    assert chosen_part(shards, ("a",), {}) == (Shard("a"), Shard("ab", ("a",)), Shard("e", ("ab",)))
    assert chosen_part(shards, ("ab", "c"), {}) == (Shard("ab"), Shard("c"), Shard("e", ("ab",)))
    # What operates on the table sees the same part.
    run = {"c": Lease("c", AT_SHARD_END, metadata=PykclMetadata(until=1, shards="c"))}
    assert part_of_run(shards, run) == (Shard("c"),)
    assert part_of_run(shards, {"c": Lease("c", AT_SHARD_END)}) == tuple(shards)
    # Its parent is listed no more, and its row leads there.
    row = Lease("gone", AT_SHARD_END, parents=("c",))
    assert chosen_part(shards, ("c",), {"gone": row}) == (Shard("c"), Shard("d", ("gone",)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shards": "1"}, "shards='1' needs until"),
        ({"shards": " , ", "until": time_at(5)}, "names no shard"),
        (
            {"shards": "1", "until": time_at(5), "initial_position": "LATEST"},
            "contradicts initial_position='LATEST'",
        ),
        (
            {
                "shards": ",".join(map(str, range(600))),
                "until": time_at(5),
                "initial_position": "TRIM_HORIZON",
            },
            "more than the rows can say",
        ),
    ],
)
def test_a_choice_of_shards_that_is_none_or_contradicts_something_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Config(application="orders-app", stream="orders", **options)


def test_a_run_whose_end_is_to_come_waits_for_it_and_ends_soon_after(new_fleet):
    fleet = new_fleet(shards=3)
    worker = fleet.start("w1", until=time_at(60))
    fleet.simulation.sleep(30)
    put = fleet.put(30)
    fleet.wait_delivered(put)
    assert not worker.join(0.0)
    fleet.wait(lambda: worker.join(0.0), 60.0)
    assert 65.0 <= fleet.simulation.now - BEGAN <= 75.0


@pytest.mark.parametrize("until", [time_at(50), None])
def test_a_processor_and_a_function_hear_whether_it_is_a_replay(new_fleet, until):
    fleet, heard = new_fleet(shards=1), []

    @handler
    def on_order(record, context: Context):
        heard.append(context.is_replay)

    class Asking(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            heard.append(init.is_replay)

    fleet.put(1)
    fleet.start("w1", until=until, processor=on_order)
    fleet.start("w2", until=until, table_name="other", processor=lambda: Asking("w2", fleet.ledger))
    fleet.wait(lambda: len(heard) == 2)
    assert heard == [until is not None] * 2


def test_an_empty_stream_ends_at_once(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.simulation.sleep(100)
    began = fleet.simulation.now
    worker = fleet.start("w1", until=time_at(50))
    fleet.wait(lambda: worker.join(0.0), 30.0)
    assert fleet.simulation.now < began + 10.0
    assert worker.failure is None
    assert [event.reason for event in fleet.happened(WorkerStopping)] == [StopReason.RUN_OVER]


def test_a_worker_that_comes_when_the_run_is_over_delivers_nothing_and_ends(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(20)
    fleet.simulation.sleep(60)
    first = fleet.start("w1", until=time_at(50))
    fleet.wait(lambda: first.join(0.0))
    second = fleet.start("w2", until=time_at(50))
    fleet.wait(lambda: second.join(0.0), 30.0)
    assert sorted(fleet.ledger.payloads) == sorted(put)
    assert fleet.ledger.by("w2") == []


def test_a_page_that_was_fetched_ahead_does_not_end_the_shard(new_fleet):
    """While the processor works on a page, a record arrives in time, and the end of the run passes."""
    fleet = new_fleet(shards=1)
    late = []

    def work(batch):
        if not late:
            fleet.simulation.sleep(BEGAN + 49.0 - fleet.simulation.now)
            late.extend(fleet.put(1, "late"))
            fleet.simulation.sleep(60.0)

    put = fleet.put(5)
    worker = fleet.start(
        "w1", until=time_at(50), processor=lambda: RecordingProcessor("w1", fleet.ledger, work)
    )
    fleet.wait(lambda: worker.join(0.0), 300.0)
    assert set(fleet.ledger.payloads) == {*put, *late}


def test_an_answer_that_was_long_on_its_way_does_not_end_the_shard(new_fleet):
    """It shows the tip of the shard as it was before the last record came, and arrives when the run is over."""
    fleet = new_fleet(shards=1)
    worker, late = fleet.worker("w1", until=time_at(50)), []
    _, stream = worker._adapters
    fetch = stream.fetch

    def slow(shard_id, iterator, limit):
        page = fetch(shard_id, iterator, limit)
        if not late and fleet.simulation.now > BEGAN + 40.0:
            late.extend(fleet.put(1, "late"))
            fleet.simulation.sleep(20.0)
        return page

    stream.fetch = slow
    worker.start()
    fleet.wait(lambda: worker.join(0.0), 300.0)
    assert late
    assert list(fleet.ledger.payloads) == late


def run_past_a_split(fleet, relist, later, **options):
    """Run a worker over a shard that is split before the end of the run, whose children get so many records `later`.

    Its last page shows its tip, and no end yet, so that it counts as finished without children. relist(list_shards,
    put): called for each listing.
    """
    put = []

    def work(batch):
        if batch.records[0].data == put[0]:
            sleep_until(fleet, 66.0)

    worker = fleet.worker(
        "w1",
        until=time_at(60),
        max_records=1,
        processor=lambda: RecordingProcessor("w1", fleet.ledger, work),
        **options,
    )
    _, stream = worker._adapters
    fetch = stream.fetch

    def at_the_tip(*position):
        page = fetch(*position)
        is_last = [record.data for record in page.records] == put[2:3]
        return replace(page, millis_behind_latest=0) if is_last else page

    stream.list_shards, stream.fetch = partial(relist, stream.list_shards, put), at_the_tip
    worker.start()
    sleep_until(fleet, 50.0)
    put += fleet.put(1)
    sleep_until(fleet, 58.0)
    put += fleet.put(2)
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    sleep_until(fleet, 59.0)
    put += fleet.put(later)
    fleet.wait(lambda: worker.join(0.0), 300.0)
    assert set(fleet.ledger.payloads) == set(put)


def sleep_until(fleet, seconds):
    fleet.simulation.sleep(BEGAN + seconds - fleet.simulation.now)


def test_a_listing_that_was_long_on_its_way_does_not_end_the_run(new_fleet):
    """1) The shards are listed, and the answer is slow; 2) one is split before the end of the run, and its children get
    records; 3) its last page makes it count as finished without children."""
    fleet = new_fleet(shards=1)

    def slow(list_shards, put):
        listing = list_shards()
        if put and not fleet.simulation.now > BEGAN + 65.0:
            sleep_until(fleet, 75.0)
        return listing

    run_past_a_split(fleet, slow, 4, shard_sync_interval=1.0)


@pytest.mark.parametrize("left_out", [("1", "2"), ("2",)])
def test_a_listing_that_lacks_children_does_not_end_the_run(new_fleet, left_out):
    """For a while Kinesis lists that a shard is closed, and not all of what it was split into."""
    fleet, torn = new_fleet(shards=1), []

    def without_some(list_shards, put):
        listing = list_shards()
        if len(listing.shards) > 1 and fleet.simulation.now > BEGAN + 58.0 and len(torn) < 10:
            torn.append(listing)
            left = tuple(shard for shard in listing.shards if shard.shard_id[-1] not in left_out)
            return replace(listing, shards=left)
        return listing

    run_past_a_split(fleet, without_some, 6)
    assert len(torn) == 10


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_mode": "interval", "checkpoint_interval": 30.0},
        {"batch_window": 20.0, "batch_size": 1000},
        {"call_with_empty_batches": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_gathered_or_not_checkpointed_is_settled_before_a_shard_is_finished(new_fleet, options):
    fleet = new_fleet(shards=2)
    put = fleet.put(50)
    fleet.simulation.sleep(60)
    worker = fleet.start("w1", until=time_at(50), **options)
    fleet.wait(lambda: worker.join(0.0))
    assert set(fleet.ledger.payloads) == set(put)
    assert {call for _, call, _ in fleet.ledger.calls} == {"initialize", "process_records", "shard_ended"}


def test_what_was_trimmed_before_a_run_went_on_is_reported_though_no_record_follows(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(20)
    run = {"until": time_at(60), "max_records": 5, "checkpoint_mode": "auto"}
    worker = fleet.start("w1", max_records_per_second=1.0, **run)
    fleet.wait(lambda: any(not lease.checkpoint.is_start for lease in fleet.rows().values()))
    worker.stop()
    fleet.simulation.sleep(25 * 3600)
    worker = fleet.start("w2", **run)
    fleet.wait(lambda: worker.join(0.0), 3600.0)
    assert [event.shard for event in fleet.happened(DataLost)] == list(fleet.rows())
    assert 0 < len(fleet.ledger.payloads) < 20


def test_a_processor_that_checkpoints_by_itself_and_has_not_keeps_the_shard_from_being_finished(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(5)
    fleet.simulation.sleep(60)
    worker = fleet.start("w1", until=time_at(50), checkpoint_mode="manual")
    fleet.simulation.sleep(60)
    assert not worker.join(0.0)
    assert not any(lease.is_ended for lease in fleet.rows().values())


# -- whose table it is -------------------------------------------------------------------------------------------------


def test_the_rows_of_a_run_say_where_it_ends(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", until=time_at(500))
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"})
    assert [lease.metadata.until for lease in fleet.rows().values()] == [millis_at(500)]


BEGUN = {"until": time_at(500), "initial_position": time_at(1)}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"until": time_at(500)}, "an application whose run has no end.*, or leave out until"),
        (BEGUN, {}, "a run from 20.* until 20.*another table"),
        (BEGUN, {**BEGUN, "until": time_at(501)}, "a run from 20.* until 20.*, or that range"),
        (BEGUN, {**BEGUN, "initial_position": time_at(2)}, "a run from 20.* until 20.*, or that range"),
        (BEGUN, {"until": time_at(500)}, "a run from 20.* until 20.*, or that range"),
        (BEGUN, {**BEGUN, "shards": "1"}, "a run from 20.* until 20.*, or that range"),
        ({**BEGUN, "shards": "1"}, BEGUN, "a run of the shards 001 from 20.* until 20.*, or that range"),
    ],
    ids=[
        "an application's",
        "a run's",
        "another end's",
        "another beginning's",
        "one from a time on",
        "all shards",
        "one shard",
    ],
)
def test_a_table_of_something_else_is_refused_and_not_touched(new_fleet, first, second, words):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", **first)
    fleet.simulation.sleep(5)
    fleet.put(10)
    fleet.wait(lambda: fleet.ledger.payloads)
    worker.stop()
    before = fleet.items()
    with pytest.raises(FatalError, match=words):
        fleet.start("w2", **second)
    assert fleet.items() == before


def test_a_run_that_died_before_its_first_checkpoint_does_not_begin_later(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", **BEGUN)
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"})
    fleet.simulation.kill("w1")
    assert [lease.metadata.begin for lease in fleet.rows().values()] == [format_time(millis_at(1))]
    fleet.simulation.sleep(5)
    put = fleet.put(10)
    with pytest.raises(FatalError, match="is of a run from"):
        fleet.start("w2", until=time_at(500), initial_position=time_at(60))
    fleet.start("w3", **BEGUN)
    fleet.wait_delivered(put)


def test_a_table_with_the_rows_of_two_is_refused_with_a_remedy(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", **BEGUN)
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"})
    worker.stop()
    _, last = sorted(fleet.items().items())[-1]
    del last["pykcl"]["M"]["until"]
    fleet.dynamodb.put_raw(TABLE, last)
    with pytest.raises(FatalError, match=r"others are its own.*delete the rows of the one"):
        fleet.start("w2", **BEGUN)


def test_a_start_at_latest_behind_the_end_is_refused_unless_the_run_has_begun(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", until=time_at(50), initial_position="LATEST")
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"})
    put = fleet.put(10)
    fleet.simulation.kill("w1")
    fleet.simulation.sleep(60)
    late = {"until": time_at(50), "initial_position": "LATEST"}
    with pytest.raises(SetupError, match=r"until=.* is over: no record lies between"):
        fleet.start("w2", table_name="other", **late)
    worker = fleet.start("w3", **late)
    fleet.wait(lambda: worker.join(0.0))
    assert set(fleet.ledger.payloads) == set(put)


def test_a_row_that_a_worker_of_java_has_taken_is_refused(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", until=time_at(500))
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"})
    worker.stop()
    for row in fleet.items().values():
        fleet.dynamodb.put_raw(TABLE, {**row, "leaseOwner": {"S": "java"}})
    with pytest.raises(FatalError, match="'java'"):
        fleet.start("w2", until=time_at(500))


@pytest.mark.parametrize(("first", "second"), [(time_at(500), None), (None, time_at(500))])
def test_what_begins_in_an_empty_table_refuses_what_another_one_has_put_there_since(new_fleet, first, second):
    """The start of one scans the table; then the other one begins to work; then the first one goes on."""
    fleet = new_fleet(shards=2)
    late = fleet.worker("late", until=second)
    table, _ = late._adapters
    scan = table.scan

    def overtaken(**options):
        table.scan = scan
        rows = scan(**options)
        fleet.start("early", until=first)
        fleet.wait(lambda: set(fleet.owners().values()) == {"early"})
        return rows

    table.scan = overtaken
    late.start()
    put = fleet.put(10)
    fleet.simulation.sleep(30.0)
    assert isinstance(late.failure, FatalError)
    fleet.wait_delivered(put)
    assert fleet.ledger.by("late") == []
    ends = {lease.metadata.until for lease in fleet.rows().values()}
    assert ends == {None if first is None else millis_at(500)}


@pytest.mark.parametrize("ends", [(500, 501), (500, None)], ids=["two runs", "a run and an application"])
@pytest.mark.parametrize("seed", range(8))
def test_of_two_that_begin_at_once_in_an_empty_table_one_works_and_the_other_ends(ends, seed):
    with Simulation(seed=seed) as simulation:
        fleet = Fleet(simulation, shards=3)
        workers = [fleet.worker(f"w{number}", until=end and time_at(end)) for number, end in enumerate(ends)]
        for worker in workers:
            simulation.runtime(worker.worker_id).spawn("start", worker.start)
        fleet.wait(lambda: any(worker.failure for worker in workers), 60.0)
        put = fleet.put(20)
        fleet.wait_delivered(put)
        assert sum(worker.failure is None for worker in workers) == 1
        assert len({lease.metadata.until for lease in fleet.rows().values()}) == 1
