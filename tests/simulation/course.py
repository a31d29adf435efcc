"""One simulation of the project's own: every kind of fault, Java peers, and checkers of all guarantees."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from pykcl.processor import RecordProcessor
from pykcl.testing.simulation import course
from pykcl.testing.simulation.course import Course
from pykcl.testing.simulation.guarantees import Guarantee, Outcome, Violations
from tests.simulation.acks import AckQuiescence, AckWorld
from tests.simulation.chaos import FleetChaos
from tests.simulation.faults import (
    AckFaults,
    FleetFaults,
    Leaders,
    NativeFaults,
    PolicyFaults,
    ProducerFaults,
    UntilFaults,
    WindowFaults,
)
from tests.simulation.lease_table_actions import lose_and_restore_the_table
from tests.simulation.native import NativeChaos, NativeFleet, NativeWorld
from tests.simulation.native_rest import NativeQuiescence
from tests.simulation.policies import PolicyWorld
from tests.simulation.produced import ProducedChaos, ProducedQuiescence, ProducedWorld
from tests.simulation.pushes import PushWorld
from tests.simulation.quiescence import FleetQuiescence
from tests.simulation.until import UntilFleet, UntilQuiescence, UntilWorld
from tests.simulation.windows import WindowWorld
from tests.simulation.world import CheckedFleet, CheckedWorld


class Mode(Enum):
    """The kind of a simulation. PLAIN: a seed takes the same course as ever. POLICIES: workers give records up (F21);
    not with a processor of a user. NATIVE: the fleet is one of KCL 3.x in its own mode (F22). ACKS: records are settled
    one by one (F23). WINDOWS: they are processed in tumbling windows. PUSHED: they are read by enhanced fan-out.
    PRODUCED: producers put them into the stream (F24). UNTIL: the run ends by itself at a time.
    """

    PLAIN = "plain"
    POLICIES = "policies"
    NATIVE = "native"
    ACKS = "acks"
    WINDOWS = "windows"
    PUSHED = "pushed"
    PRODUCED = "produced"
    UNTIL = "until"


def run_simulation(
    seed: int,
    *,
    off: frozenset[str] = frozenset(),
    full: bool = False,
    processor: Callable[[], RecordProcessor] | None = None,
    blind: bool = False,
    mode: Mode = Mode.PLAIN,
) -> Outcome:
    """Run one simulation; the same arguments take the same course. Raises no broken guarantee: see the outcome.

    off, full, processor: as in pykcl.testing.simulation. blind: no guarantee counts as broken.
    """
    return course.run_simulation(
        seed,
        off=off,
        full=full,
        processor=processor,
        violations=Violations(blind=blind),
        course=_COURSES[mode],
    )


_FIGHT_SECONDS = 300.0
_PRODUCED_SECONDS = 60.0


class FleetCourse(Course):
    """Course with everything that only the project's own tests need."""

    faults = FleetFaults
    world = CheckedWorld
    fleet: type[CheckedFleet] = CheckedFleet
    chaos = FleetChaos
    quiescence = FleetQuiescence

    _world: CheckedWorld
    _fleet: CheckedFleet
    _chaos: FleetChaos

    def before_the_rest(self) -> None:
        if self._faults.happens("F13.deleted"):
            lose_and_restore_the_table(self._world, self._fleet, self._producer)
        elif self._faults.happens("F13.recreated"):
            lose_and_restore_the_table(self._world, self._fleet, self._producer, is_made_anew=True)

    def at_the_end(self) -> None:
        self._chaos.foreigners.check()
        self._world.violations.check()
        super().at_the_end()
        world, figures = self._world, self._figures
        figures.lost += sum(world.record_log.owed().values())
        figures.duplicates = world.delivery.duplicates
        figures.most_duplicates = world.delivery.most_duplicates
        figures.overlap = world.beliefs.worst
        figures.stops = self._fleet.stops


class PolicyCourse(FleetCourse):
    """FleetCourse with processing policies."""

    faults = PolicyFaults
    world = PolicyWorld


class AckCourse(FleetCourse):
    """FleetCourse with records that are settled one by one."""

    faults = AckFaults
    world = AckWorld
    quiescence = AckQuiescence


class WindowCourse(FleetCourse):
    """FleetCourse with a handler that has tumbling windows."""

    faults = WindowFaults
    world = WindowWorld
    _world: WindowWorld

    def at_the_end(self) -> None:
        missing = self._world.windows.missing()
        self._world.violations.expect(
            not missing, Guarantee.NO_GAP, f"in no final state, or in several: {missing[:5]}"
        )
        super().at_the_end()


class PushCourse(FleetCourse):
    """FleetCourse with records that are pushed."""

    world = PushWorld


class ProducedCourse(FleetCourse):
    """FleetCourse with producers."""

    faults = ProducerFaults
    world = ProducedWorld
    chaos = ProducedChaos
    quiescence = ProducedQuiescence
    _world: ProducedWorld
    _chaos: ProducedChaos

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        # What is to happen to a record happens within seconds.
        self._seconds = min(self._seconds, _PRODUCED_SECONDS)

    def before_the_rest(self) -> None:
        self._chaos.end_programs()
        super().before_the_rest()

    def at_the_end(self) -> None:
        super().at_the_end()
        self._figures.puts = self._world.puts.figures()


class UntilCourse(FleetCourse):
    """FleetCourse of a run that ends by itself."""

    faults = UntilFaults
    world = UntilWorld
    fleet = UntilFleet
    quiescence = UntilQuiescence


class NativeCourse(FleetCourse):
    """FleetCourse of a fleet in KCL 3.x's own mode."""

    faults = NativeFaults
    world = NativeWorld
    fleet = NativeFleet
    chaos = NativeChaos
    quiescence = NativeQuiescence
    _faults: NativeFaults

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        if self._faults.leaders is Leaders.FIGHT:
            # Until a lock expires two minutes pass.
            self._seconds = max(self._seconds, _FIGHT_SECONDS)


_COURSES: dict[Mode, type[FleetCourse]] = {
    Mode.PLAIN: FleetCourse,
    Mode.POLICIES: PolicyCourse,
    Mode.NATIVE: NativeCourse,
    Mode.ACKS: AckCourse,
    Mode.WINDOWS: WindowCourse,
    Mode.PUSHED: PushCourse,
    Mode.PRODUCED: ProducedCourse,
    Mode.UNTIL: UntilCourse,
}
