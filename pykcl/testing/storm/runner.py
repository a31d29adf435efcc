"""Runs storms in processes of their own: one per core, each storm under a limit of real time."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from pykcl.processor import RecordProcessor
from pykcl.testing.storm.outcome import Figures
from pykcl.testing.storm.storm import run_storm

KEPT = "kept"
HANG_SECONDS = 120.0
"""Real seconds after which a storm counts as hung."""

_GRACE_SECONDS = 10.0
_SHOWN_DUMP = 6000


@dataclass(frozen=True, slots=True)
class Job:
    """One storm to run: the arguments of `run_storm`; processor as "module:Class"."""

    seed: int
    off: frozenset[str] = frozenset()
    full: bool = False
    processor: str | None = None
    blind: bool = False

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        words = [f"python -m pykcl.testing.storm --seed {self.seed}"]
        words += ["--full"] if self.full else []
        words += [f"--off {','.join(sorted(self.off))}"] if self.off else []
        words += [f"--processor {self.processor}"] if self.processor else []
        return " ".join(words + (["--blind"] if self.blind else []))


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What one storm came to, in a form that goes from process to process.

    verdict: "kept", the promise that was broken, or why there is no outcome: a crash or a hang of the storm itself.
    cpu_seconds: real. details: the last events, or the traceback of a crash; of a kept one nothing.
    """

    job: Job
    verdict: str
    digest: str = ""
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    injected: Mapping[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    details: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        return self.verdict == KEPT


def load_processor(name: str) -> Callable[[], RecordProcessor]:
    """The class of "module:Class". Raises ValueError that says what is wrong with it."""
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise ValueError(f"{name!r} names no class. Give it as module:Class, such as shop.consumers:Orders.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:
        raise ValueError(f"The module {module_name} cannot be imported: {error!r}.") from error
    if found is None:
        raise ValueError(f"The module {module_name} has no {class_name}.")
    if not (isinstance(found, type) and issubclass(found, RecordProcessor)):
        raise ValueError(f"{name} is not a subclass of pykcl.RecordProcessor.")
    return found


def run_job(job: Job) -> SeedResult:
    """Run it in this process. Whatever a storm dies of, apart from a broken promise, is a verdict as well.

    Also of what is no Exception: a SystemExit that a thread of it raised would end the command as if all were well.
    """
    began = time.process_time()
    try:
        processor = load_processor(job.processor) if job.processor else None
        with _cycles_kept():
            outcome = run_storm(job.seed, off=job.off, full=job.full, processor=processor, blind=job.blind)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a crash is a verdict about this seed
        lines = tuple(traceback.format_exc().splitlines())
        return SeedResult(job, f"CRASH of the storm itself: {type(error).__name__}: {error}", details=lines)
    return SeedResult(
        job,
        outcome.verdict,
        outcome.digest,
        outcome.virtual_seconds,
        time.process_time() - began,
        dict(outcome.injected),
        outcome.figures,
        () if outcome.broken is None else tuple(outcome.last_lines),
    )


@contextmanager
def _cycles_kept() -> Iterator[None]:
    """No search for garbage in cycles meanwhile: it takes a fifth of the time of a storm, which ends soon anyway."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        gc.collect()


def serve(connection: Connection, dump_file: str, limit: float) -> None:
    """The body of a child process: jobs in, results out, until the connection is closed."""
    # What was imported stays: looking through it after each storm finds nothing.
    gc.freeze()
    # Ctrl-C goes to the whole group; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Path(dump_file).open("w", encoding="utf-8") as dump:
        while True:
            try:
                job = connection.recv()
            except EOFError:
                return
            faulthandler.dump_traceback_later(limit, exit=True, file=dump)
            result = run_job(job)
            faulthandler.cancel_dump_traceback_later()
            connection.send(result)


def _keep_on_one_core(process: BaseProcess, number: int) -> None:
    """Where the system lets us. Of the threads of a storm one runs at a time; handing over to another core is slow."""
    if hasattr(os, "sched_setaffinity") and process.pid is not None:
        cores = sorted(os.sched_getaffinity(0))
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, {cores[number % len(cores)]})


class _Child:
    """One process and the job it has. number: of its place among the children."""

    def __init__(self, number: int, limit: float, body: Callable[[Connection, str, float], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._dump = Path(tempfile.mkstemp(prefix="pykcl-storm-")[1])
        self._limit = limit
        self._since = 0.0
        self.job: Job | None = None
        self.process: BaseProcess = context.Process(
            target=body, args=(theirs, str(self._dump), limit), daemon=True
        )
        self.process.start()
        theirs.close()
        self.number = number
        _keep_on_one_core(self.process, number)

    def give(self, job: Job) -> None:
        self.job, self._since = job, time.monotonic()
        self.connection.send(job)

    @property
    def is_overdue(self) -> bool:
        """Longer than the child's own watch allows: it cannot even end itself."""
        return self.job is not None and time.monotonic() - self._since > self._limit + _GRACE_SECONDS

    def result(self) -> SeedResult:
        """Of the job it has; a child that died or hung without a word is a result too."""
        job, self.job = self.job, None
        assert job is not None
        try:
            if not self.is_overdue and self.connection.poll():
                answer: SeedResult = self.connection.recv()
                return answer
        except (EOFError, OSError):
            # It ended without an answer: what it left in its dump file tells why.
            self.process.join(_GRACE_SECONDS)
        seconds = time.monotonic() - self._since
        dump = self._dump.read_text("utf-8", errors="replace")[-_SHOWN_DUMP:]
        hung = bool(dump) or seconds > self._limit
        what = f"HANG: not over after {seconds:.0f} s of real time" if hung else "CRASH: its process died"
        return SeedResult(
            job, f"{what} (exit code {self.process.exitcode})", details=tuple(dump.splitlines())
        )

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join(_GRACE_SECONDS)
        self._dump.unlink(missing_ok=True)


class Pool:
    """So many processes. limit: real seconds one storm may take. body: what a child runs; for tests."""

    def __init__(
        self,
        processes: int,
        *,
        limit: float = HANG_SECONDS,
        body: Callable[[Connection, str, float], None] = serve,
    ) -> None:
        self._limit, self._body = limit, body
        self._children = [_Child(number, limit, body) for number in range(processes)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def run(self, next_job: Callable[[], Job | None], done: Callable[[SeedResult], None]) -> None:
        """Until `next_job` has none and every job is done. It is asked again after each result."""
        while True:
            for child in self._children:
                job = next_job() if child.job is None else None
                if job is not None:
                    child.give(job)
            busy = [child for child in self._children if child.job is not None]
            if not busy:
                return
            ready = wait([child.connection for child in busy], timeout=1.0)
            for child in busy:
                if child.connection in ready or child.is_overdue:
                    self._take(child, done)

    def _take(self, child: _Child, done: Callable[[SeedResult], None]) -> None:
        result = child.result()
        if not child.process.is_alive() or not result.digest:
            # After a crash or a hang threads may be left behind: the next storm gets a fresh process.
            child.end()
            self._children[self._children.index(child)] = _Child(child.number, self._limit, self._body)
        done(result)
