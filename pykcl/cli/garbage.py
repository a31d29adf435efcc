"""The garbage collector of a process that is nothing but a worker."""

from __future__ import annotations

import gc
from typing import Final

from pykcl.events import Event, WorkerStarted

_YOUNG: Final = 50_000
"""Objects more than were dropped, from which on Python looks for garbage; by default 700, or 2,000 from 3.13 on."""


def tune_collector(event: Event) -> None:
    """A listener: once the worker has started, garbage is looked for where there is some, and seldom.

    What is there by then is left out: 75,000 objects of modules and of boto3's models, which live as long as the
    process. Every full collection would walk them all, with the interpreter's lock held. And records are dropped as
    soon as their batch is, without a collection; but 10,000 of them in a batch would cause fourteen, each a walk over
    records that are in use. Only for a program that is the worker: in somebody else's process it is not ours to decide.
    """
    if isinstance(event, WorkerStarted):
        gc.collect()
        gc.freeze()
        gc.set_threshold(max(_YOUNG, gc.get_threshold()[0]), *gc.get_threshold()[1:])
