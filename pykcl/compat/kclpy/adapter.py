"""A pykcl RecordProcessor around a processor of amazon_kclpy: its messages, its checkpointer, and how it may leave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pykcl.compat.kclpy import messages
from pykcl.compat.kclpy.checkpointers import LeaseCheckpointer
from pykcl.compat.kclpy.prototype import factory_of, is_factory
from pykcl.compat.kclpy.versions import Version, as_version_3, version_of
from pykcl.errors import RestartShard
from pykcl.processor import (
    Batch,
    Checkpointer,
    Initialization,
    LeaseLoss,
    ProcessorFactory,
    RecordProcessor,
    ShardEnd,
    ShutdownRequest,
)
from pykcl.worker.checkpointer import is_confirmed
from pykcl.worker.processor_factory import must_have_run
from pykcl.worker.signals import OwnProcess

log = logging.getLogger("pykcl.kclpy")

OnExit = Callable[[str, str, SystemExit], None]
"""Told of the shard, the method (as pykcl calls it) and the SystemExit that came out of it."""
Around = Callable[[], AbstractContextManager[None]]
"""What a method of the program runs in."""


class KclpyProcessor(RecordProcessor):
    """processor: one of amazon_kclpy, version 3 (or a bridge to one); for this shard only. around: for each call."""

    def __init__(self, processor: Any, on_exit: OnExit, around: Around = nullcontext) -> None:
        self._processor = processor
        self._around = around
        self._on_exit = on_exit
        self._checkpointer = LeaseCheckpointer()
        self._make_record = messages.record_maker()
        self._exit: SystemExit | RestartShard | None = None
        self._knows_its_end = False
        self._own_process = OwnProcess()

    def initialize(self, init: Initialization) -> None:
        message = messages.InitializeInput(
            {
                "action": "initialize",
                "shardId": init.shard_id,
                "sequenceNumber": init.position.sequence_number,
                "subSequenceNumber": init.position.sub_sequence_number,
            }
        )
        self._dispatch(message, init.shard_id, "initialize", None)

    def process_records(self, batch: Batch) -> None:
        message = messages.ProcessRecordsInput(
            {
                "action": "processRecords",
                "records": list(map(self._make_record, batch.records)),
                "millisBehindLatest": batch.millis_behind_latest,
            }
        )
        self._dispatch(message, batch.shard_id, "process_records", batch.checkpointer)

    def shard_ended(self, end: ShardEnd) -> None:
        message = messages.ShardEndedInput({"action": "shardEnded"})
        try:
            self._dispatch(message, end.shard_id, "shard_ended", end.checkpointer)
        except (SystemExit, RestartShard):
            # It has left behind its checkpoint, which under Java ended the shard then and there. Else a program that
            # does so each time would never let the children of its shard begin.
            if not is_confirmed(end.checkpointer):
                raise

    def lease_lost(self, loss: LeaseLoss) -> None:
        self._end(loss.shard_id)

    def shutdown_requested(self, request: ShutdownRequest) -> None:
        """And what follows it in Java, where the lease is dropped next: leaseLost, which is ZOMBIE before version 3."""
        if self._exit is not None or self._knows_its_end:
            return
        message = messages.ShutdownRequestedInput({"action": "shutdownRequested"})
        try:
            self._dispatch(message, request.shard_id, "shutdown_requested", request.checkpointer)
        except Exception:
            # amazon_kclpy takes it for done, and what follows comes all the same.
            self._end(request.shard_id)
            raise
        self._end(request.shard_id)

    def _end(self, shard_id: str) -> None:
        """Told once: a lease may be lost behind its last chance to checkpoint, too."""
        if self._exit is not None or self._knows_its_end:
            return
        self._knows_its_end = True
        self._dispatch(messages.LeaseLostInput({"action": "leaseLost"}), shard_id, "lease_lost", None)

    def _dispatch(
        self,
        message: messages.MessageDispatcher,
        shard_id: str,
        method: str,
        checkpointer: Checkpointer | None,
    ) -> None:
        if self._exit is not None:
            # It has left, as its process would have: nothing it did not return from is done.
            raise self._exit
        try:
            # The last of them here, too: a process forked in there that leaves by sys.exit() is not to stop the worker.
            with (
                self._checkpointer.handed(checkpointer) as mine,
                self._around(),
                self._own_process.alone_leaves(method, shard_id),
            ):
                returned = message.dispatch(mine, self._processor)
                must_have_run(method, returned)
        except SystemExit as error:
            self._exit = error
            self._on_exit(shard_id, method, error)
            raise
        except Exception:
            raise
        except BaseException as error:
            kind = type(error)
            if kind.__module__.partition(".")[0] == "pykcl":
                raise
            # Such as asyncio.CancelledError. A child would have died of it: so did this instance.
            log.error(
                "the program let out what ends a process: a new processor goes on at the last checkpoint "
                "shard=%s method=%s error=%s",
                shard_id,
                method,
                kind.__name__,
            )
            self._exit = RestartShard(f"{method} was left by {kind.__name__}.")
            raise self._exit.with_traceback(error.__traceback__) from error


def processor_factory(
    given: Any, on_exit: OnExit, around: Around = nullcontext
) -> tuple[ProcessorFactory, Any, Version]:
    """(what makes a processor for each shard, a sample of the program's own, its version). Raises ConfigError.

    given: what the program handed to KCLProcess.
    """
    make_own = factory_of(given)
    # By the same function: one that always returns its only processor is found out before the second shard.
    sample = make_own() if is_factory(given) else given
    version = version_of(sample)
    return lambda: KclpyProcessor(as_version_3(make_own(), version), on_exit, around), sample, version
