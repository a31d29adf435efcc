"""Who works, or has worked, on the fleet: owners out of the lease table, and workers that tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykcl.operate.edges import Edge
from pykcl.operate.names import shown
from pykcl.operate.owner_marks import Marks
from pykcl.operate.worker_pages import WorkerPage
from pykcl.ui.rows import places_of

MOST_REMEMBERED = 500
"""Of those that own nothing any more: their marks are still in the charts."""


class OwnerBook:
    """Used by one thread."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._troubles: frozenset[tuple[str, str]] = frozenset()
        self._silent: frozenset[str] = frozenset()

    def fold(
        self, owners: Mapping[str, Mapping[str, Any]], pages: Sequence[WorkerPage], marks: Marks
    ) -> dict[str, dict[str, Any]]:
        """Everybody who is to be named on the page, by worker identifier."""
        for name, told in owners.items():
            self._known.pop(name, None)
            self._known[name] = dict(told)
        for name in self._known.keys() - owners.keys():
            self._known[name] = {**self._known[name], "leases": 0, "stale": 0}
        for page in pages:
            if page.worker is not None:
                self._told(page.worker, page, marks)
        for name in list(self._known)[: max(0, len(self._known) - len(owners) - MOST_REMEMBERED)]:
            if name not in owners:
                del self._known[name]
        return dict(self._known)

    def _told(self, name: str, page: WorkerPage, marks: Marks) -> None:
        nobody = {
            "name": shown(name), **places_of(marks.of(name)), "kind": "pykcl", "why": "it says so itself",
            "version": None, "leases": 0, "stale": 0,
        }  # fmt: skip
        known = self._known.get(name, nobody)
        self._known[name] = {
            **known,
            "says": {
                "state": shown(page.state),
                "ready": page.ready,
                "stalled": len(page.stalled),
                "troubles": [shown(one) for one in page.troubles[:5]],
            },
        }

    def edges(self, owners: Mapping[str, Mapping[str, Any]], pages: Sequence[WorkerPage]) -> list[Edge]:
        """Who has come and gone, and what workers tell of themselves that they did not before. Before `fold`."""
        found = []
        holding = {name for name, told in owners.items() if told["leases"]}
        held = {name for name, told in self._known.items() if told["leases"]}
        found += [
            Edge("worker", "has its first lease", after=name, tone="good") for name in sorted(holding - held)
        ]
        found += [Edge("worker", "owns nothing any more", before=name) for name in sorted(held - holding)]
        return found + self._edges_of_pages(pages)

    def _edges_of_pages(self, pages: Sequence[WorkerPage]) -> list[Edge]:
        troubles = frozenset(
            (page.worker, text)
            for page in pages
            if page.worker is not None
            for text in (*page.troubles, *(f"the processor of {one} does not return" for one in page.stalled))
        )
        silent = frozenset(f"{page.url} {page.problem}" for page in pages if page.problem)
        found = [
            Edge("worker", shown(text), before=name, tone="bad")
            for name, text in sorted(troubles - self._troubles)
        ]
        found += [
            Edge("worker", f"over: {shown(text)}", before=name, tone="good")
            for name, text in sorted(self._troubles - troubles)
        ]
        found += [Edge("worker", shown(text), tone="bad") for text in sorted(silent - self._silent)]
        again = {text.split(" ", 1)[0] for text in self._silent} - {text.split(" ", 1)[0] for text in silent}
        found += [Edge("worker", f"{shown(url)} answers again", tone="good") for url in sorted(again)]
        self._troubles, self._silent = troubles, silent
        return found
