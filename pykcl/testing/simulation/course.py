"""One simulation: a fleet from its first worker through chaos to rest, decided by one seed."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pykcl.processor import RecordProcessor
from pykcl.testing.input_records import InputRecord
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation
from pykcl.testing.simulation.chaos import Chaos, Producer
from pykcl.testing.simulation.delivery import END, checkpoint_position
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Figures, Guarantee, Outcome, Violations
from pykcl.testing.simulation.world import GRACE, Host, SimulatedFleet, WorkerHost, World

FEW_LEASES = 5
"""With two workers all shards of a simulation still find an owner."""
_SIMULATION_BEGINS = 1000
_START_AFTER = 3
"""Seconds."""
_DELIVERY_SECONDS = 400.0
_POLL_SECONDS = 0.5


def draw_options(seed: int, rng: random.Random, faults: Faults, *, own_processor: bool) -> dict[str, Any]:
    """Return fields of Config, by name. own_processor: of a user, which may raise at any time.

    Options added later use separate generators, so that the course of a seed does not change otherwise.
    """
    options = _first_options(rng)
    start = _own(seed, "AT_TIMESTAMP")
    if options["initial_position"] == "TRIM_HORIZON" and start.random() < 0.25:
        started = datetime.fromtimestamp(EPOCH_MILLIS / 1000, tz=UTC)
        options["initial_position"] = started + timedelta(seconds=_SIMULATION_BEGINS + _START_AFTER)
    if faults.has("F17.raises") and not own_processor:
        options["on_error"] = _own(seed, "on_error").choice(["retry", "retry", "retry", "skip", "raise"])
    if _own(seed, "processor_timeout").random() < 0.25:
        # Longer than the batches that are slow on purpose after the last fault, by a fast clock too.
        options["processor_warn_after"], options["processor_timeout"] = 10.0, 25.0
    audits = _own(seed, "audits")
    options["audit_interval"], options["audit_confidence_threshold"] = (
        audits.choice([5.0, 20.0]),
        audits.choice([1, 3]),
    )
    # Fleets of a simulation are too small for segmented scans, unless the option says so.
    options["lease_scan_mode"] = _own(seed, "lease_scan_mode").choice(["full", "segmented"])
    if _own(seed, "max_leases").random() < 0.25:
        options["max_leases"] = FEW_LEASES
        # Where those who scan a lease are full, others may not know of it for long: docs/concepts/guarantees.md.
        options["lease_scan_mode"] = "full"
    return options


def _own(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/option/{name}")  # noqa: S311 - reproducible


def _first_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "initial_position": rng.choice(["TRIM_HORIZON"] * 4 + ["LATEST"]),
        "checkpoint_mode": rng.choice(["auto", "auto", "interval", "manual"]),
        "max_records": rng.choice([2, 5, 10_000]),
        "cleanup_interval": rng.choice([3.0, 20.0]),
        "shard_sync_interval": rng.choice([5.0, 30.0]),
        "retry_timeout": rng.choice([5.0, 30.0]),
        "parent_shard_poll_interval": rng.choice([0.5, 2.0]),
        "max_leases_to_steal_at_one_time": rng.choice([1, 3]),
        "shutdown_grace": GRACE,
    }
    interval = rng.choice([0.5, 5.0])
    if options["checkpoint_mode"] == "interval":
        options["checkpoint_interval"] = interval
    return options


_FULL_SECONDS = 440.0
_READY_SECONDS = 120.0


class Quiescence:
    """State after the last fault: some workers are left, and everything that was put has to be delivered."""

    def __init__(self, world: World, fleet: SimulatedFleet, producer: Producer, figures: Figures) -> None:
        self._world, self._fleet, self._producer, self._figures = world, fleet, producer, figures

    def run(self) -> None:
        """Raises GuaranteeBroken."""
        self._heal()
        self._everything_is_delivered()
        self._a_deploy_repeats_nothing()
        self._everybody_stops()

    def _heal(self) -> None:
        world, fleet = self._world, self._fleet
        fleet.replace_dead()
        world.faults.healed = True
        world.outages.heal()
        world.dynamodb.deliver_postponed()
        world.set_retention(24)
        world.note_trimming()
        fleet.phase = "rest"
        world.healed_at = world.simulation.now
        fleet.clock_rate = lambda: 1.0
        self._wait(lambda: not any(map(world.simulation.is_frozen, fleet.alive)), 60.0)
        seen: set[str] = set()
        for name, host in sorted(fleet.alive.items()):
            # All but one of those that share an identifier go: what is left is to be checked.
            if not self._may_stay(host) or host.worker_id in seen:
                self._leave(name)
            seen.add(host.worker_id)
        while len(fleet.alive) < 2:
            fleet.start()

    def _may_stay(self, host: Host) -> bool:
        return isinstance(host, WorkerHost)

    def _leave(self, name: str) -> None:
        self._fleet.ask_to_stop(self._fleet.alive[name])

    def _everything_is_delivered(self) -> None:
        self._producer.put_some()
        record_log = self._world.record_log
        self._expect_soon(
            lambda: not record_log.owed(),
            _DELIVERY_SECONDS + 2 * self._patience(),
            Guarantee.ALL_DELIVERED,
            lambda: f"owed {record_log.owed()}, owners {self._world.owners()}",
        )
        self._expect_soon(
            lambda: not self._unended(),
            _DELIVERY_SECONDS + 2 * self._patience(),
            Guarantee.ALL_DELIVERED,
            lambda: f"drained shards that do not end: {self._unended()}",
        )

    def _a_deploy_repeats_nothing(self) -> None:
        old = self._fleet.workers()[0]
        self._fleet.start()
        self._sleep(3.0)
        for _ in range(2):
            # What is checkpointed at intervals owes the second of them.
            self._producer.put_on_every_shard(aggregated=True)
            self._sleep(1.5)
        self._fleet.ask_to_stop(old)
        self._everything_is_delivered()

    def _everybody_stops(self) -> None:
        for host in self._fleet.workers():
            self._fleet.ask_to_stop(host)
        self._expect_soon(
            self._fleet.all_have_left,
            60.0,
            Guarantee.STOP,
            lambda: f"not over: {sorted(self._fleet.leaving)}",
        )

    # -- state of the fleet ------------------------------------------------------------------------------------

    def _patience(self) -> float:
        return float(self._world.options["retry_timeout"])

    def _is_active(self, key: str) -> bool:
        return checkpoint_position(self._world.rows()[key]) != END

    def _unended(self) -> list[str]:
        """Closed shards whose leases have not come to SHARD_END: their children wait for that."""
        still_open = set(self._world.open_shards())
        return sorted(key for key in self._world.rows().keys() - still_open if self._is_active(key))

    def _sleep(self, seconds: float) -> None:
        self._world.simulation.sleep(seconds)
        self._fleet.replace_dead()
        self._world.violations.check()

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = self._world.simulation.now + seconds
        while not condition() and self._world.simulation.now < deadline:
            self._sleep(_POLL_SECONDS)
        return condition()

    def _expect_soon(
        self, condition: Callable[[], bool], seconds: float, guarantee: Guarantee, what: Callable[[], str]
    ) -> None:
        if not self._wait(condition, seconds):
            self._world.violations.expect(False, guarantee, what())
        self._world.violations.check()


def run_simulation(
    seed: int,
    *,
    off: frozenset[str] = frozenset(),
    full: bool = False,
    processor: Callable[[], RecordProcessor] | None = None,
    records: Sequence[InputRecord] = (),
    violations: Violations | None = None,
    course: type[Course] | None = None,
) -> Outcome:
    """Run one simulation; the same arguments take the same course. Raises no broken guarantee: see the outcome.

    off: kinds of faults to leave out (see `faults.KINDS`). full: four workers, eight shards and every kind of fault,
    instead of what the seed says. processor: creates the user's processors, whose work becomes part of the simulation.
    They must wait through nothing but what they are given, or the course will differ each time. records: what is put,
    again and again, instead of small texts. violations: where
    checkers note what is broken. course: with other hosts, faults and checkers.
    """
    quiet = logging.getLogger("pykcl")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL + 1)
    figures = Figures()
    simulation = Simulation(seed=seed)
    chosen = course or Course
    faults = chosen.faults(
        seed, off=off, everything=full, remark=lambda text: simulation.trace.remark(simulation.now, text)
    )
    broken: AssertionError | None = None
    try:
        with simulation:
            chosen(
                simulation,
                faults,
                figures,
                violations or Violations(),
                full=full,
                processor=processor,
                records=records,
            ).run()
    except AssertionError as error:
        broken = error
    finally:
        # Not `.level =`: the loggers below remember what they may say until this makes them forget it.
        quiet.setLevel(level)
    return Outcome(
        seed=seed,
        digest=simulation.trace.digest,
        virtual_seconds=simulation.now - 1000.0,
        switches=simulation.switches,
        injected=faults.injected,
        figures=figures,
        last_lines=simulation.trace.last_lines,
        broken=broken,
    )


class Course:
    """One simulation. Subclasses choose other classes for its parts, and add to what happens before the rest."""

    faults: type[Faults] = Faults
    world: type[World] = World
    fleet: type[SimulatedFleet] = SimulatedFleet
    chaos: type[Chaos] = Chaos
    quiescence: type[Quiescence] = Quiescence

    def __init__(
        self,
        simulation: Simulation,
        faults: Faults,
        figures: Figures,
        violations: Violations,
        *,
        full: bool,
        processor: Callable[[], RecordProcessor] | None,
        records: Sequence[InputRecord],
    ) -> None:
        # Not the simulation's generator: so the story does not depend on how often its threads switch.
        self._rng = rng = random.Random(f"{simulation.seed}/story")  # noqa: S311 - reproducible
        self._simulation, self._faults, self._figures = simulation, faults, figures
        self._seconds = _FULL_SECONDS if full else rng.uniform(60, 300)
        options = draw_options(simulation.seed, rng, faults, own_processor=processor is not None)
        self._world = self.world(
            simulation,
            faults,
            options,
            violations,
            shards=8 if full else rng.randint(1, 5),
            processor=processor,
        )
        self._fleet = self.fleet(self._world, wanted=4 if full else rng.randint(2, 4))
        self._producer = Producer(self._world, rng, records)
        self._chaos = self.chaos(self._world, self._fleet, self._producer, rng)
        self._fleet.clock_rate = self._chaos.clock_rate

    def run(self) -> None:
        if self._world.options["initial_position"] == "LATEST":
            self._start_at_latest()
        else:
            if self._world.options["initial_position"] != "TRIM_HORIZON":
                self._let_time_pass_until(self._world.options["initial_position"])
            self._producer.put_some()
            self._fleet.start()
        until = self._simulation.now + self._seconds
        while self._simulation.now < until:
            self._chaos.step()
            self._simulation.sleep(self._rng.choice([0.05, 0.5, 2, 8]) * self._rng.random())
            self._fleet.replace_dead()
            self._world.violations.check()
        self._producer.put_some()
        self._producer.put_the_rest()
        self.before_the_rest()
        self.quiescence(self._world, self._fleet, self._producer, self._figures).run()
        self.at_the_end()
        self._world.violations.check()

    def before_the_rest(self) -> None:
        """Do what is to happen after the last step and before all faults end."""

    def at_the_end(self) -> None:
        """Note the figures, and check what shows at the end only."""
        world, figures = self._world, self._figures
        figures.records = world.record_log.records()
        figures.deliveries = world.record_log.deliveries
        figures.taken_by_retention = sum(len(s.never_delivered()) for s in world.record_log.shards.values())
        figures.workers = self._fleet.started
        figures.shards = len(world.record_log.parents)

    def _start_at_latest(self) -> None:
        """Put records before the start, which are not read; once the first worker is ready, all are."""
        self._producer.put_before()
        self._producer.is_on = False
        self._simulation.sleep(3.0)
        host = self._fleet.start()
        deadline = self._simulation.now + _READY_SECONDS
        while not host.worker.wait_ready(0.5):
            self._simulation.sleep(0.1)
            # The worst simulations let nobody become ready; what is put is only guaranteed from then on.
            self._faults.healed = self._simulation.now > deadline
            in_time = self._simulation.now < deadline + _READY_SECONDS
            self._world.violations.expect(in_time, Guarantee.BALANCE, f"{host.name} does not become ready")
            self._world.violations.check()
            if host.is_over or host.worker.failure is not None:
                self._fleet.replace_dead()
                host = self._fleet.start()
            while len(self._fleet.alive) < self._fleet.fewest():
                self._fleet.start()
        self._faults.healed = False
        self._producer.is_on = True

    def _let_time_pass_until(self, start: datetime) -> None:
        """Put a record before that time, which is not read."""
        self._producer.put_before()
        millis = int(start.timestamp() * 1000)
        self._simulation.sleep((millis - self._world.kinesis_millis()) / 1000 + 0.5)
