"""Bugs of shards that are paused: where they go on, and what is done meanwhile."""

from __future__ import annotations

from pykcl.worker.ack_delivery import AckDelivery
from pykcl.worker.reading_place import ReadingPlace
from pykcl.worker.record_delivery import RecordDelivery
from tests.mutants.mutant import Mutant, Patch

_PAUSING = "tests/worker/test_pausing.py::"


def goes_on_where_the_page_began(patch: Patch) -> None:
    patch.replace(ReadingPlace, "back_to", lambda _: lambda self, last: None)


def goes_on_behind_what_was_begun(patch: Patch) -> None:
    patch.replace(RecordDelivery, "_reached", lambda _: lambda self: self._progress.watermark.last)


def tried_again_while_paused(patch: Patch) -> None:
    patch.replace(AckDelivery, "hold_on", lambda _: lambda self: False)


PAUSES = (
    Mutant("M140", "a shard that is resumed goes on at the beginning of the page that the pause broke off", "-", (),
            goes_on_where_the_page_began,
            tests=(_PAUSING + "test_nothing_is_delivered_behind_the_running_batch_and_the_rest_of_the_page_is_dropped",)),
    Mutant("M141", "lanes that are resumed go on behind the last record that came to them, done or not", "-", (),
            goes_on_behind_what_was_begun,
            tests=(_PAUSING + "test_lanes_settle_the_rest_of_a_batch_behind_a_pause_and_repeat_none_of_it",)),
    Mutant("M142", "a batch to be acked that raised is tried again while its shard is paused", "-", (),
            tried_again_while_paused,
            tests=(_PAUSING + "test_a_batch_to_be_acked_that_raises_waits_for_the_end_of_the_pause",)),
)  # fmt: skip
