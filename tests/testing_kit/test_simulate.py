"""simulate: a processor in whole fleets, with records of its own; what fails can be run again."""

import re
from datetime import UTC, datetime
from typing import ClassVar

import pytest
from kit_processors import Orders

from pykcl import Batch, ConfigError, RecordProcessor, Window, handler
from pykcl.testing import SimulationFailed, records, simulate


class Stuck(RecordProcessor):
    """Never gets past its first record."""

    def process_records(self, batch):
        raise ValueError("never")


def test_a_good_processor_keeps_every_guarantee():
    Orders.done.clear()
    result = simulate(Orders, seeds=2, first=3)
    assert result.seeds == range(3, 5)
    assert result.deliveries >= result.records - result.expired > 0
    assert len(Orders.done) >= result.records - result.expired
    assert re.fullmatch(
        r"<SimulationResult of seeds 3 to 4: every guarantee kept for \d+ records in \d+ deliveries, \d+ faults in "
        r"0\.\d simulated hours>",
        repr(result),
    )


class EachRecord(RecordProcessor):
    """Checkpoints after each record."""

    def process_records(self, batch):
        for record in batch:
            batch.checkpointer.checkpoint(record)

    def shard_ended(self, end):
        end.checkpointer.checkpoint()


@pytest.mark.parametrize(
    ("seed", "full"),
    [
        (5, False),
        pytest.param(0, True, marks=pytest.mark.slow),
        pytest.param(3, True, marks=pytest.mark.slow),
    ],
)
def test_a_batch_that_is_checkpointed_whole_and_fails_all_the_same_is_not_owed_again(seed, full):
    """It fails without raising, as a function with a stray yield does, so nothing of it is left to be done."""
    assert simulate(EachRecord, seeds=1, first=seed, full=full).deliveries


def test_a_processor_that_never_gets_on_fails_with_the_call_that_runs_it_again():
    with pytest.raises(SimulationFailed) as caught:
        simulate(Stuck, seeds=3, first=5, off=["F1", "F12"])
    replay = caught.value.replay
    assert replay == "simulate(Stuck, seeds=1, first=5, off=('F1', 'F12', 'F12.lowered'))"
    assert f"  replay: {replay}\n" in str(caught.value)
    assert "Seed 5 failed: ALL_DELIVERED" in str(caught.value)
    assert caught.value.seed == 5
    assert re.search(
        r"The processor raised \d+ times, last ValueError at test_simulate.py:\d+: never", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.slow
def test_the_call_does_run_it_again():
    with pytest.raises(SimulationFailed) as caught:
        simulate(Stuck, seeds=2, first=5)
    with pytest.raises(SimulationFailed) as again:
        eval(caught.value.replay, {"simulate": simulate, "Stuck": Stuck})
    assert str(again.value) == str(caught.value)


# -- records of the user's own ---------------------------------------------------------------------------------


class Totals(RecordProcessor):
    """Breaks on an order without a total."""

    seen: ClassVar[list] = []

    def process_records(self, batch):
        self.seen += [record.json()["total"] for record in batch]


def test_the_records_of_the_user_are_put_and_no_others():
    Totals.seen.clear()
    given = [
        *records(*({"total": n} for n in range(40))),
        *records({"total": 40}, {"total": 41}, aggregated=True),
    ]
    result = simulate(Totals, seeds=2, first=3, records=given)
    assert set(Totals.seen) == set(range(42))
    assert result.records > 2 * 42


@pytest.mark.parametrize("aggregated", [False, True])
def test_a_processor_that_breaks_only_on_a_record_of_the_user_is_caught(aggregated):
    assert simulate(Totals, seeds=1, first=3, records=records({"total": 1}, {"total": 2})).records
    given = records({"total": 1}, {"id": 2}, aggregated=aggregated)
    with pytest.raises(SimulationFailed, match="ALL_DELIVERED") as caught:
        simulate(Totals, seeds=1, first=3, records=given)
    assert caught.value.replay == "simulate(Totals, seeds=1, first=3, records=...)"
    assert isinstance(caught.value.__cause__, KeyError)


def test_every_record_of_the_user_is_put_however_many_there_are():
    Totals.seen.clear()
    simulate(Totals, seeds=1, first=3, records=[{"total": n} for n in range(2000)])
    assert set(Totals.seen) == set(range(2000))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seeds": 0}, "seeds=0 is not a whole number from 1"),
        ({"first": -1}, "first=-1 is not a whole number from 0"),
        ({"off": "F1"}, r"Do: write off=\('F1',\)"),
        ({"off": ["F99"]}, "no kind of fault called 'F99'"),
        ({"records": {"id": 1}}, "The records are one dict, not a list"),
        ({"records": []}, "records= is empty"),
        ({"records": records("a", arrived=datetime.now(UTC))}, "arrived= has no meaning in a fleet"),
        ({"what": Orders()}, "one instance per shard"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        simulate(**{"what": Orders, **arguments})


def test_a_handler_with_windows_is_refused_not_blamed():
    """Some of the seeds checkpoint by hand, which windows do not allow."""

    def count(batch: Batch, window: Window) -> int:
        return (window.state or 0) + len(batch)

    with pytest.raises(ConfigError, match=r"windows.*run_processor\(.*end=\"crash\""):
        simulate(handler(count, window=60), seeds=1)
