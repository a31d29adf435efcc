"""Run simulations over many seeds, in processes of their own, each under a limit of real time."""

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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import click

from pykcl.processor import RecordProcessor
from pykcl.testing.simulation.guarantees import Figures
from tests.simulation.course import Mode, run_simulation

KEPT = "kept"
EVERY_SIXTH = 6
"""How often a simulation has a fleet of KCL 3.x in its own mode, unless it is said."""
EVERY_TWELFTH = 12
"""How often the records of a simulation are settled one by one, unless it is said."""
_SEEDS = {Mode.POLICIES: (4, 3), Mode.NATIVE: (EVERY_SIXTH, 4), Mode.ACKS: (EVERY_TWELFTH, 5)}
"""Which seeds have a mode unless it is said: those with that remainder. No seed has two of them."""
CHOSEN_BY_SEED = frozenset({Mode.PLAIN, *_SEEDS})
HANG_SECONDS = 600.0
"""Real seconds after which a simulation counts as hung."""

_GRACE_SECONDS = 10.0
_SHOWN_FAILURES = 5
_PROGRESS_SECONDS = 15.0
_SHOWN_DUMP = 6000


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation to run: the arguments of `run_simulation`; processor as "module:Class".

    modes: the seed chooses one of them; with a processor of a user, PLAIN.
    """

    seed: int
    off: frozenset[str] = frozenset()
    full: bool = False
    processor: str | None = None
    modes: frozenset[Mode] = CHOSEN_BY_SEED

    @property
    def only(self) -> Mode | None:
        """The mode that it has whatever the seed; None if there are several."""
        return next(iter(self.modes)) if len(self.modes) == 1 else None

    @property
    def mode(self) -> Mode:
        """Return the mode that it has."""
        if self.only is not None or self.processor is not None:
            return self.only or Mode.PLAIN
        seeds = ((mode, self.seed % every == rest) for mode, (every, rest) in _SEEDS.items())
        return next((mode for mode, is_its in seeds if is_its and mode in self.modes), Mode.PLAIN)

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        words = [f"python -m tests.simulation --seed {self.seed}"]
        words += ["--full"] if self.full else []
        words += [f"--off {','.join(sorted(self.off))}"] if self.off else []
        words += [f"--processor {self.processor}"] if self.processor else []
        if self.only in (None, Mode.PLAIN):
            words += [f"--no-{mode.value}" for mode in _SEEDS if mode not in self.modes]
        else:
            words.append(f"--{self.mode.value}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Result of one simulation, in a form that can be sent to another process.

    summary: "kept", the guarantee that was broken, or a crash or hang of the simulation itself.
    cpu_seconds: real. details: the last events, or the traceback of a crash; of a kept one nothing.
    """

    job: Job
    summary: str
    digest: str = ""
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    injected: Mapping[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    details: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        return self.summary == KEPT


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
    """Run it in this process. Whatever a simulation dies of, apart from a broken guarantee, gives a result as well.

    Also of what is no Exception: a SystemExit that a thread of it raised would end the command as if all were well.
    """
    started = time.process_time()
    try:
        processor = load_processor(job.processor) if job.processor else None
        with _cycles_kept():
            outcome = run_simulation(
                job.seed,
                off=job.off,
                full=job.full,
                processor=processor,
                mode=job.mode,
            )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a crash is a result of this seed
        lines = tuple(traceback.format_exc().splitlines())
        return SeedResult(
            job, f"CRASH of the simulation itself: {type(error).__name__}: {error}", details=lines
        )
    return SeedResult(
        job,
        outcome.summary,
        outcome.digest,
        outcome.virtual_seconds,
        time.process_time() - started,
        dict(outcome.injected),
        outcome.figures,
        () if outcome.broken is None else tuple(outcome.last_lines),
    )


@contextmanager
def _cycles_kept() -> Iterator[None]:
    """Switch off the search for garbage in cycles, which takes a fifth of the time of a simulation."""
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
    # What was imported stays: looking through it after each simulation finds nothing.
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
    """Pin the process: one thread of a simulation runs at a time, and moving to another core is slow."""
    if hasattr(os, "sched_setaffinity") and process.pid is not None:
        cores = sorted(os.sched_getaffinity(0))
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, {cores[number % len(cores)]})


class _Child:
    """One process and the job it has. number: of its place among the children."""

    def __init__(self, number: int, limit: float, body: Callable[[Connection, str, float], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._dump = Path(tempfile.mkstemp(prefix="pykcl-simulation-")[1])
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
        """Return the result of its job; a child that died or hung is a result, too."""
        is_overdue, job, self.job = self.is_overdue, self.job, None
        assert job is not None
        try:
            if not is_overdue and self.connection.poll():
                answer: SeedResult = self.connection.recv()
                return answer
        except (EOFError, OSError):
            # It ended without an answer: its dump file shows why.
            self.process.join(_GRACE_SECONDS)
        seconds = time.monotonic() - self._since
        dump = self._dump.read_text("utf-8", errors="replace")[-_SHOWN_DUMP:]
        # On a busy machine one that died took longer than its limit to start.
        hung = is_overdue or bool(dump)
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
    """A pool of processes. limit: real seconds one simulation may take. body: what a child runs; for tests."""

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
        """Run until `next_job` has no job and all jobs are done. It is called again after each result."""
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
            # After a crash or a hang threads may be left behind: the next simulation gets a fresh process.
            child.end()
            self._children[self._children.index(child)] = _Child(child.number, self._limit, self._body)
        done(result)


class Campaign:
    """Simulations over many seeds in turn, with their progress on the terminal. template: the job of each of them."""

    def __init__(self, seeds: range, template: Job) -> None:
        self.count = len(seeds)
        self.results = 0
        self.failures = 0
        self.virtual_seconds = 0.0
        self._seeds, self._template = deque(seeds), template
        self._started = self._reported = time.monotonic()

    def run(self, processes: int) -> float:
        """Run all of them; return the real seconds it took."""
        with Pool(processes) as pool:
            pool.run(self.next_job, self.done)
        self._clear_line()
        return time.monotonic() - self._started

    def next_job(self) -> Job | None:
        return replace(self._template, seed=self._seeds.popleft()) if self._seeds else None

    def done(self, result: SeedResult) -> None:
        self.results += 1
        self.virtual_seconds += result.virtual_seconds
        if not result.kept:
            self.report(result, result.summary)
        self.show_progress(f"{self.results} of {self.count} seeds")

    def report(self, result: SeedResult, what: str) -> None:
        """Print a failure, the first few of them with their last events."""
        self.failures += 1
        self._clear_line()
        click.echo(failure_line(result.job, what))
        if self.failures <= _SHOWN_FAILURES:
            click.echo("\n".join(f"    {line}" for line in result.details))

    def show_progress(self, done: str) -> None:
        now = time.monotonic()
        line = (
            f"{done}, {self.failures} failures, {self.virtual_seconds / 3600:.1f} simulated hours "
            f"in {(now - self._started) / 60:.1f} minutes"
        )
        if sys.stderr.isatty():
            click.echo(f"\r{line}\x1b[K", nl=False, err=True)
        elif now - self._reported >= _PROGRESS_SECONDS:
            self._reported = now
            click.echo(line, err=True)

    def _clear_line(self) -> None:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)


def failure_line(job: Job, what: str) -> str:
    return f"seed={job.seed} {what}; replay: {job.replay}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
