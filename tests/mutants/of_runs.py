"""Bugs in the end of runs that end by themselves."""

from __future__ import annotations

from math import inf

from pykcl.cli import replay
from pykcl.planning.run_end import NO_END
from pykcl.testing.simulation import Guarantee
from pykcl.worker import context, lease_manager, reading_place, record_delivery
from pykcl.worker.lease_manager import LeaseManager
from tests.mutants.mutant import Function, Mutant, Patch
from tests.simulation.course import Mode

_RUNS = "tests/worker/test_runs_that_end.py::"


def a_page_ends_a_shard_whenever_it_was_requested(patch: Patch) -> None:
    def make(is_finished: Function) -> Function:
        return lambda records, behind, *, until, requested_after: is_finished(
            records, behind, until=until, requested_after=inf
        )

    patch.replace(record_delivery, "is_finished", make)


def rows_of_other_runs_are_not_found(patch: Patch) -> None:
    patch.replace(context, "row_of_another_run", lambda _: lambda rows, own: None)


def records_behind_the_end_are_delivered(patch: Patch) -> None:
    patch.replace(reading_place, "records_before", lambda _: lambda records, until: records)


def over_with_the_first_lease_that_ends(patch: Patch) -> None:
    patch.replace(
        lease_manager, "is_over", lambda _: lambda leases: any(one.is_ended for one in leases.values())
    )


def never_over(patch: Patch) -> None:
    patch.replace(LeaseManager, "_is_run_over", lambda _: lambda self, listing, now: False)


def a_run_that_was_begun_has_no_end(patch: Patch) -> None:
    patch.replace(replay, "range_of", lambda _: lambda lease: NO_END)


def a_listing_that_lacks_children_counts(patch: Patch) -> None:
    patch.replace(lease_manager, "without_successors", lambda _: lambda shards: set())


RUNS = (
    Mutant("M126", "a page ends the shard of a run that is over, whenever it was requested", "-", (),
            a_page_ends_a_shard_whenever_it_was_requested,
            tests=(_RUNS + "test_a_page_that_was_fetched_ahead_does_not_end_the_shard",)),
    Mutant("M127", "the rows of another run are taken for one's own", "here", (), rows_of_other_runs_are_not_found,
            tests=(_RUNS + "test_what_begins_in_an_empty_table_refuses_what_another_one_has_put_there_since",)),
    Mutant("M128", "records that arrived after the end of the run are delivered", "-", (Guarantee.NO_GAP,),
            records_behind_the_end_are_delivered, mode=Mode.UNTIL),
    Mutant("M129", "a run is over when the first lease has ended", "-", (Guarantee.ALL_DELIVERED,),
            over_with_the_first_lease_that_ends, mode=Mode.UNTIL),
    Mutant("M130", "a worker goes on when the run is over", "-", (Guarantee.STOP,), never_over, mode=Mode.UNTIL),
    Mutant("M131", "the same command gives a replay that was begun another end", "-", (),
            a_run_that_was_begun_has_no_end,
            tests=("tests/cli/test_replay.py::test_now_is_the_end_of_the_run_that_was_begun",)),
    Mutant("M132", "a listing that lacks a child shows that the run is over", "here", (),
            a_listing_that_lacks_children_counts,
            tests=(_RUNS + "test_a_listing_that_lacks_children_does_not_end_the_run",)),
)  # fmt: skip
