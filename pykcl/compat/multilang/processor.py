"""The RecordProcessor that stands for a child process: each call is an action on the wire, and its answer awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pykcl.compat.java_checkpoints import ILLEGAL_ARGUMENT, JavaCheckpointError, JavaCheckpoints
from pykcl.compat.multilang import protocol
from pykcl.compat.multilang.child import Child, ChildGone
from pykcl.compat.multilang.children import AT_ONCE, Children, Patience
from pykcl.compat.multilang.protocol import CheckpointAsked
from pykcl.errors import RestartShard
from pykcl.processor import (
    Batch,
    InitializationInput,
    LeaseLostInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.worker.checkpointer import EndCheckpointer, is_confirmed


def child_processors(
    children: Children, timeout: float | None, on_lacking_kclpy: Callable[[], None] = lambda: None
) -> Callable[[], ChildProcessor]:
    """For `Worker(processor=…)`. timeout, on_lacking_kclpy: as for `ChildProcessor`."""
    return lambda: ChildProcessor(children, timeout, on_lacking_kclpy)


class ChildProcessor(RecordProcessor):
    """One child for one lease, from `initialize` to the end of either.

    A line that looks like an answer is believed if it answers what was asked, and was printed after it was asked. So
    one that a program prints during a call and that is identical to the awaited answer cannot be told from it, and ends
    the call early.

    timeout: seconds a child may take from one message to the next while it is asked something (timeoutInSeconds of
    MultiLangDaemon, which counts the same way); None: for ever. on_lacking_kclpy: called with each child that fails for
    want of the module amazon_kclpy, until one has worked: no other child would fare better.

    A child that dies, hangs longer or cannot be started ends the usefulness of this instance: RestartShard. Another one
    with another child begins at the last checkpoint: records that this child was given and has not checkpointed, of
    whatever batch, come again. As in Java a checkpoint asked for while nothing is asked of the child is made before its
    next action.
    """

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
        line = protocol.process_records(batch.records, batch.millis_behind_latest)
        self._act(protocol.PROCESS_RECORDS, line, JavaCheckpoints(batch.checkpointer))

    def shard_ended(self, end: ShardEndedInput) -> None:
        try:
            self._act(
                protocol.SHARD_ENDED, [protocol.bare(protocol.SHARD_ENDED)], JavaCheckpoints(end.checkpointer)
            )
        except RestartShard:
            # Under Java that checkpoint has ended the shard, whatever became of the child. And a program that leaves
            # behind it each time would otherwise never let the children of its shard begin.
            if not is_confirmed(end.checkpointer):
                raise
            return
        if is_confirmed(end.checkpointer) or not isinstance(end.checkpointer, EndCheckpointer):
            self._end_child()
        # Else it is asked again in a while: it may have held the checkpoint back for a good reason.

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        """And what follows it in Java, where the lease is dropped next: leaseLost. Raises nothing: it ends anyway."""
        said = self._last_act(protocol.SHUTDOWN_REQUESTED, JavaCheckpoints(request.checkpointer))
        if said and self._last_act(protocol.LEASE_LOST, JavaCheckpoints(None)):
            self._end_child(self._children.patience_at_stop)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        if self._child is not None:
            self._act(protocol.LEASE_LOST, [protocol.bare(protocol.LEASE_LOST)], JavaCheckpoints(None))
            self._end_child()

    @property
    def is_of_no_use(self) -> bool:
        """Its child ended though nothing was asked of it. The worker looks at this while nothing comes, and calls
        `process_records` without records."""
        return self._child is not None and self._child.is_gone

    # -- one action --------------------------------------------------------------------------------------------

    def _act(self, action: str, line: Iterable[bytes], checkpoints: JavaCheckpoints) -> None:
        """Raises RestartShard when the child is of no use any more; it has ended then."""
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
            # The conversation broke off in the middle: asked again, the child would answer something else.
            raise self._restart(action, f"was left by an error of pykcl ({type(error).__name__})") from error

    def _last_act(self, action: str, checkpoints: JavaCheckpoints) -> bool:
        """An action after which nothing can be repeated: whether there was a child and it answered."""
        if self._child is None:
            return False
        try:
            self._act(action, [protocol.bare(action)], checkpoints)
        except RestartShard:
            # Told and counted; the shard is somebody else's anyway, or will be in a moment.
            return False
        return True

    def _converse(
        self, child: Child, action: str, line: Iterable[bytes], checkpoints: JavaCheckpoints
    ) -> None:
        # Asked in the middle of nothing, so not for what is only now going to be handed over. But of a shard's end only
        # the last attempt counts: what the one before took note of nobody would look at any more.
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
        """The child is ended for certain before another one is given the same records."""
        child, self._child = self._child, None
        self._children.failed(self._shard, child, action, why)
        if child is not None and child.lacks_kclpy and not self._children.has_worked:
            self._on_lacking_kclpy()
        if child is not None:
            self._children.end(child, AT_ONCE)
        return RestartShard(f"The child of {self._shard} {why} in {action}.")
