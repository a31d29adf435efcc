"""RecordProcessor for a child process: each call sends an action to the child and waits for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pykcl.compat.multilang import protocol
from pykcl.compat.multilang.child import Child, ChildGone
from pykcl.compat.multilang.children import AT_ONCE, Children, Patience
from pykcl.compat.multilang.protocol import (
    ILLEGAL_ARGUMENT,
    CheckpointAsked,
    JavaCheckpointError,
    JavaCheckpoints,
)
from pykcl.config import Config
from pykcl.errors import ConfigError, RestartShard
from pykcl.processor import (
    Batch,
    InitializationInput,
    LeaseLostInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.worker.checkpointer import EndCheckpointer, is_confirmed


def refuse_policies(config: Config) -> None:
    """Raise ConfigError for options that would give up records. A child that died may have held records of several
    batches, so that nobody knows which record to blame."""
    if config.has_policies:
        used = next(
            name
            for name in ("max_attempts", "max_record_age", "bisect", "dead_letters")
            if getattr(config, name)
        )
        raise ConfigError(
            f"{used}={getattr(config, used)!r} has no meaning for a program of its own, whose failure ends it with all "
            "records it holds. Do: drop it, or run the program by pykcl run, if it is Python."
        )


def child_processors(
    children: Children, timeout: float | None, on_lacking_kclpy: Callable[[], None] = lambda: None
) -> Callable[[], ChildProcessor]:
    """Return a factory for `Worker(processor=…)`. timeout, on_lacking_kclpy: as for `ChildProcessor`."""
    return lambda: ChildProcessor(children, timeout, on_lacking_kclpy)


class ChildProcessor(RecordProcessor):
    """One child for one lease, from `initialize` to the end of either.

    A status line counts as the answer if it names the pending action and was printed after the request. A program that
    prints a line identical to the awaited answer during a call therefore ends the call early.

    timeout: max seconds between two messages of a child while an action is pending (timeoutInSeconds of
    MultiLangDaemon, which counts in the same way); None: no limit. on_lacking_kclpy: called for each child that fails
    because it cannot import amazon_kclpy, until one child has worked: every other child would fail, too.

    If the child dies, hangs or cannot be started, this instance raises RestartShard. A new instance with a new child
    starts at the last checkpoint: records that the old child did not checkpoint are delivered again. As in Java a
    checkpoint requested while no action is pending is written before the next action.
    """

    settles_on_return = True
    """Refused with checkpoint_mode="ack": a child that dies may have had records of several batches."""

    def __init__(
        self,
        children: Children,
        timeout: float | None = None,
        on_lacking_kclpy: Callable[[], None] = lambda: None,
    ) -> None:
        self._children = children
        self._timeout = timeout
        self._on_lacking_kclpy = on_lacking_kclpy
        self._shard = ""
        self._child: Child | None = None
        self._checkpoints = JavaCheckpoints(None)
        self._asked_for_the_end = False

    # -- what the worker calls ---------------------------------------------------------------------------------

    def initialize(self, init: InitializationInput) -> None:
        self._shard = init.shard_id
        try:
            self._child = self._children.start(init.shard_id)
        except ChildGone as gone:
            raise self._restart(protocol.INITIALIZE, str(gone)) from None
        line = protocol.initialize(init.shard_id, init.position)
        self._act(protocol.INITIALIZE, [line], JavaCheckpoints(None))
        self._children.has_worked = True

    def process_records(self, batch: Batch) -> None:
        line = protocol.process_records(batch, batch.millis_behind_latest)
        self._act(protocol.PROCESS_RECORDS, line, JavaCheckpoints(batch.checkpointer))

    def shard_ended(self, end: ShardEndedInput) -> None:
        try:
            self._act(
                protocol.SHARD_ENDED, [protocol.bare(protocol.SHARD_ENDED)], JavaCheckpoints(end.checkpointer)
            )
        except RestartShard:
            # In Java that checkpoint ends the shard, whatever happens to the child. And a program that exits after the
            # checkpoint each time would otherwise never let the child shards start.
            if not is_confirmed(end.checkpointer):
                raise
            return
        if is_confirmed(end.checkpointer) or not isinstance(end.checkpointer, EndCheckpointer):
            self._end_child()
        # Else the worker calls again after a while: the child may have a reason to delay the checkpoint.

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        """Send shutdownRequested, and leaseLost, which follows it in Java. Never raises: the worker stops anyway."""
        answered = self._last_act(protocol.SHUTDOWN_REQUESTED, JavaCheckpoints(request.checkpointer))
        if answered and self._last_act(protocol.LEASE_LOST, JavaCheckpoints(None)):
            self._end_child(self._children.patience_at_stop)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        if self._child is not None:
            self._act(protocol.LEASE_LOST, [protocol.bare(protocol.LEASE_LOST)], JavaCheckpoints(None))
            self._end_child()

    @property
    def is_of_no_use(self) -> bool:
        """True if the child ended while no action was pending. The worker checks this while no records arrive, and then
        calls `process_records` without records."""
        return self._child is not None and self._child.is_gone

    # -- one action --------------------------------------------------------------------------------------------

    def _act(self, action: str, line: Iterable[bytes], checkpoints: JavaCheckpoints) -> None:
        """Raises RestartShard if the conversation with the child is over; the child has ended then."""
        child = self._child
        if child is None:
            raise RestartShard(f"The child of {self._shard} has ended before {action}.")
        try:
            self._converse(child, action, line, checkpoints)
        except ChildGone as gone:
            raise self._restart(action, str(gone)) from None
        except TimeoutError:
            why = f"did not answer within timeoutInSeconds={self._timeout:g}"
            raise self._restart(action, why) from None
        except Exception as error:
            # The conversation broke off in the middle: the child's next status would answer this action.
            raise self._restart(
                action, f"was ended because of an error in pykcl ({type(error).__name__})"
            ) from error

    def _last_act(self, action: str, checkpoints: JavaCheckpoints) -> bool:
        """Send an action that is not repeated. Return True if there was a child and it answered."""
        if self._child is None:
            return False
        try:
            self._act(action, [protocol.bare(action)], checkpoints)
        except RestartShard:
            # Reported and counted already; another worker owns the shard, or will in a moment.
            return False
        return True

    def _converse(
        self, child: Child, action: str, line: Iterable[bytes], checkpoints: JavaCheckpoints
    ) -> None:
        # A request between two actions is for the records before, not for those about to be sent. But for the end of a
        # shard only the last attempt counts: nothing reads the checkpointer of an earlier one.
        before = checkpoints if self._asked_for_the_end else self._checkpoints
        self._checkpoints, self._asked_for_the_end = checkpoints, action == protocol.SHARD_ENDED
        for late in child.questions_before():
            self._answer(child, late, before)
        until = self._deadline()
        child.send(line, awaits=action, until=until)
        while isinstance(message := child.receive(until), CheckpointAsked):
            self._answer(child, message, before if message.early else checkpoints)
            until = self._deadline()

    def _answer(self, child: Child, asked: CheckpointAsked, checkpoints: JavaCheckpoints) -> None:
        error = ILLEGAL_ARGUMENT if asked.wrong else None
        try:
            if error is None:
                checkpoints.checkpoint(asked.sequence_number, asked.sub_sequence_number)
        except JavaCheckpointError as refused:
            error = refused.value
        child.send([protocol.checkpoint_answer(asked, error)], awaits=None, until=self._deadline())

    def _deadline(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    # -- its end -----------------------------------------------------------------------------------------------

    def _end_child(self, patience: Patience | None = None) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._children.end(child, patience)

    def _restart(self, action: str, why: str) -> RestartShard:
        """Wait for the end of the child, so that no other child gets the same records before."""
        child, self._child = self._child, None
        self._children.failed(self._shard, child, action, why)
        if child is not None and child.lacks_kclpy and not self._children.has_worked:
            self._on_lacking_kclpy()
        if child is not None:
            self._children.end(child, AT_ONCE)
        return RestartShard(f"The child of {self._shard} {why} in {action}.")
