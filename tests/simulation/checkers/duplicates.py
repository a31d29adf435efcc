"""Duplicates: nothing comes twice but the running batch, and what the checkpoint interval allows."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.events import Event, LeaseLost, LossReason, WorkerStopping
from pykcl.testing.simulation.delivery import Ownership, Position
from pykcl.testing.simulation.guarantees import Guarantee, Violations

_MOMENT = 0.05


class DuplicateChecker:
    """interval: of checkpoint_mode="interval"; 0: after each batch; None: by hand, so nothing is guaranteed.

    durable: the checkpoint in the row of a host that took it last; None: it is another's by now. failed: whether a
    write of a host for a lease failed since a time. on_clock: virtual seconds while a host's clock counts so many.
    """

    def __init__(
        self,
        violations: Violations,
        *,
        interval: float | None,
        now: Callable[[], float],
        durable: Callable[[str, str], Position | None],
        failed: Callable[[str, str, float], bool],
        on_clock: Callable[[str, float], float],
    ) -> None:
        self._violations, self._interval, self._now = violations, interval, now
        self._durable, self._failed, self._on_clock = durable, failed, on_clock
        self._stopping: set[str] = set()

    def heard(self, host: str, event: Event) -> None:
        """Check that nobody gives up a lease for lost of which nothing shows that another worker has taken it.

        It would take that again, and begin at its checkpoint.
        """
        if isinstance(event, WorkerStopping):
            self._stopping.add(host)
        elif isinstance(event, LeaseLost):
            fine = event.reason is not LossReason.EXPIRED or host in self._stopping
            what = f"{host} gives up {event.shard}, though no heartbeat was refused"
            self._violations.expect(fine, Guarantee.NO_DUPLICATES, what)

    def batch_starts(self, owning: Ownership) -> None:
        """Check that all returned records are durable, except those that the checkpoint interval allows to repeat."""
        durable = self._durable(owning.host, owning.shard_id) if owning.returned else None
        if self._interval is None or durable is None:
            return
        due = [entry for entry in self._due(owning.host, owning.returned) if entry[1] > durable]
        owning.returned = [entry for entry in owning.returned if entry[1] > durable]
        if not due or self._failed(owning.host, owning.shard_id, due[-1][0]):
            return
        what = f"{owning.host} {owning.shard_id}: {due[-1][1]} was done, and its row is at {durable}"
        self._violations.expect(False, Guarantee.NO_DUPLICATES, what)

    def comes_again(self, last: Ownership, repeated: list[Position], cause: str) -> None:
        """Check that without faults no more is repeated than the batch that ran and what the interval allows."""
        if self._interval is None or not last.while_healed or cause not in ("crash", "steal"):
            return
        # What returned after the lease was gone could not be written any more.
        before = [entry for entry in last.returned if entry[1] not in last.running]
        due = self._due(last.host, before)
        upto = due[-1][1] if due else (0, 0)
        more = [p for p in repeated if p in last.delivered and p <= upto and p not in last.running]
        what = (
            f"{len(more)} more records of {last.shard_id} than the running batch come again after a {cause}"
        )
        self._violations.expect(not more, Guarantee.NO_DUPLICATES, what)

    def _due(self, host: str, returned: list[tuple[float, Position]]) -> list[tuple[float, Position]]:
        """Those of the batches that must be durable before another one starts."""
        if not returned or not self._interval:
            return returned
        owed_since = returned[-1][0] - self._on_clock(host, self._interval) - _MOMENT
        return [entry for entry in returned if entry[0] <= owed_since]
