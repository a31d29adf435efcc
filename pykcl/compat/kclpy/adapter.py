"""Adapter from a record processor of amazon_kclpy, of any version, to a RecordProcessor of pykcl for each shard."""

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

log = logging.getLogger("pykcl.kclpy")

Version = Literal[1, 2, 3]
OnExit = Callable[[str, str, SystemExit], None]
"""Called with the shard, pykcl's name of the method, and the SystemExit that the method raised."""
Around = Callable[[], AbstractContextManager[None]]
"""Context in which each method of the program runs."""


def processor_factory(
    given: Any, on_exit: OnExit, around: Around = nullcontext
) -> tuple[ProcessorFactory, Any, Version]:
    """Return (factory of processors, a sample of the program's own processor, its version). Raises ConfigError.

    given: argument of KCLProcess.
    """
    make_own = factory_of(given)
    # By the same function, so that one that always returns the same processor is detected before the second shard.
    sample = make_own() if is_factory(given) else given
    version = version_of(sample)
    return lambda: KclpyProcessor(as_version_3(make_own(), version), on_exit, around), sample, version


class KclpyProcessor(RecordProcessor):
    """processor: of amazon_kclpy, version 3 or a bridge to it, for this shard only. around: context of each call."""

    settles_on_return = True
    """Refused with checkpoint_mode="ack"."""

    def __init__(self, processor: Any, on_exit: OnExit, around: Around = nullcontext) -> None:
        self._processor = processor
        self._around = around
        self._on_exit = on_exit
        self._checkpointer = LeaseCheckpointer()
        self._make_record = messages.record_maker()
        self._exit: SystemExit | RestartShard | None = None
        self._knows_its_end = False
        self._own_process = OwnProcess()

    @property
    def wrapped(self) -> Any:
        """The processor of amazon_kclpy, whose name is in dead letters."""
        return self._processor

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
                "records": list(map(self._make_record, batch)),
                "millisBehindLatest": batch.millis_behind_latest,
            }
        )
        self._dispatch(message, batch.shard_id, "process_records", batch.checkpointer)

    def shard_ended(self, end: ShardEndedInput) -> None:
        message = messages.ShardEndedInput({"action": "shardEnded"})
        try:
            self._dispatch(message, end.shard_id, "shard_ended", end.checkpointer)
        except (SystemExit, RestartShard):
            # It left after its checkpoint, which ends the shard in Java. A program that always does so would otherwise
            # never let the child shards start.
            if not is_confirmed(end.checkpointer):
                raise

    def lease_lost(self, loss: LeaseLostInput) -> None:
        self._end(loss.shard_id)

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        """Call shutdown_requested, and lease_lost (ZOMBIE before version 3), which follows it in Java."""
        if self._exit is not None or self._knows_its_end:
            return
        message = messages.ShutdownRequestedInput({"action": "shutdownRequested"})
        try:
            self._dispatch(message, request.shard_id, "shutdown_requested", request.checkpointer)
        except Exception:
            # amazon_kclpy reports success for this action, and Java sends the next one anyway.
            self._end(request.shard_id)
            raise
        self._end(request.shard_id)

    def _end(self, shard_id: str) -> None:
        """Call lease_lost once: a lease may also be lost after shutdown_requested."""
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
            # The program left this call as its process would have ended: no further call is made.
            raise self._exit
        try:
            # alone_leaves: a process forked in the call that ends by sys.exit() must not stop the worker.
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
            # Such as asyncio.CancelledError, which would end a child process: this instance ends.
            log.error(
                "the program raised an exception that ends a process: a new processor starts at the last checkpoint "
                "shard=%s method=%s error=%s",
                shard_id,
                method,
                kind.__name__,
            )
            self._exit = RestartShard(f"{method} was left by {kind.__name__}.")
            raise self._exit.with_traceback(error.__traceback__) from error


# -- versions of the interface -------------------------------------------------------------------------------------

_OF_EVERY_BATCH = ("initialize", "process_records")
"""The first is called before any other, and again until it returns."""
_METHODS = (*_OF_EVERY_BATCH, "shutdown", "lease_lost", "shard_ended", "shutdown_requested")


def version_of(processor: Any) -> Version:
    """Return 1, 2 or 3. If `version` and the methods disagree, the methods count, and a warning is logged: the class in
    the README of amazon_kclpy (base of version 1, methods of version 3) loses every record if it is called by its
    `version`.

    Raises ConfigError for an object without a process_records that can be called.
    """
    two, one = (_takes(processor, count) for count in (2, 1))
    name = type(processor).__name__
    if not (one or two):
        own = "" if hasattr(processor, "process_records") else f" {_nearest(processor, 'process_records')}"
        raise ConfigError(
            f"{name} is not a record processor: it has neither process_records(records, checkpointer) of version 1 nor "
            f"process_records(process_records_input) of versions 2 and 3.{own}"
        )
    version = getattr(processor, "version", None)
    declared: Version | None = version if version in (1, 2) else None if version is None else 3
    found = _decided(
        declared,
        one=one,
        two=two,
        new_end=_is_written(processor, "shard_ended") or _is_written(processor, "lease_lost"),
        old_end=_is_written(processor, "shutdown"),
    )
    if found != declared:
        says = "declares no version" if version is None else f"declares version {declared}"
        log.warning(
            "%s %s, but its methods are those of version %d, and it is called as that version. "
            "Do: derive it from RecordProcessorBase of %s.",
            name,
            says,
            found,
            "amazon_kclpy.kcl" if found == 1 else f"amazon_kclpy.v{found}.processor",
        )
    return found


def missing_methods(processor: Any, version: Version) -> list[str]:
    """Return the methods of this version that the program does not implement."""
    needed = [*_OF_EVERY_BATCH]
    needed += ["shutdown"] if version < 3 else ["lease_lost", "shard_ended", "shutdown_requested"]
    return [name for name in needed if not _is_written(processor, name)]


def refuse_unusable(processor: Any, version: Version) -> None:
    """Raise ConfigError if each batch would fail: such a worker must not take leases from others."""
    for name in missing_methods(processor, version):
        if name in _OF_EVERY_BATCH:
            raise ConfigError(
                f"{type(processor).__name__} has no {name}, so each batch would fail. {_nearest(processor, name)}"
            )
    refuse_what_runs_nothing(processor, type(processor).__name__, _METHODS)


def _nearest(processor: Any, name: str) -> str:
    """Return the remedy for a missing method; it names a method with a similar name."""
    own = [found for found in dir(type(processor)) if not found.startswith("__") and found not in _METHODS]
    near = difflib.get_close_matches(name, own, n=1)
    if near:
        return f"It has {near[0]}. Do: rename that to {name}."
    return f"Do: implement {name}; it has no method with a similar name."


def as_version_3(processor: Any, version: Version) -> Any:
    """Return the processor, or a bridge to it, with the methods of version 3."""
    if version == 3:
        return processor
    return V2toV3Processor(V1toV2Processor(processor) if version == 1 else processor)


def _decided(declared: Version | None, *, one: bool, two: bool, new_end: bool, old_end: bool) -> Version:
    """Return the version. one, two: process_records takes one or two arguments. new_end: shard_ended or lease_lost is
    implemented; old_end: shutdown is."""
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
        # Implemented in C: its arguments are unknown.
        return True
    return True


def _is_written(processor: Any, name: str) -> bool:
    """Return True if the program implements the method: a base class marks the others abstract."""
    method = getattr(processor, name, None)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


# -- a processor for each shard ------------------------------------------------------------------------------------


def is_factory(given: Any) -> bool:
    """Return True for a factory of processors, a class or a function, and False for a processor."""
    return isinstance(given, type) or (callable(given) and not hasattr(given, "process_records"))


def one_of(given: Any) -> Any:
    """Return a processor: `given`, or the one that it creates."""
    return given() if is_factory(given) else given


def factory_of(given: Any) -> Callable[[], Any]:
    """Return a factory of processors: copies of `given` as it is now, else new instances of its class.

    Raises ConfigError, with the reason, if neither is possible. The factory raises NotAProcessor if it gets the same
    object again.
    """
    name = getattr(given, "__qualname__", type(given).__name__)
    if is_factory(given):
        return _OneForEach(given, name)
    try:
        # Copied once more for each shard, as the program may change its own object later.
        pristine = copy.deepcopy(given)
    except Exception as error:  # noqa: BLE001 - the program's attributes decide what copying raises
        problem = _why_not_anew(given)
        if problem is None:
            return _OneForEach(type(given), name, given)
        uncopied = ", ".join(_uncopied(given)) or type(error).__name__
        raise ConfigError(
            f"Each shard needs a {name} of its own, but the one given to KCLProcess can be neither copied ({uncopied}) "
            f"nor created again ({problem}). Do: create what cannot be copied in initialize(), or pass a factory: "
            f"KCLProcess(lambda: {name}(...)). Or run the program by `pykcl multilangd`, which starts a process for "
            "each shard."
        ) from None
    if hasattr(given, "process_records"):
        # Otherwise it is not a processor, and the caller has the better message.
        _refuse_the_same(pristine, given, name)
    return _OneForEach(lambda: copy.deepcopy(pristine), name, given)


class _OneForEach:
    """Create processors with `make`. Raises NotAProcessor if it returns the previous one again."""

    def __init__(self, make: Callable[[], Any], name: str, given: Any = None) -> None:
        self._make, self._name, self._before = make, name, given

    def __call__(self) -> Any:
        made = self._make()
        before, self._before = self._before, made
        _refuse_the_same(made, before, self._name)
        return made


def _refuse_the_same(made: Any, before: Any, name: str) -> None:
    if made is before:
        what = "always returns the same object"
    elif hasattr(made, "__dict__") and made.__dict__ is getattr(before, "__dict__", None):
        what = "creates objects that share one __dict__"
    else:
        return
    raise NotAProcessor(
        f"Each shard needs a processor of its own, and {name} {what}: all shards would write to it at the same "
        f"time. Do: let {name} return a new object at each call, without a singleton."
    ).about("E15", f"let {name} return a new processor at each call, without a singleton")


def _uncopied(given: Any) -> list[str]:
    """Return the names and types of the attributes that cannot be copied, never their values."""
    found = []
    for name, value in _attributes(given).items():
        try:
            copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - see above
            found.append(f"{name}: {type(value).__name__}")
    return found


def _why_not_anew(given: Any) -> str | None:
    """Return the reason why `type(given)()` cannot replace `given`; None if their attributes agree."""
    kind = type(given)
    try:
        new, another = kind(), kind()
    except Exception as error:  # noqa: BLE001 - a constructor may raise anything
        return f"its constructor without arguments raises {type(error).__name__}"
    _refuse_the_same(new, given, kind.__name__)
    mine, news, others = map(_attributes, (given, new, another))
    if mine.keys() != news.keys():
        return f"a new one has other attributes: {', '.join(sorted(mine.keys() ^ news.keys()))}"
    plain, new_plain, other_plain = map(_plain, (mine, news, others))
    # Except values that differ each time, such as a start time or a random id.
    changed = [
        name
        for name in mine
        if plain.get(name) != new_plain.get(name) and new_plain.get(name) == other_plain.get(name)
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
