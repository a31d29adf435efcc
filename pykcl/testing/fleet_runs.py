"""`simulate`: a processor in whole fleets under many seeds, with every fault that the simulation knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from pykcl.errors import ConfigError
from pykcl.handlers.functions import processor_of
from pykcl.processor import ProcessorFactory
from pykcl.testing.input_records import InputRecord, checked_records, names_in, refuse_number
from pykcl.testing.recorder import Recorder
from pykcl.testing.result import from_user_code, shown_error
from pykcl.testing.runtime.watchdog import UserCodeFailed, Watchdog
from pykcl.testing.simulation.course import run_simulation
from pykcl.testing.simulation.faults import known
from pykcl.testing.simulation.guarantees import Outcome
from pykcl.worker.processor_factory import checked_processor
from pykcl.worker.window_delivery import windows_of

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
    what: ProcessorFactory | Callable[..., object],
    seeds: int = 20,
    *,
    records: Iterable[Any] | None = None,
    first: int = 0,
    off: Iterable[str] | None = (),
    full: bool = False,
) -> SimulationResult:
    """Run fleets with this processor, one per seed, through crashes, lost answers, throttling and reshards.

    A seed takes a second or two. first: the first seed. records: from `pykcl.testing.records`, or plain values, which
    are put in turn, again and again; small texts by default. off: kinds of faults to leave out, such as "F6.take", or
    "F6" for all of that family. full: four workers, eight shards and every kind of fault with every seed.

    Raises SimulationFailed with the call that runs the fleet again, UserCodeFailed as `run_processor` does,
    ConfigError for arguments that cannot be used.
    """
    __tracebackhide__ = True
    refuse_number("seeds", seeds, 1)
    refuse_number("first", first, 0)
    try:
        left_out = known(names_in("off", off))
    except ValueError as error:
        raise ConfigError(f"off= cannot be used: {error}") from None
    given = _checked_inputs(records)
    create = checked_processor(processor_of(what))
    if windows_of(create()) is not None:
        raise ConfigError(
            "simulate is not for handlers with windows: some of its seeds leave checkpoints to the processor, and a "
            'window moves its own. Do: run_processor(..., end="crash", seed=1), and "lease_lost".'
        )
    outcomes = []
    for seed in range(first, first + seeds):
        watchdog = Watchdog()
        recorder = Recorder(watchdog)
        recorded = recorder.factory(create, "")
        outcome = watchdog.run(
            partial(run_simulation, seed, off=left_out, full=full, processor=recorded, records=given)
        )
        if isinstance(outcome.broken, UserCodeFailed):
            raise outcome.broken.with_traceback(None)
        if outcome.broken is not None:
            _refuse(outcome, _replay(what, seed, left_out, full=full, has_records=bool(given)), recorder)
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


def _checked_inputs(records: Iterable[Any] | None) -> list[InputRecord]:
    if records is None:
        return []
    given = checked_records(records)
    if not given:
        raise ConfigError(
            "records= is empty, so that no seed would put anything. Do: give records, or drop it."
        )
    if any(each.arrived is not None for each in given):
        raise ConfigError(
            "arrived= has no meaning in a fleet, whose records arrive as time goes. Do: leave it out."
        )
    return given


def _replay(what: object, seed: int, off: frozenset[str], *, full: bool, has_records: bool) -> str:
    """Return the call that runs this seed again."""
    options = ", records=..." if has_records else ""
    options += (f", off={tuple(sorted(off))}" if off else "") + (", full=True" if full else "")
    return f"simulate({getattr(what, '__name__', '...')}, seeds=1, first={seed}{options})"
