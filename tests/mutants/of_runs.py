"""Bugs in the end of runs that end by themselves. No simulation has such runs: each bug names the test that does."""

from __future__ import annotations

from math import inf

from pykcl.worker import context, record_delivery
from tests.mutants.mutant import Function, Mutant, Patch

_RUNS = "tests/worker/test_runs_that_end.py::"


def a_page_ends_a_shard_whenever_it_was_requested(patch: Patch) -> None:
    def make(is_finished: Function) -> Function:
        return lambda records, behind, *, until, requested_after: is_finished(
            records, behind, until=until, requested_after=inf
        )

    patch.replace(record_delivery, "is_finished", make)


def rows_of_other_runs_are_not_found(patch: Patch) -> None:
    patch.replace(context, "row_of_another_run", lambda _: lambda rows, own: None)


RUNS = (
    Mutant("M126", "a page ends the shard of a run that is over, whenever it was requested", "-", (),
            a_page_ends_a_shard_whenever_it_was_requested,
            tests=(_RUNS + "test_a_page_that_was_fetched_ahead_does_not_end_the_shard",)),
    Mutant("M127", "the rows of another run are taken for one's own", "here", (), rows_of_other_runs_are_not_found,
            tests=(_RUNS + "test_what_begins_in_an_empty_table_refuses_what_another_one_has_put_there_since",)),
)  # fmt: skip
