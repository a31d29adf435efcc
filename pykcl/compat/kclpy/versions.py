"""For which version of amazon_kclpy's interface a processor is written: what it says, and what its methods are."""

from __future__ import annotations

import difflib
import inspect
import logging
from typing import Any, Literal

from pykcl.compat.kclpy.v2.processor import V1toV2Processor
from pykcl.compat.kclpy.v3.processor import V2toV3Processor
from pykcl.errors import ConfigError
from pykcl.worker.processor_factory import refuse_what_runs_nothing

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
