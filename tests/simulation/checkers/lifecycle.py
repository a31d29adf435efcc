"""Life cycle: every processor that was initialized is called at its end, whatever the cause."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pykcl.testing.simulation.delivery import Ownership
from pykcl.testing.simulation.guarantees import Guarantee, Violations

REPORTED_WITHIN = 40.0
"""Seconds after which a processor has heard that its lease is lost: the longest series of requests that time out."""

_OVER = ("lost", "shut down", "over")


class LifecycleChecker:
    """believes: whether a host believes in a lease. doubts: whether it is in doubt about it, so that nobody need hear.
    threads: the names of its threads that have not ended.

    cannot_report: whether a host could not run since a time, for having been frozen. struck: whether one of its
    threads was, since a time: that thread reports nothing any more.
    """

    def __init__(
        self,
        violations: Violations,
        *,
        now: Callable[[], float],
        believes: Callable[[str, str], bool],
        doubts: Callable[[str, str], bool],
        threads: Callable[[str], Collection[str]],
        cannot_report: Callable[[str, float], bool],
        struck: Callable[[str, float], bool],
    ) -> None:
        self._violations, self._now, self._believes, self._doubts = violations, now, believes, doubts
        self._threads, self._cannot_report, self._struck = threads, cannot_report, struck
        self._open: dict[tuple[str, str], Ownership] = {}
        self._unheld_since: dict[tuple[str, str], float] = {}

    def starts(self, owning: Ownership) -> None:
        before = self._open.get((owning.host, owning.shard_id))
        if before is not None:
            self._must_be_over(before, "its successor starts")
        self._open[owning.host, owning.shard_id] = owning
        self._unheld_since.pop((owning.host, owning.shard_id), None)

    def ended_in_row(self, host: str, shard_id: str) -> None:
        """This host wrote SHARD_END."""
        owning = self._open.get((host, shard_id))
        if owning is not None and owning.state == "ended":
            owning.is_durable_end = True

    def forget(self, host: str) -> None:
        """Drop the state of a dead host."""
        self._open = {mark: owning for mark, owning in self._open.items() if mark[0] != host}

    def host_stopped(self, host: str, left: Collection[str]) -> None:
        """Its worker's stop returned; left: the threads of which it said that they did not end."""
        for owning in [owning for owning in self._open.values() if owning.host == host]:
            if _thread(owning) not in left:
                self._must_be_over(owning, "its worker has stopped")
        self.forget(host)

    def poll(self) -> None:
        """No processor waits for long to hear that its lease is lost."""
        for mark, owning in list(self._open.items()):
            if owning.state in _OVER or owning.is_durable_end:
                del self._open[mark]
                self._unheld_since.pop(mark, None)
            elif owning.busy or self._believes(*mark) or self._doubts(*mark):
                self._unheld_since.pop(mark, None)
            else:
                self._check_silence(mark, owning)

    def _check_silence(self, mark: tuple[str, str], owning: Ownership) -> None:
        since = self._unheld_since.setdefault(mark, self._now())
        if self._cannot_report(owning.host, since):
            self._unheld_since[mark] = self._now()
        elif _thread(owning) not in self._threads(owning.host):
            self._must_be_over(owning, "its thread has ended")
            del self._open[mark]
        elif self._now() - since > REPORTED_WITHIN:
            self._must_be_over(owning, f"nobody believes in its lease for {REPORTED_WITHIN:g} s")

    def _must_be_over(self, owning: Ownership, when: str) -> None:
        fine = owning.state in _OVER or owning.is_durable_end or self._struck(owning.host, owning.started)
        what = f"{owning.host} {owning.shard_id}: {when}, and its processor ({owning.state}) was not called"
        self._violations.expect(fine, Guarantee.LIFE_CYCLE, what)


def _thread(owning: Ownership) -> str:
    return f"pykcl-{owning.shard_id}"
