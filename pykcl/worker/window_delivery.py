"""Delivery to a handler with tumbling windows: batches of one window each, and a call without records to close it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from pykcl.config import Config
from pykcl.errors import NotAProcessor
from pykcl.model.record import Record
from pykcl.planning.lifecycle import Signal
from pykcl.processor import Batch
from pykcl.worker.checkpointer import ShardCheckpointer
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.shard_end import NOT_RETURNED


@runtime_checkable
class Windows(Protocol):
    """The windows of one shard, as attribute `windows` of a processor: see `pykcl.handlers.windows.ShardWindows`.

    Such a processor gets batches of one window each. An empty batch says that the open window is to be closed; once
    process_records has returned from it, none is open, and the records of that window are settled.
    """

    @property
    def is_open(self) -> bool: ...
    @property
    def is_full(self) -> bool: ...
    def runs(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]: ...
    def ends_before(self, record: Record) -> bool: ...
    def open_for(self, record: Record) -> None: ...
    def is_due(self, read_upto: float) -> bool: ...


def windows_of(processor: object) -> Windows | None:
    """Return the windows of a processor; None for one that has none, though it has something else of that name."""
    found = getattr(processor, "windows", None)
    return found if isinstance(found, Windows) else None


def refuse_beside_windows(name: str, config: Config) -> None:
    """Raise NotAProcessor for options that contradict windows. name: of the handler."""
    problem, do = "", ""
    if config.checkpoint_mode in ("manual", "ack"):
        problem = (
            f"checkpoint_mode={config.checkpoint_mode!r} leaves the checkpoint to the handler, and with window= it "
            "moves by itself when a window is closed"
        )
        do = "checkpoint_mode='auto' or 'interval'"
    elif config.call_with_empty_batches:
        problem = (
            "call_with_empty_batches=True contradicts window=, where a call without records is the final one"
        )
        do = "leave call_with_empty_batches out"
    if problem:
        raise NotAProcessor(f"{name}: {problem}. Do: {do}.").about("E15", do)


class WindowDelivery:
    """Used by the lease worker's thread, under one lease; `is_due` also by the thread that shards share.

    deliver: delivers records of one window, as any others; returns None if they are settled but for the window. write:
    called when the checkpoint may have moved.
    """

    def __init__(
        self,
        scope: LeaseScope,
        windows: Windows,
        *,
        deliver: Callable[[Sequence[Record], int | None], Signal | None],
        write: Callable[[], None],
    ) -> None:
        self._scope, self._windows = scope, windows
        self._deliver, self._write = deliver, write
        self._processor, self._progress = scope.initialized
        self._progress.hold_back()

    def deliver(self, records: Sequence[Record], millis_behind: int | None) -> Signal | None:
        """Deliver records, and close the windows that end in them. None: done. Raises LeaseLostError."""
        windows = self._windows
        for run in windows.runs(records):
            signal = self.close(millis_behind) if windows.ends_before(run[0]) else None
            signal = signal or self._scope.interrupted()
            if signal is None:
                windows.open_for(run[0])
                signal = self._deliver(run, millis_behind)
            if signal is None and windows.is_full:
                signal = self.close(millis_behind)
            if signal is not None:
                return signal
        return None

    def close(self, millis_behind: int | None) -> Signal | None:
        """Close the open window, if there is one. None: done, and its records are settled. Raises LeaseLostError.

        A final call that raises is tried again until it returns, or the lease is handed back: nothing is given up for
        it, neither by attempts nor by on_error="skip". Its records are not there any more, only what was made of them.
        """
        if not self._windows.is_open:
            return None
        if (signal := self._scope.interrupted()) is not None:
            # STOP: the next owner reads the window again. The call might take longer than the stop has time for.
            return signal
        checkpointer = ShardCheckpointer(self._progress, self._progress.done)
        batch = Batch((), checkpointer, millis_behind, self._scope.key, self._scope.context.stream.name)
        calls, process_records = self._scope.calls, self._processor.process_records
        result = calls.until_it_returns("process_records", process_records, batch)
        if result in NOT_RETURNED:
            return NOT_RETURNED[result]
        self._progress.settle_held_back()
        self._write()
        return None

    def is_due(self, millis_behind: int | None, answered_at: float) -> bool:
        """Return True if an empty page shows that nothing comes any more for the open window.

        Only one at the tip of the shard does: another one may lie before records, and how far it is behind them is
        Kinesis' estimate. answered_at: time of the page, monotonic seconds. It may have waited here while a call took
        minutes, and says nothing about the time since.
        """
        if millis_behind != 0 or not self._windows.is_open:
            return False
        context = self._scope.context
        ago = (context.runtime.monotonic() - answered_at) * 1000
        # The clock of Kinesis: that of the host may be wrong by hours.
        return self._windows.is_due(context.stream.server_time_millis() - ago)
