"""Reading near the trim horizon, where one GetRecords call covers a bounded span of stream time and most pages are empty.

On AWS an idle or sparse shard is crossed in many calls: the reader must get on with each of them, and still notice what
retention has taken.
"""

import pytest

from pykcl.errors import IteratorExpired, ShardGone, TemporaryError
from pykcl.events import DataLost, RetentionAlmostExceeded
from pykcl.local.stream import ReadSpan
from pykcl.testing.fleet import STREAM
from tests.worker.reading import Reading

HOUR = 3600
HALF_AN_HOUR = ReadSpan(1800, 1800)
SIX_MINUTES = ReadSpan(360, 360)
"""An idle day was seen to take some 250 calls on AWS."""


class Pages(Reading):
    """Reads page by page."""

    def __init__(self, fleet, **options):
        super().__init__(fleet, **options)
        self.read_so_far, self.pages, self.has_ended = [], 0, False

    @property
    def delivered(self):
        return [record.data for record in self.read_so_far]

    def read(self):
        page = self.reader.read(lambda: False)
        if page is not None:
            self.pages += 1
            self.read_so_far += [record for batch in page.batches for record in batch]
            self.reader.finish(page)
            self.has_ended = page.is_last
        self.fleet.simulation.sleep(0.2)


def count_reads(fleet):
    """The operations on the stream from now on."""
    calls = []
    fleet.kinesis.fault = lambda operation, stream, shard: calls.append(operation)
    return calls


def test_a_sparse_shard_is_read_from_the_trim_horizon(new_fleet):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    fleet.simulation.sleep(3 * 24 * HOUR)
    put = fleet.put(5)
    fleet.simulation.sleep(HOUR)
    calls = count_reads(fleet)
    fleet.start("w1")
    fleet.wait_delivered(put, 60)
    assert calls.count("GetRecords") <= 48 + 5, "one call for each span from the horizon on"
    assert calls.count("GetShardIterator") <= 3
    assert not fleet.happened(DataLost)


def test_a_shard_that_was_idle_for_longer_than_its_retention_delivers_what_comes_after_a_deploy(new_fleet):
    fleet = new_fleet(shards=1, read_span=SIX_MINUTES)
    first = fleet.start("w1")
    fleet.wait_delivered(fleet.put(1))
    first.stop()
    fleet.simulation.sleep(25 * HOUR)
    fleet.start("w2")
    new = fleet.put(1)
    fleet.wait_delivered(new, 120)


def test_a_parent_that_was_split_while_the_fleet_was_away_ends_and_its_children_are_read(new_fleet):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    first = fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    first.stop()
    (parent,) = fleet.open_shards()
    fleet.kinesis.split(STREAM, parent)
    new = fleet.put(4)
    fleet.simulation.sleep(22 * HOUR)
    fleet.start("w2")
    fleet.wait_delivered(new, 60)
    fleet.wait(lambda: fleet.rows()[parent].is_ended, 60, "the end of the parent")
    assert not fleet.happened(DataLost)
    assert {event.shard for event in fleet.happened(RetentionAlmostExceeded)} != {parent}, (
        "the end itself is not at risk"
    )


@pytest.mark.parametrize("max_records", [1, 2])
def test_pages_of_one_record_get_on(new_fleet, max_records):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    put = fleet.put(20)
    fleet.simulation.sleep(22.5 * HOUR)
    fleet.start("w1", max_records=max_records)
    fleet.wait_delivered(put, 120)
    assert not fleet.happened(DataLost)


def test_records_that_fill_a_page_each_get_on(new_fleet):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    fleet.kinesis.set_max_record_size(STREAM, 10_240)
    put = [bytes([number]) * (9 * 1024 * 1024) for number in range(4)]
    for data in put:
        fleet.kinesis.put_record(STREAM, data, "k")
    fleet.simulation.sleep(22.5 * HOUR)
    fleet.start("w1")
    fleet.wait_delivered(put, 120)
    assert not fleet.happened(DataLost)


def test_a_record_trimmed_while_an_iterator_was_kept_across_empty_pages_is_reported(new_fleet):
    """1) The last record delivered is 23 h old, and the pages behind it are empty, so the iterator is kept; 2) the reader
    stands still for an hour, and the next record, 23 h old as well, is trimmed; 3) the iterator steps over it."""
    fleet = new_fleet(shards=1, read_span=ReadSpan(60, 60))
    fleet.kinesis.put_record(STREAM, b"first", "k")
    fleet.simulation.sleep(1200)
    fleet.kinesis.put_record(STREAM, b"trimmed", "k")
    fleet.simulation.sleep(4 * HOUR)
    fleet.kinesis.put_record(STREAM, b"kept", "k")
    fleet.simulation.sleep(19 * HOUR)
    reading = Pages(fleet)
    while reading.pages < 5:
        reading.read()
    assert reading.delivered == [b"first"]
    fleet.simulation.sleep(2 * HOUR)
    while b"kept" not in reading.delivered:
        reading.read()
    assert reading.delivered == [b"first", b"kept"]
    (lost,) = fleet.happened(DataLost)
    assert lost.checkpoint.startswith(f"{reading.read_so_far[0].sequence_number}:")


@pytest.mark.parametrize("spacing", [60, 1800])
def test_retention_that_is_lowered_while_a_reader_lags_is_reported(new_fleet, spacing):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    fleet.kinesis.set_retention(STREAM, 168)
    put = []
    for _ in range(40 * HOUR // spacing):
        put += fleet.put(1)
        fleet.simulation.sleep(spacing)
    reading = Pages(fleet, max_records=10)
    while len(reading.delivered) < 10:
        reading.read()
    fleet.kinesis.set_retention(STREAM, 24)
    while reading.delivered[-1] != put[-1]:
        reading.read()
    lacking = set(put) - set(reading.delivered)
    assert lacking
    (lost,) = fleet.happened(DataLost)
    first_behind = next(
        r for r in reading.read_so_far if put.index(r.data) > put.index(max(lacking, key=put.index))
    )
    assert lost.resumed_at == f"{first_behind.sequence_number}:0"


@pytest.mark.parametrize("hours", [23, 30, 60])
def test_a_sparse_reader_that_lags_less_than_the_retention_reports_no_loss(new_fleet, hours):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    fleet.kinesis.set_retention(STREAM, 72)
    put = []
    for _ in range(10):
        put += fleet.put(1)
        fleet.simulation.sleep(hours * HOUR / 10)
    calls = count_reads(fleet)
    fleet.start("w1")
    fleet.wait_delivered(put, 120)
    assert not fleet.happened(DataLost)
    assert calls.count("GetRecords") < hours * 2 + 3 * 10 + 10


def test_records_that_empty_pages_stepped_over_are_reported_when_the_next_one_comes(new_fleet):
    """1) The reader crosses an idle stretch 40 h behind when the retention is lowered; 2) the pages that step over what was
    trimmed are empty; 3) the next record comes when the reader is far from the horizon again."""
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    fleet.kinesis.set_retention(STREAM, 168)
    fleet.put(1)
    fleet.simulation.sleep(10 * HOUR)
    trimmed = fleet.put(1)
    fleet.simulation.sleep(20 * HOUR)
    kept = fleet.put(1)
    fleet.simulation.sleep(10 * HOUR)
    reading = Pages(fleet)
    while reading.pages < 5:
        reading.read()
    fleet.kinesis.set_retention(STREAM, 24)
    while kept[0] not in reading.delivered:
        reading.read()
    assert trimmed[0] not in reading.delivered
    assert len(fleet.happened(DataLost)) == 1


def test_the_trimmed_rest_of_a_closed_shard_is_reported_at_its_end(new_fleet):
    fleet = new_fleet(shards=1, read_span=HALF_AN_HOUR)
    fleet.kinesis.set_retention(STREAM, 168)
    fleet.put(1)
    fleet.simulation.sleep(10 * HOUR)
    fleet.put(1)
    fleet.simulation.sleep(10 * HOUR)
    reading = Pages(fleet)
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    fleet.simulation.sleep(20 * HOUR)
    while reading.pages < 3:
        reading.read()
    fleet.kinesis.set_retention(STREAM, 24)
    while not reading.has_ended:
        reading.read()
    assert len(reading.delivered) == 1
    (lost,) = fleet.happened(DataLost)
    assert lost.resumed_at is None


def reading_near_the_horizon(new_fleet):
    """A fleet with one record that retention takes soon, and its reading by "w1"."""
    fleet = new_fleet(shards=1, read_span=SIX_MINUTES)
    fleet.kinesis.put_record(STREAM, b"old", "k")
    fleet.simulation.sleep(23.9 * HOUR)
    return fleet, Pages(fleet)


def test_an_idle_shard_whose_last_record_is_almost_as_old_as_the_retention_reports_nothing_later(new_fleet):
    fleet, reading = reading_near_the_horizon(new_fleet)
    while reading.pages < 260:
        reading.read()
    fleet.simulation.sleep(250)
    for _ in range(8):
        reading.read()
        fleet.simulation.sleep(250)
    fleet.kinesis.put_record(STREAM, b"new", "k")
    while b"new" not in reading.delivered:
        reading.read()
    assert not fleet.happened(DataLost)


def test_a_check_for_trimmed_records_whose_iterators_are_all_refused_is_trouble_and_goes_on_when_it_ends(
    new_fleet,
):
    fleet, reading = reading_near_the_horizon(new_fleet)
    stream = reading.context.stream
    fetch, refused = stream.fetch, []

    def refuse_the_check(shard_id, iterator, limit):
        if limit == 1:
            refused.append(iterator)
            raise IteratorExpired("refused")
        return fetch(shard_id, iterator, limit)

    stream.fetch = refuse_the_check
    with pytest.raises(TemporaryError, match="refused 2 iterators"):
        while len(refused) < 4:
            reading.read()
    stream.fetch = fetch
    fleet.kinesis.put_record(STREAM, b"new", "k")
    while b"new" not in reading.delivered:
        reading.read()
    assert reading.delivered == [b"old", b"new"]


def test_a_check_for_trimmed_records_to_which_the_shard_is_denied_once_reports_no_loss(new_fleet):
    fleet, reading = reading_near_the_horizon(new_fleet)
    stream = reading.context.stream
    fetch, denied = stream.fetch, []

    def deny_the_check_once(shard_id, iterator, limit):
        if limit == 1 and not denied:
            denied.append(iterator)
            raise ShardGone("no such shard")
        return fetch(shard_id, iterator, limit)

    stream.fetch = deny_the_check_once
    with pytest.raises(TemporaryError, match="one answer proves nothing"):
        while not denied:
            reading.read()
    fleet.kinesis.put_record(STREAM, b"new", "k")
    while b"new" not in reading.delivered:
        reading.read()
    assert reading.delivered == [b"old", b"new"]
    assert not fleet.happened(DataLost)
