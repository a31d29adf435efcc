"""How fast each worker works: in records where somebody counts them, else in what the lease table shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pykcl.operate.worker_pages import WorkerPage
from pykcl.ui.history import RateHistory

Unit = Literal["records", "checkpoints"]
RECORDS_STEP = 2000
CHECKPOINTS_STEP = 10_000
"""Milliseconds from point to point: a worker may checkpoint a few times a minute only."""
_NOT_TOLD = (
    "No worker tells how many records it has processed. Do: run them with --http and "
    "--option metrics=prometheus."
)


class Rates:
    """unit: fixed from the start. note: why there is nothing to see, or what is to be known about it.

    totals: who counts records, worker -> how many so far; None: the workers' own pages do, where there are any.
    """

    def __init__(
        self, *, asks_workers: bool, totals: Callable[[], Mapping[str, float]] | None = None
    ) -> None:
        self.unit: Unit = "records" if asks_workers or totals is not None else "checkpoints"
        self.note = ""
        self._totals = totals
        self._moves: dict[str, float] = {}
        self.history = RateHistory(RECORDS_STEP if self.unit == "records" else CHECKPOINTS_STEP)

    def observe(
        self, now: int, moves: Mapping[str, int], pages: Sequence[WorkerPage]
    ) -> tuple[int, dict[str, float]] | None:
        """The new point, if it is time for one: worker -> per second. moves: checkpoints since the look before."""
        return self.history.add(self._counted(moves, pages), now)

    def _counted(self, moves: Mapping[str, int], pages: Sequence[WorkerPage]) -> Mapping[str, float]:
        if self._totals is not None:
            return self._totals()
        if self.unit == "checkpoints":
            self._moves = {owner: self._moves.get(owner, 0) + count for owner, count in moves.items()}
            self.note = (
                "The lease table does not say how many records are processed, only where each checkpoint is. For "
                "records per second, name the workers' health endpoints: --worker URL."
            )
            return self._moves
        told: dict[str, float] = {}
        for page in pages:
            if page.worker is not None and page.records is not None:
                told[page.worker] = page.records
        self.note = self._who_is_silent(set(told), moves) if told else _NOT_TOLD
        return told

    def _who_is_silent(self, told: set[str], owners: Mapping[str, int]) -> str:
        silent = len(owners.keys() - told)
        return (
            f"{silent} of {len(owners)} owners do not tell their records: not in this chart."
            if silent
            else ""
        )
