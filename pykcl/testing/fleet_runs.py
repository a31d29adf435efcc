"""`simulate`: a processor in whole fleets under many seeds, with every fault that the simulation knows."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from pykcl.errors import ConfigError
from pykcl.processor import ProcessorFactory, RecordProcessor
from pykcl.testing.input_records import refuse_number, refuse_text
from pykcl.testing.recorder import Recorder
from pykcl.testing.result import from_user_code, shown_error
from pykcl.testing.runtime.watchdog import UserCodeFailed, Watchdog
from pykcl.testing.simulation.course import run_simulation
from pykcl.testing.simulation.faults import known
from pykcl.testing.simulation.guarantees import Outcome
from pykcl.testing.simulation.runner import Job
from pykcl.worker.processor_factory import checked_processor

_SHOWN_EVENTS = 15
_SHOWN_CHARACTERS = 300


class SimulationFailed(AssertionError):
    """A fleet broke a guarantee with the processor in it. seed: of that fleet. replay: how to run it again."""

    def __init__(self, message: str, seed: int, replay: str) -> None:
        super().__init__(message)
        self.seed = seed
        self.replay = replay


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Sums over all seeds. hours: simulated. faults: how often each kind was injected.

    expired: records that the retention period took before anybody had read them.
    """

    seeds: range
    records: int
    deliveries: int
    expired: int
    hours: float
    faults: dict[str, int]

    def __repr__(self) -> str:
        return (
            f"<SimulationResult of seeds {self.seeds.start} to {self.seeds.stop - 1}: every guarantee kept for "
            f"{self.records} records in {self.deliveries} deliveries, {sum(self.faults.values())} faults in "
            f"{self.hours:.1f} simulated hours>"
        )


def simulate(
    what: ProcessorFactory, seeds: int = 20, *, first: int = 0, off: Iterable[str] = (), full: bool = False
) -> SimulationResult:
    """Run fleets with this processor, one per seed, through crashes, lost answers, throttling and reshards.

    A seed takes a second or two. first: the first seed. off: kinds of faults to leave out, such as "F6.take", or "F6"
    for all of that family. full: four workers, eight shards and every kind of fault with every seed.

    Raises SimulationFailed with the command that runs the fleet again, UserCodeFailed as `run_processor` does,
    ConfigError for arguments that cannot be used.
    """
    __tracebackhide__ = True
    refuse_number("seeds", seeds, 1)
    refuse_number("first", first, 0)
    refuse_text("off", off)
    try:
        left_out = known(off)
    except ValueError as error:
        raise ConfigError(f"off= cannot be used: {error}") from None
    create = checked_processor(what)
    outcomes = []
    for seed in range(first, first + seeds):
        watchdog = Watchdog()
        recorder = Recorder(watchdog)
        recorded = recorder.factory(create, "")
        outcome = watchdog.run(partial(run_simulation, seed, off=left_out, full=full, processor=recorded))
        if isinstance(outcome.broken, UserCodeFailed):
            raise outcome.broken.with_traceback(None)
        if outcome.broken is not None:
            _refuse(outcome, _replay(what, seed, left_out, full=full), recorder)
        outcomes.append(outcome)
    return SimulationResult(
        range(first, first + seeds),
        records=sum(outcome.figures.records for outcome in outcomes),
        deliveries=sum(outcome.figures.deliveries for outcome in outcomes),
        expired=sum(outcome.figures.taken_by_retention for outcome in outcomes),
        hours=sum(outcome.virtual_seconds for outcome in outcomes) / 3600,
        faults=dict(sum((outcome.injected for outcome in outcomes), Counter[str]())),
    )


def _refuse(outcome: Outcome, replay: str, recorder: Recorder) -> NoReturn:
    __tracebackhide__ = True
    lines = [f"Seed {outcome.seed} failed: {outcome.summary:.{_SHOWN_CHARACTERS}}", f"  replay: {replay}"]
    errors = [call.error for call in recorder.calls if call.error is not None]
    if errors:
        lines.append(f"  The processor raised {len(errors)} times, last {shown_error(errors[-1])}")
    lines += [f"  The last {_SHOWN_EVENTS} events:", *outcome.last_lines[-_SHOWN_EVENTS:]]
    failure = SimulationFailed("\n".join(lines), outcome.seed, replay)
    raise failure from (from_user_code(errors[-1]) if errors else None)


def _replay(what: ProcessorFactory, seed: int, off: frozenset[str], *, full: bool) -> str:
    """Return the command that runs this seed again; where no command can name the processor, the call."""
    name = _importable(what)
    if name is not None:
        return Job(seed, off, full, name).replay
    options = (f", off={tuple(sorted(off))}" if off else "") + (", full=True" if full else "")
    return f"simulate({getattr(what, '__name__', '...')}, seeds=1, first={seed}{options})"


def _importable(what: ProcessorFactory) -> str | None:
    """Return the class as module:Class, as it can be imported from the current folder or an installed package."""
    is_class = inspect.isclass(what) and issubclass(what, RecordProcessor)
    if not is_class or what.__qualname__ != what.__name__:
        return None
    module = what.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    if Path(file).is_relative_to(Path.cwd()):
        # Tests are often imported under the name of their file alone, whichever folder they are in.
        module = ".".join(Path(file).relative_to(Path.cwd()).with_suffix("").parts)
    return f"{module}:{what.__name__}" if all(part.isidentifier() for part in module.split(".")) else None
