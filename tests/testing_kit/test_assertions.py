"""Each assertion passes for a good processor, and fails for the broken one it is there for, naming the record."""

import pytest
from kit_processors import ByHand, ChecksTooEarly, Drops, Orders, Raises, Reorders, Swallows

from pykcl import ConfigError
from pykcl.testing import assert_at_least_once, assert_in_order, assert_no_loss, records, run_processor

ABC = records("a", "b", "c", partition_key="k")

pytestmark = pytest.mark.usefixtures("empty")


@pytest.fixture
def empty():
    Orders.done.clear()


def text_of(record):
    return record.text()


def failure(check, *args, **options):
    with pytest.raises(AssertionError) as caught:
        check(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize("end", ["shard_end", "stop", "idle", "lease_lost", "crash"])
@pytest.mark.parametrize(("what", "mode"), [(Orders, "auto"), (ByHand, "manual")])
def test_a_good_processor_passes_every_assertion(what, mode, end):
    result = run_processor(what, ABC, end=end, checkpoint_mode=mode, max_records=2)
    for done in (None, Orders.done):
        assert_at_least_once(result, done, by=text_of)
        assert_no_loss(result, done, by=text_of)
        assert_in_order(result, done, by=text_of)
        assert_in_order(result, done, per="key", by=text_of)


def test_a_record_that_was_dropped_is_named():
    result = run_processor(Drops, ABC, seed=3)
    text = failure(assert_at_least_once, result, Orders.done, by=text_of)
    assert text.startswith("Not processed: 1 of 3 records. The same run again: seed=3.")
    assert "record 2 of 3 (b'b', key 'k', shardId-000000000000): process_records returned" in text
    assert "the checkpoint is past it" in text
    assert "Lost: 1 of 3 records" in failure(assert_no_loss, result, Orders.done, by=text_of)


def test_a_checkpoint_before_the_work_loses_records_in_a_crash():
    result = run_processor(ChecksTooEarly, ABC, end="crash", checkpoint_mode="manual")
    assert Orders.done == []
    assert "record 1 of 3 (b'a', key 'k', shardId-000000000000) and 2 more" in failure(
        assert_no_loss, result, Orders.done, by=text_of
    )


def test_an_error_that_was_swallowed_shows_in_what_is_done():
    result = run_processor(Swallows, records(1, "no json", 3))
    assert_at_least_once(result)
    text = failure(assert_at_least_once, result, Orders.done, by=text_of)
    assert "record 2 of 3 (b'no json'" in text


def test_the_order_of_a_key_is_seen_in_what_is_done():
    result = run_processor(Reorders, ABC)
    for per, group in (("key", "'k'"), ("shard", "'shardId-000000000000'")):
        text = failure(assert_in_order, result, Orders.done, per=per, by=text_of)
        assert f"The order of {per} {group} was not kept" in text
        assert "record 2 (b'b', key 'k', shardId-000000000000) was processed after record 3 (b'c'" in text


def test_the_order_of_a_key_may_be_kept_where_that_of_the_shard_is_not():
    result = run_processor(Reorders, records("a", "b"))
    assert_in_order(result, Orders.done, per="key", by=text_of)
    with pytest.raises(AssertionError, match="order of shard"):
        assert_in_order(result, Orders.done, by=text_of)
    with pytest.raises(ConfigError, match='Do: say per="shard" or per="key"'):
        assert_in_order(result, per="stream")


def test_a_skipped_record_is_no_loss_and_yet_not_processed():
    result = run_processor(Raises, records(1, "no json", 3), on_error="skip", max_records=1)
    assert_no_loss(result)
    text = failure(assert_at_least_once, result)
    assert "record 2 of 3 (b'no json', key 'key-1', shardId-000000000000): in the batch at which" in text
    assert "raised NotJson at kit_processors.py:" in text
    assert 'skipped as on_error="skip" says' in text


def test_what_stopped_the_worker_is_the_reason_for_what_is_missing():
    result = run_processor(Raises, records(1, "no json", 3), on_error="raise", max_records=1)
    text = failure(assert_at_least_once, result)
    assert "record 2 of 3 (b'no json'" in text
    assert (
        "record 3 of 3 (b'3', key 'key-2', shardId-000000000000): it was never handed to the processor"
        in text
    )


def test_values_that_stand_for_no_record_are_pointed_out():
    result = run_processor(Orders, ABC)
    text = failure(assert_at_least_once, result, Orders.done)
    assert "`done` holds values such as 'a'; searched for b'a'. Do: give by=" in text


def test_done_may_hold_records_and_what_cannot_be_hashed():
    result = run_processor(Orders, records({"id": 1}, {"id": 2}))
    assert_at_least_once(result, result.delivered)
    assert_at_least_once(result, iter([{"id": 2}, {"id": 1}]), by=lambda record: record.json())
    assert "record 2 of 2" in failure(
        assert_at_least_once, result, [{"id": 1}], by=lambda record: record.json()
    )


def test_many_missing_records_take_a_few_lines():
    result = run_processor(Orders, records(*range(3000)))
    text = failure(assert_at_least_once, result, [str(number) for number in range(0, 3000, 2)], by=text_of)
    assert "Not processed: 1500 of 3000 records" in text
    assert len(text.splitlines()) < 12
