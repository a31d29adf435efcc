"""One storm: a fleet from birth through chaos to rest, decided by one seed."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import datetime

from pykcl.processor import RecordProcessor
from pykcl.testing.simulation import Simulation
from pykcl.testing.storm.calm import Calm
from pykcl.testing.storm.chaos import Chaos
from pykcl.testing.storm.faults import Faults
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.options import storm_options
from pykcl.testing.storm.outcome import Figures, Outcome
from pykcl.testing.storm.places import place_of
from pykcl.testing.storm.producer import Producer
from pykcl.testing.storm.promises import Promise
from pykcl.testing.storm.table_loss import lose_and_restore_the_table
from pykcl.testing.storm.world import World

_FULL_SECONDS = 440.0
_READY_SECONDS = 120.0


def run_storm(
    seed: int,
    *,
    off: frozenset[str] = frozenset(),
    full: bool = False,
    processor: Callable[[], RecordProcessor] | None = None,
    blind: bool = False,
) -> Outcome:
    """Run one storm; the same arguments take the same course. Raises no broken promise: see the outcome.

    off: kinds of faults to leave out (see `faults.KINDS`). full: four workers, eight shards and every kind of fault,
    instead of what the seed says. processor: makes the user's processors, whose work becomes part of the storm. They
    must wait through nothing but what they are given, or the course will differ each time. blind: judge nothing.
    """
    quiet = logging.getLogger("pykcl")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL + 1)
    figures = Figures()
    simulation = Simulation(seed=seed)
    faults = Faults(
        seed, off=off, everything=full, remark=lambda text: simulation.trace.remark(simulation.now, text)
    )
    broken: AssertionError | None = None
    try:
        with simulation:
            _Storm(simulation, faults, figures, full=full, processor=processor, blind=blind).run()
    except AssertionError as error:
        broken = error
    finally:
        # Not `.level =`: the loggers below remember what they may say until this tells them to forget it.
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


class _Storm:
    def __init__(
        self,
        simulation: Simulation,
        faults: Faults,
        figures: Figures,
        *,
        full: bool,
        processor: Callable[[], RecordProcessor] | None,
        blind: bool,
    ) -> None:
        # Not the simulation's generator: so the story does not depend on how often its threads switch.
        self._rng = rng = random.Random(f"{simulation.seed}/story")  # noqa: S311 - reproducible
        self._simulation, self._faults, self._figures = simulation, faults, figures
        self._seconds = _FULL_SECONDS if full else rng.uniform(60, 300)
        options = storm_options(simulation.seed, rng, faults, own_processor=processor is not None)
        self._world = World(
            simulation,
            faults,
            options,
            shards=8 if full else rng.randint(1, 5),
            processor=processor,
            blind=blind,
        )
        self._fleet = StormFleet(self._world, wanted=4 if full else rng.randint(2, 4))
        self._producer = Producer(self._world, rng)
        self._chaos = Chaos(self._world, self._fleet, self._producer, rng)
        self._fleet.clock_rate = self._chaos.clock_rate

    def run(self) -> None:
        if self._world.options["start"] == "LATEST":
            self._start_at_latest()
        else:
            if self._world.options["start"] != "TRIM_HORIZON":
                self._let_time_pass_until(self._world.options["start"])
            self._producer.put_some()
            self._fleet.start()
        until = self._simulation.now + self._seconds
        while self._simulation.now < until:
            self._chaos.step()
            self._simulation.sleep(self._rng.choice([0.05, 0.5, 2, 8]) * self._rng.random())
            self._fleet.look_after()
            self._world.verdict.check()
        self._producer.put_some()
        if self._faults.happens("F13.deleted"):
            lose_and_restore_the_table(self._world, self._fleet, self._producer)
        elif self._faults.happens("F13.recreated"):
            lose_and_restore_the_table(self._world, self._fleet, self._producer, is_made_anew=True)
        Calm(self._world, self._fleet, self._producer, self._figures).run()
        self._chaos.judge()
        self._note_figures()

    def _start_at_latest(self) -> None:
        """What is put before the start is not read; from when the first worker is ready on, everything is."""
        self._put_before()
        self._producer.is_on = False
        self._simulation.sleep(3.0)
        host = self._fleet.start()
        deadline = self._simulation.now + _READY_SECONDS
        while not host.worker.wait_ready(0.5):
            self._simulation.sleep(0.1)
            # The worst storms let nobody become ready; what is put is only promised from then on.
            self._faults.healed = self._simulation.now > deadline
            in_time = self._simulation.now < deadline + _READY_SECONDS
            self._world.verdict.expect(in_time, Promise.BALANCE, f"{host.name} does not become ready")
            self._world.verdict.check()
            if host.is_over or host.worker.failure is not None:
                self._fleet.look_after()
                host = self._fleet.start()
            while len(self._fleet.alive) < self._fleet.fewest():
                self._fleet.start()
        self._faults.healed = False
        self._producer.is_on = True

    def _put_before(self) -> None:
        put = self._world.kinesis.put_record("orders", b"before", "before")
        place = place_of(self._world.numbers.shorten(put.sequence_number), 0)
        self._world.ledger.shard(put.shard_id).before.add(place)

    def _let_time_pass_until(self, start: datetime) -> None:
        """What is put before that time is not read."""
        self._put_before()
        millis = int(start.timestamp() * 1000)
        self._simulation.sleep((millis - self._world.kinesis_millis()) / 1000 + 0.5)

    def _note_figures(self) -> None:
        world, figures = self._world, self._figures
        figures.records = world.ledger.records()
        figures.deliveries = world.ledger.deliveries
        figures.lost += sum(world.ledger.owed().values())
        figures.taken_by_retention = sum(len(s.never_delivered()) for s in world.ledger.shards.values())
        figures.duplicates = world.delivery.duplicates
        figures.most_duplicates = world.delivery.most_duplicates
        figures.overlap = world.beliefs.worst
        figures.stops = self._fleet.stops
        figures.workers = self._fleet.started
        figures.shards = len(world.ledger.parents)
