"""The contract of all readers of a shard: by polls, by enhanced fan-out, and by either of them."""

from contextlib import suppress

import pytest

from pykcl.errors import ShardGone, TemporaryError
from pykcl.events import DataLost
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.kpl import UserRecord, aggregate
from tests.worker.reading import SHARD, Reading, payloads

LATEST = ReadFrom("LATEST")


@pytest.fixture(params=["polling", "fanout", "fanout-or-polling", "fallen back"])
def reading(request, new_fleet):
    """Give the fleet, and a function that begins to read its one shard."""
    fleet, begun = new_fleet(shards=1), []

    def begin(**options):
        begun.append(Reading(fleet, request.param, **options))
        return begun[-1]

    yield fleet, begin
    for one in begun:
        one.reader.close()
        assert one.reserved == 0


def test_records_come_once_and_in_order(reading):
    fleet, begin = reading
    put, one = fleet.put(300), begin()
    assert one.records() == put
    more = fleet.put(20, "more")
    assert one.records() == more


def test_what_was_not_finished_comes_again(reading):
    fleet, begin = reading
    put, one = fleet.put(5), begin()
    assert payloads(one.page()) == put
    one.reader.reopen()
    assert one.records() == put


def test_what_was_finished_does_not_come_again(reading):
    fleet, begin = reading
    put, one = fleet.put(5), begin()
    one.reader.finish(one.page())
    one.reader.reopen()
    more = fleet.put(3, "more")
    assert put
    assert one.records() == more


@pytest.mark.parametrize("leave", ["drop", "reopen", "close"])
def test_the_buffer_of_a_page_is_given_back(reading, leave):
    fleet, begin = reading
    fleet.put(50)
    one = begin()
    one.page()
    assert one.reserved > 0
    getattr(one.reader, leave)()
    one.reader.stop_others()
    assert one.reserved == 0


def test_bytes_that_are_kept_stay_reserved_until_their_keeper_releases_them(reading):
    fleet, begin = reading
    fleet.put(50)
    one = begin()
    page, seen = one.page(), []
    one.reader.finish(page, lambda reserved: seen.append(reserved) or 100)
    one.reader.stop_others()
    assert (one.reserved, seen[0] > 100) == (100, True)
    one.context.memory.release(100)


def test_without_buffer_space_there_is_no_page_and_the_read_is_to_be_tried_again(reading):
    fleet, begin = reading
    put, one = fleet.put(5), begin()
    one.is_full = True
    assert one.page(seconds=5) is None
    assert one.reader.awaited() is None
    one.is_full = False
    assert one.records() == put


def test_a_checkpoint_within_an_aggregate_is_followed_by_the_next_of_its_records(reading):
    fleet, begin = reading
    (blob,) = aggregate([UserRecord(f"key-{number}", None, f"{number}".encode()) for number in range(5)])
    fleet.kinesis.put_record("orders", blob.data, "key-0")
    (record,) = begin().page().fetched.records
    number = record.sequence_number
    resumed = begin(first=ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number), after=Checkpoint(number, 2))
    assert resumed.records(20) == [b"3", b"4"]


def test_a_start_at_latest_leaves_out_what_was_put_before_and_nothing_that_comes_after_it_was_opened(reading):
    fleet, begin = reading
    fleet.put(5, "old")
    # Opened again, it is opened at that time, which is cut to the second.
    fleet.simulation.sleep(2)
    one = begin(first=LATEST)
    assert one.page(seconds=5) is None
    one.reader.reopen()
    new = fleet.put(5, "new")
    assert one.records() == new


def test_the_last_page_of_a_shard_names_its_children(reading):
    fleet, begin = reading
    put, one = fleet.put(5), begin()
    fleet.kinesis.split("orders", SHARD)
    assert one.records(20) == put
    one.reader.reopen()
    page = one.page(lambda page: page.is_last)
    one.reader.finish(page)
    assert [shard.shard_id for shard in one.reader.children] == fleet.open_shards()
    assert all(shard.parents == (SHARD,) for shard in one.reader.children)


def test_records_that_were_trimmed_are_reported_once_and_the_reading_goes_on(reading):
    fleet, begin = reading
    fleet.put(1)
    number = begin().page().fetched.records[0].sequence_number
    fleet.simulation.sleep(25 * 3600)
    put = fleet.put(5, "new")
    resumed = begin(first=ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number), after=Checkpoint(number, 0))
    assert resumed.records(300) == put
    assert [event.shard for event in fleet.happened(DataLost)] == [SHARD]


def test_reads_that_are_refused_for_their_rate_are_slowed_down_and_lose_nothing(reading):
    fleet, begin = reading
    put, one, left = fleet.put(5), begin(), [5]

    def throttle(operation, *_):
        if operation in ("GetRecords", "SubscribeToShard") and left[0]:
            left[0] -= 1
            raise AwsError("LimitExceededException", "slow down")

    fleet.kinesis.fault = throttle
    with suppress(TemporaryError):
        one.reader.read(lambda: False)
    assert one.reader.throttled() >= 0.2
    assert one.records() == put
    assert left == [0]


def test_a_shard_that_kinesis_has_dropped_is_gone(reading):
    fleet, begin = reading
    fleet.kinesis.split("orders", SHARD)
    fleet.simulation.sleep(25 * 3600)
    one = begin()
    with pytest.raises(ShardGone):
        one.page()
