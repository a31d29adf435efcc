"""A pykcl RecordProcessor around a processor of amazon_kclpy: its messages, its checkpointer, and how it may leave."""

from __future__ import annotations

import copy
import difflib
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from pykcl.compat.kclpy import messages
from pykcl.compat.kclpy.checkpointers import LeaseCheckpointer
from pykcl.compat.kclpy.v2.processor import V1toV2Processor
from pykcl.compat.kclpy.v3.processor import V2toV3Processor
from pykcl.errors import ConfigError, NotAProcessor, RestartShard
from pykcl.processor import (
    Batch,
    Checkpointer,
    InitializationInput,
    LeaseLostInput,
    ProcessorFactory,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.worker.checkpointer import is_confirmed
from pykcl.worker.processor_factory import must_have_run, refuse_what_runs_nothing
from pykcl.worker.signals import OwnProcess


def is_factory(given: Any) -> bool:
    """Return True for what makes processors, a class or a function, and False for a processor."""
    return isinstance(given, type) or (callable(given) and not hasattr(given, "process_records"))


def one_of(given: Any) -> Any:
    """Return a processor: `given`, or the one that it makes."""
    return given() if is_factory(given) else given


def factory_of(given: Any) -> Callable[[], Any]:
    """Return a function that makes processors: copies of `given` as it is now, else new ones of its class.

    Raises ConfigError, with the reason, where neither can be had; and so does the function, where the program makes the
    same object again.
    """
    name = getattr(given, "__qualname__", type(given).__name__)
    if is_factory(given):
        return _OneForEach(given, name)
    try:
        # Copied once more for each shard: the program may go on changing its own.
        pristine = copy.deepcopy(given)
    except Exception as error:  # noqa: BLE001 - what copying runs into is up to the program's attributes
        problem = _why_not_anew(given)
        if problem is None:
            return _OneForEach(type(given), name, given)
        uncopied = ", ".join(_uncopied(given)) or type(error).__name__
        raise ConfigError(
            f"Each shard needs a {name} of its own, and the one given to KCLProcess can be neither copied ({uncopied}) "
            f"nor made again ({problem}). Do: make what cannot be copied in initialize(), or hand over a function that "
            f"makes one: KCLProcess(lambda: {name}(...)). Or run the program by `pykcl multilangd`, which starts a "
            "process for each shard."
        ) from None
    if hasattr(given, "process_records"):
        # Else it is no processor, which the caller tells better.
        _refuse_the_same(pristine, given, name)
    return _OneForEach(lambda: copy.deepcopy(pristine), name, given)


class _OneForEach:
    """Makes processors with `make`. Raises NotAProcessor for one that it has made before."""

    def __init__(self, make: Callable[[], Any], name: str, given: Any = None) -> None:
        self._make, self._name, self._before = make, name, given

    def __call__(self) -> Any:
        made = self._make()
        before, self._before = self._before, made
        _refuse_the_same(made, before, self._name)
        return made


def _refuse_the_same(made: Any, before: Any, name: str) -> None:
    if made is before:
        what = "always returns one and the same object"
    elif hasattr(made, "__dict__") and made.__dict__ is getattr(before, "__dict__", None):
        what = "makes objects that have one and the same __dict__"
    else:
        return
    raise NotAProcessor(
        f"Each shard needs a processor of its own, and {name} {what}: all shards would write into it at the same "
        f"time. Do: let {name} make a new one at each call, without a singleton."
    ).about("E15", f"let {name} make a new processor at each call, without a singleton")


def _uncopied(given: Any) -> list[str]:
    """Names and types of the attributes that cannot be copied; never their values."""
    found = []
    for name, value in _attributes(given).items():
        try:
            copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - see above
            found.append(f"{name}: {type(value).__name__}")
    return found


def _why_not_anew(given: Any) -> str | None:
    """Return the reason why `type(given)()` is no substitute for `given`; None if their attributes agree."""
    kind = type(given)
    try:
        new, another = kind(), kind()
    except Exception as error:  # noqa: BLE001 - a constructor may raise anything
        return f"its constructor without arguments raises {type(error).__name__}"
    _refuse_the_same(new, given, kind.__name__)
    mine, news, others = map(_attributes, (given, new, another))
    if mine.keys() != news.keys():
        return f"a new one has other attributes: {', '.join(sorted(mine.keys() ^ news.keys()))}"
    told, new_told, other_told = map(_plain, (mine, news, others))
    # Not of what differs at each time, such as a start time or a random id.
    changed = [
        name
        for name in mine
        if told.get(name) != new_told.get(name) and new_told.get(name) == other_told.get(name)
    ]
    return f"a new one has another value of {', '.join(changed)}" if changed else None


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in attributes.items()
        if value is None or isinstance(value, str | bytes | int | float)
    }


def _attributes(given: Any) -> dict[str, Any]:
    """Return the attributes by name, with those of __slots__ that are set."""
    members = {name: member for kind in type(given).__mro__ for name, member in vars(kind).items()}
    slots = [name for name, member in members.items() if inspect.ismemberdescriptor(member)]
    found = {name: getattr(given, name) for name in slots if hasattr(given, name)}
    return {**found, **getattr(given, "__dict__", {})}


Version = Literal[1, 2, 3]

_OF_EVERY_BATCH = ("initialize", "process_records")
"""The first is called before any other, and again until it returns."""
_METHODS = (*_OF_EVERY_BATCH, "shutdown", "lease_lost", "shard_ended", "shutdown_requested")

log = logging.getLogger("pykcl.kclpy")


def version_of(processor: Any) -> Version:
    """1, 2 or 3. Where `version` and the methods disagree the methods count, with a warning: the class that
    amazon_kclpy's own README shows (base of version 1, methods of version 3) loses every record when it is called by
    its `version`.

    Raises ConfigError for what has no process_records that could be called.
    """
    two, one = (_takes(processor, count) for count in (2, 1))
    name = type(processor).__name__
    if not (one or two):
        own = "" if hasattr(processor, "process_records") else f" {_nearest(processor, 'process_records')}"
        raise ConfigError(
            f"{name} is no record processor: it has no process_records(records, checkpointer) of version 1, nor "
            f"process_records(process_records_input) of versions 2 and 3.{own}"
        )
    told = getattr(processor, "version", None)
    declared: Version | None = told if told in (1, 2) else None if told is None else 3
    found = looks_like(
        declared,
        one=one,
        two=two,
        new_end=_is_written(processor, "shard_ended") or _is_written(processor, "lease_lost"),
        old_end=_is_written(processor, "shutdown"),
    )
    if found != declared:
        says = "says no version" if told is None else f"says version {declared}"
        log.warning(
            "%s %s, and its methods are those of version %d: it is called as that. "
            "Do: derive it from RecordProcessorBase of %s.",
            name,
            says,
            found,
            "amazon_kclpy.kcl" if found == 1 else f"amazon_kclpy.v{found}.processor",
        )
    return found


def missing_methods(processor: Any, version: Version) -> list[str]:
    """Methods that the version asks for and the program did not write."""
    needed = [*_OF_EVERY_BATCH]
    needed += ["shutdown"] if version < 3 else ["lease_lost", "shard_ended", "shutdown_requested"]
    return [name for name in needed if not _is_written(processor, name)]


def refuse_one_that_can_do_nothing(processor: Any, version: Version) -> None:
    """Raises ConfigError where each batch would fail, on this worker that would take leases from others for them."""
    for name in missing_methods(processor, version):
        if name in _OF_EVERY_BATCH:
            raise ConfigError(
                f"{type(processor).__name__} has no {name}, so that each batch would fail. {_nearest(processor, name)}"
            )
    refuse_what_runs_nothing(processor, type(processor).__name__, _METHODS)


def _nearest(processor: Any, name: str) -> str:
    """What is to be done about a method that is missing: one that is written may have been meant."""
    own = [found for found in dir(type(processor)) if not found.startswith("__") and found not in _METHODS]
    near = difflib.get_close_matches(name, own, n=1)
    if near:
        return f"It has {near[0]}. Do: call that {name}."
    return f"Do: write {name}; no method of it is called anything like that."


def as_version_3(processor: Any, version: Version) -> Any:
    """The processor, or a bridge to it, with the methods of version 3."""
    if version == 3:
        return processor
    return V2toV3Processor(V1toV2Processor(processor) if version == 1 else processor)


def looks_like(declared: Version | None, *, one: bool, two: bool, new_end: bool, old_end: bool) -> Version:
    """The rule of `version_of`. one, two: how many arguments process_records takes. new_end: shard_ended or lease_lost
    is written; old_end: shutdown is."""
    if two and (declared == 1 or not one):
        return 1
    if declared == 2 and (old_end or not new_end):
        return 2
    if declared == 3 and (new_end or not old_end):
        return 3
    if new_end or not old_end:
        return 3
    return 2


def _takes(processor: Any, arguments: int) -> bool:
    method = getattr(processor, "process_records", None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        # Written in C: nobody can tell what it takes.
        return True
    return True


def _is_written(processor: Any, name: str) -> bool:
    """Whether the program wrote it: what a base class leaves to be written is marked abstract."""
    method = getattr(processor, name, None)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


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

    def initialize(self, init: InitializationInput) -> None:
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

    def shard_ended(self, end: ShardEndedInput) -> None:
        message = messages.ShardEndedInput({"action": "shardEnded"})
        try:
            self._dispatch(message, end.shard_id, "shard_ended", end.checkpointer)
        except (SystemExit, RestartShard):
            # It has left behind its checkpoint, which under Java ended the shard then and there. Else a program that
            # does so each time would never let the children of its shard begin.
            if not is_confirmed(end.checkpointer):
                raise

    def lease_lost(self, loss: LeaseLostInput) -> None:
        self._end(loss.shard_id)

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
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
