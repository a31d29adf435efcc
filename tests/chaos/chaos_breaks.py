"""Wrong builds, made at run time in the children of a run: proof that the verdict notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BREAK_VARIABLE = "CHAOS_BREAK"


def _checkpoint_before_delivery() -> None:
    """A batch counts as done when it was fetched: who is killed in the middle of it has lost the rest."""
    from pykcl.worker.record_delivery import RecordDelivery

    deliver = RecordDelivery._deliver

    def too_early(self: Any, records: Any, millis_behind: Any) -> Any:
        last = records[-1].position
        self._progress.handing_over(last)
        self._progress.batch_done(last)
        self._checkpoint_if_due()
        return deliver(self, records, millis_behind)

    RecordDelivery._deliver = too_early  # type: ignore[method-assign]


def _no_last_checkpoint() -> None:
    """Checkpoints now and then only, and none before a lease is released: the next owner repeats what came since."""
    from pykcl.worker.record_delivery import RecordDelivery

    flush_if_due = RecordDelivery._checkpoint_if_due

    def seldom(self: Any) -> None:
        if self._progress.seconds_since_write() > 2.0:
            flush_if_due(self)

    RecordDelivery._checkpoint_if_due = seldom  # type: ignore[method-assign]
    RecordDelivery.flush_before_leaving = lambda self: None  # type: ignore[method-assign]


def _unfenced_writes() -> None:
    """Updates of lease rows without a condition: a worker that wakes up takes its shards back."""
    from pykcl.model.lease_writes import LeaseWrite

    request = LeaseWrite.request

    def unfenced(self: LeaseWrite) -> tuple[str, dict[str, Any]]:
        operation, params = request(self)
        if operation == "update_item" and self.kind != "take":
            params.pop("ConditionExpression")
            values = params["ExpressionAttributeValues"]
            params["ExpressionAttributeValues"] = {
                name: value for name, value in values.items() if not name.startswith(":seen")
            }
        return operation, params

    LeaseWrite.request = unfenced  # type: ignore[method-assign]


BREAKS: dict[str, Callable[[], None]] = {
    "checkpoint-before-delivery": _checkpoint_before_delivery,
    "no-last-checkpoint": _no_last_checkpoint,
    "unfenced-writes": _unfenced_writes,
}


def apply(name: str) -> None:
    """Break this process as `name` says; nothing for the empty name."""
    if name:
        BREAKS[name]()
