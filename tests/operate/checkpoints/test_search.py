"""The last record before a time, against a plain look at all records; and how many reads that takes."""

import random

import pytest

from pykcl.errors import PyKclError, Refused, SetupError, TemporaryError, Throttled
from pykcl.interfaces import Fetched
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.kpl import aggregate
from pykcl.model.lease import Lease
from pykcl.model.record import Record
from pykcl.model.shard import HashRange
from pykcl.operate.checkpoints import search as module
from pykcl.operate.checkpoints.plan import Situation
from pykcl.operate.checkpoints.reset import plan_skip
from pykcl.operate.checkpoints.search import ShardSearch
from pykcl.testing.memory.stream import MemoryStream

SHARD = "shardId-000000000000"
START = 1_700_000_000_000
HOUR = 3_600_000


def max_reads(idle_millis):
    """A search in steps, and one crossing of that much time without records, as AWS answers: 250 calls a day."""
    return 45 + 250 * idle_millis / (24 * HOUR)


class Clock:
    """Also a Runtime, as far as a search waits."""

    def __init__(self):
        self.millis = START
        self.waited = 0.0
        self.rng = random.Random(1)

    def __call__(self):
        return self.millis

    def utcnow_millis(self):
        return self.millis

    def monotonic(self):
        return self.millis / 1000

    def event(self):
        return self

    def wait(self, seconds):
        self.waited += seconds
        return False

    def random(self):
        return self.rng


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def kinesis(clock):
    model = LocalKinesis(clock)
    model.create_stream("s", 1)
    return model


@pytest.fixture
def reads():
    return []


@pytest.fixture
def searching(kinesis, clock, reads):
    stream = MemoryStream(kinesis, "s", clock)
    return lambda: ShardSearch(stream, SHARD, clock, lambda: reads.append(1))


def put(kinesis, clock, *pauses):
    """Records with these pauses before each; [(sequence number, arrival)]."""
    found = []
    for pause in pauses:
        clock.millis += pause
        found.append((kinesis.put_record("s", b"x", "k").sequence_number, clock.millis))
    return found


def expected(records, at):
    before = [number for number, arrived in records if arrived < at]
    after = [arrived for _, arrived in records if arrived >= at]
    return (Checkpoint(before[-1]) if before else AT_TRIM_HORIZON, after[0] if after else None)


def found_by(look):
    return look.resume.checkpoint, look.resume.resumes_at


@pytest.mark.parametrize("seed", range(30))
def test_it_finds_the_record_that_a_look_at_all_of_them_finds(seed, kinesis, clock, searching, reads):
    rng = random.Random(seed)
    pauses = [rng.choice([0, 1, 300, 5_000, 90_000, 2 * HOUR]) for _ in range(rng.randint(1, 12))]
    records = put(kinesis, clock, *pauses)
    clock.millis += rng.choice([0, 1000, 3 * HOUR])
    edges = {arrived + more for _, arrived in records for more in (-1, 0, 1)} | {START, clock.millis + 1000}
    for at in sorted(edges):
        look = searching().before(at)
        assert found_by(look) == expected(records, at), at
        assert look.resume.has_later is (look.resume.resumes_at is not None)
        assert look.oldest == records[0][1]
    assert len(reads) / len(edges) < max_reads(clock.millis - START)


def test_a_stretch_without_records_is_crossed_about_once(kinesis, clock, searching, reads):
    """Not once for every step back: each of its pages takes a read, and a shard has five a second for everybody."""
    records = put(kinesis, clock, 0, 5000, 10 * HOUR)
    between = records[1][1] + 8 * HOUR
    assert found_by(searching().before(between)) == expected(records, between)
    assert len(reads) < max_reads(15 * HOUR), "the halving crosses a part of it again"
    reads.clear()
    clock.millis += 10 * HOUR
    assert found_by(searching().before(clock.millis)) == expected(records, clock.millis)
    assert len(reads) < max_reads(23 * HOUR), "ten hours before the last record, and ten behind it"


def test_a_busy_shard_that_went_quiet_is_halved_and_not_read_through(
    kinesis, clock, searching, reads, monkeypatch
):
    monkeypatch.setattr(module, "_WALK_LIMIT", 100)
    records = put(kinesis, clock, *([20] * 20_000))
    clock.millis += 2 * HOUR
    at = clock.millis - 1000
    assert found_by(searching().before(at)) == expected(records, at)
    assert len(reads) < max_reads(2 * HOUR), "20,000 records are 200 reads"
    reads.clear()
    middle = records[9_999][1]
    assert found_by(searching().before(middle)) == expected(records, middle)
    assert len(reads) < 8


def test_no_more_than_five_reads_a_second_of_one_shard(kinesis, clock, searching, reads):
    put(kinesis, clock, 0, HOUR, HOUR)
    clock.millis += HOUR
    searching().before(clock.millis)
    assert len(reads) > 5
    assert clock.waited >= 0.2 * (len(reads) - 1) - 1e-9


def test_an_empty_shard_takes_one_read(searching, reads):
    look = searching().before(START + 1)
    assert found_by(look) == (AT_TRIM_HORIZON, None)
    assert len(reads) == 1


def test_records_of_a_moment_before_that_arrived_a_moment_late_come_again_rather_than_never(
    searching, kinesis, clock
):
    numbers = [number for number, _ in put(kinesis, clock, 0, 1000, 400, 10, 10)]
    shard = kinesis._streams["s"].shards[SHARD]
    # The third one says a later time than those behind it.
    shard.records[2].arrived_at_millis += 500
    at = shard.records[4].arrived_at_millis + 1
    assert searching().before(at).resume.checkpoint == Checkpoint(numbers[1])


def test_the_last_sub_record_of_an_aggregate_is_what_is_done(kinesis, clock, searching):
    (blob,) = aggregate([("k", None, b"1"), ("k", None, b"2")])
    kinesis.put_record("s", blob.data, blob.partition_key)
    clock.millis += 1
    assert searching().before(clock.millis).resume.checkpoint.sub_sequence_number == 1


def test_a_damaged_aggregate_is_one_plain_record(kinesis, clock, searching):
    (blob,) = aggregate([("k", None, b"1"), ("k", None, b"2")])
    kinesis.put_record("s", blob.data[:-1] + b"\x00", blob.partition_key)
    clock.millis += 1
    assert searching().before(clock.millis).resume.checkpoint.sub_sequence_number == 0


def test_behind_a_record_and_behind_a_part_of_an_aggregate(kinesis, clock, searching):
    (blob,) = aggregate([("k", None, b"1"), ("k", None, b"2")])
    number = kinesis.put_record("s", blob.data, blob.partition_key).sequence_number
    ((after, arrived),) = put(kinesis, clock, 5000)
    assert found_by(searching().after(number, None)) == (Checkpoint(number, 1), arrived)
    assert found_by(searching().after(number, 1)) == (Checkpoint(number, 1), arrived)
    assert found_by(searching().after(number, 0)) == (Checkpoint(number, 0), START)
    assert found_by(searching().after(after, None)) == (Checkpoint(after), None)
    with pytest.raises(PyKclError, match="ends with sub-sequence number 1, not 2"):
        searching().after(number, 2)
    with pytest.raises(PyKclError, match="has no record"):
        searching().after(str(int(number) + 10**11), None)


@pytest.fixture
def two_shards(clock):
    """Return the stream, and the shard and number of an aggregate with a record for each of two shards."""

    def make(distribution):
        model = LocalKinesis(clock)
        model.create_stream("s", 2, mode="ON_DEMAND", distribution=distribution)
        (blob,) = aggregate([("k", key, b"x") for key in ("0", str(2**128 - 1))])
        put_into = model.put_record("s", blob.data, blob.partition_key)
        return MemoryStream(model, "s", clock), put_into.shard_id, put_into.sequence_number

    return make


def situation_of(stream, lease):
    return Situation(stream.describe(), stream.list_shards(), (lease,), START)


def test_an_aggregate_of_any_hash_keys_is_skipped_where_kinesis_ignores_them(two_shards, clock):
    """The worker delivers it whole, and it counts."""
    stream, shard, number = two_shards("AUTO")
    lease = Lease(shard, AT_TRIM_HORIZON)
    plan, skipped = plan_skip(situation_of(stream, lease), shard, 2, stream, clock)
    assert [record.position for record in skipped] == [Checkpoint(number, 0), Checkpoint(number, 1)]
    assert plan.steps[-1].new.checkpoint == Checkpoint(number, 1)


def test_an_aggregate_that_no_worker_delivers_is_not_counted_as_skipped(two_shards, clock):
    """Even with another range that somebody wrote into the row: the range that Kinesis lists comes first, as in the worker."""
    stream, shard, _ = two_shards("USER_PARTITION_KEY")
    for row in (None, HashRange(0, 2**128 - 1)):
        with pytest.raises(Refused, match="there is no record"):
            plan_skip(
                situation_of(stream, Lease(shard, AT_TRIM_HORIZON, hash_range=row)), shard, 1, stream, clock
            )


class Scripted:
    """A stream whose pages are told beforehand. pages: records, millis behind; None: an error of that kind."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.opened = []

    def open(self, shard_id, start):
        self.opened.append(start)
        return "iterator"

    def fetch(self, shard_id, iterator, limit):
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        records, behind = page
        return Fetched(list(records), "next", behind, (), 1)

    def server_time_millis(self, *, as_seen=False):
        return START


def record(number, arrived):
    return Record(b"x", "k", number, arrived, SHARD, "s")


def test_empty_pages_on_the_way_are_not_the_tip(clock):
    stream = Scripted(([], 50_000), ([], 20_000), ([record("7", 5.0)], 0))
    assert ShardSearch(stream, SHARD, clock).oldest().resume.resumes_at == 5.0


def test_throttling_is_waited_for_and_does_not_last_for_ever(clock):
    stream = Scripted(Throttled("no"), TemporaryError("no"), ([record("7", 5.0)], 0))
    assert ShardSearch(stream, SHARD, clock).oldest().oldest == 5.0
    assert clock.waited > 0.5
    with pytest.raises(Throttled):
        ShardSearch(Scripted(*[Throttled("no")] * 20), SHARD, clock).oldest()


def test_an_iterator_that_expires_on_the_way_is_opened_again_behind_what_was_seen(clock):
    from pykcl.errors import IteratorExpired

    stream = Scripted(([record("7", 5.0)], 9), IteratorExpired("old"), ([record("8", 6.0)], 0))
    records = list(ShardSearch(stream, SHARD, clock).walk(module._OLDEST))
    assert [one.sequence_number for one in records] == ["7", "8"]
    assert (stream.opened[1].kind, stream.opened[1].sequence_number) == ("AFTER_SEQUENCE_NUMBER", "7")


def test_a_search_that_gets_nowhere_ends(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_READS", 20)
    with pytest.raises(TemporaryError, match="20 reads"):
        ShardSearch(Scripted(*[([], 5000)] * 30), SHARD, clock).oldest()


def test_records_without_arrival_times_are_refused_not_guessed(clock):
    with pytest.raises(SetupError, match="does not say when"):
        ShardSearch(Scripted(([record("7", 0.0)], 0)), SHARD, clock).before(START)


def test_a_number_that_is_no_position_of_the_shard_blames_the_argument(kinesis, searching):
    """Kinesis refuses it as it refuses the checkpoint of a row, and the row has no part in this."""
    kinesis.put_record("s", b"x", "k")
    with pytest.raises(PyKclError) as caught:
        searching().after("12", None)
    assert str(caught.value) == (
        f"12 is not a position of {SHARD}: it is not a sequence number that Kinesis gave to a record of this shard. "
        "Nothing was written. Do: name the sequence number of a record, or use --to-datetime or --to-earliest."
    )
