"""Rest after the last fault: some workers are left, and the fleet has to come to rest and stay there."""

from __future__ import annotations

from collections import Counter

from pykcl.local.stream import ReadSpan
from pykcl.testing.runtime import SimTask
from pykcl.testing.simulation.course import Quiescence
from pykcl.testing.simulation.delivery import END, checkpoint_position
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.service_faults import past_retention
from pykcl.testing.simulation.world import FAILOVER, WorkerHost
from tests.simulation.world import CheckedFleet, CheckedWorld, JavaHost, failover_bound

BALANCE_SECONDS, REST_SECONDS, QUIET_SECONDS = 120.0, 30.0, 50.0
STRAINED_SECONDS = 25.0
FILLING_SECONDS = 150.0
"""Until a leader that is dead is believed to be, and the next one has audited."""
EXPIRED_SECONDS = 1000.0
"""Until a shard that no listing shows counts as expired."""
_READER, _NOBODY = "pykcl-", "nobody"
_POLL_SECONDS = 0.5
WHOLE_SHARD = ReadSpan(1e9, 1e9)


class FleetQuiescence(Quiescence):
    """After the last fault the fleet has to come to rest and stay there: the liveness half of a simulation."""

    _world: CheckedWorld
    _fleet: CheckedFleet

    def run(self) -> None:
        """Raises GuaranteeBroken."""
        self._heal()
        self._everything_is_delivered()
        self._owners_of_deleted_rows_report_expired_shards()
        # What is measured from here on is the fleet, and not the stretches without records that a new owner may have to
        # cross from an old checkpoint.
        kinesis = self._world.kinesis
        span, kinesis.read_span = kinesis.read_span, WHOLE_SHARD
        self._fleet_is_balanced()
        self._newcomer_gets_its_share()
        self._nothing_moves()
        self._nothing_moves_under_strain()
        self._who_is_cut_off_lets_go()
        self._a_dead_reader_is_replaced()
        self._survivors_take_over()
        self._a_deploy_repeats_nothing()
        self._everybody_stops()
        kinesis.read_span = span
        self._retention_passes_while_nobody_runs()
        self._everybody_stops()
        self._losses_were_reported()

    def _heal(self) -> None:
        for host in self._fleet.workers():
            host.worker.resume()
        super()._heal()

    def _leave(self, name: str) -> None:
        host = self._fleet.alive[name]
        if isinstance(host, JavaHost):
            self._fleet.kill(name)
        else:
            super()._leave(name)

    def _owners_of_deleted_rows_report_expired_shards(self) -> None:
        """1) An operator deletes a row; 2) before it is restored, retention drops the whole shard; 3) no worker can
        continue there, so the owner reports the loss, unless it has left the fleet."""
        world = self._world
        expired = {key: owner for key, owner in world.deleted_rows.missing.items() if world.is_gone(key)}
        living = {host.worker_id for host in self._fleet.workers()}
        awaited = {key for key, owner in expired.items() if owner in living}
        for key in expired.keys() - awaited:
            world.must_be_reported.pop(key, None)
        if awaited & world.must_be_reported.keys():
            self._expect_soon(
                lambda: awaited <= {event.shard for event in world.lost},
                EXPIRED_SECONDS,
                Guarantee.LOSS_REPORTED,
                lambda: f"the owners of deleted rows reported no loss: {sorted(awaited)}",
            )

    def _fleet_is_balanced(self) -> None:
        started = self._world.simulation.now
        # A worker does not retake a lease that a failing processor released, for as long as it was retried.
        self._expect_soon(
            self._is_balanced,
            BALANCE_SECONDS + 2 * self._patience(),
            Guarantee.BALANCE,
            lambda: str(self._load()),
        )
        self._figures.to_balance = self._world.simulation.now - started
        self._expect_soon(
            lambda: not self._unleased(),
            BALANCE_SECONDS,
            Guarantee.BALANCE,
            lambda: f"open shards without a lease: {self._unleased()}",
        )
        self._expect_soon(
            lambda: not self._without_range(),
            FILLING_SECONDS,
            Guarantee.BALANCE,
            lambda: f"leases without the hash range of their shard: {self._without_range()}",
        )

    def _newcomer_gets_its_share(self) -> None:
        """Steal from busy owners: none of them starts a batch after the newcomer has started."""
        # After that no host holds a view from the time of the faults.
        self._sleep(FAILOVER)
        self._world.delivery.is_healed = True
        self._fleet.start()
        self._sleep(1.0)

        def is_balanced() -> bool:
            self._producer.put_on_every_shard()
            return self._is_balanced()

        self._expect_soon(is_balanced, BALANCE_SECONDS, Guarantee.BALANCE, lambda: str(self._load()))

    def _nothing_moves(self) -> None:
        self._sleep(REST_SECONDS)
        taken = self._world.taken
        self._sleep(QUIET_SECONDS)
        moved = self._figures.moves_at_rest = self._world.taken - taken
        self._world.violations.expect(
            moved == 0, Guarantee.NO_CHURN, f"{moved} leases moved in {QUIET_SECONDS:g} s"
        )

    def _nothing_moves_under_strain(self) -> None:
        """Answers to heartbeats get lost and batches take longer than a lease lasts; but everybody is alive."""
        taken = self._world.taken
        self._producer.put_on_every_shard()
        self._world.faults.strained = True
        self._sleep(STRAINED_SECONDS)
        self._world.faults.strained = False
        moved = self._world.taken - taken
        self._figures.moves_at_rest += moved
        self._world.violations.expect(
            moved == 0, Guarantee.NO_CHURN, f"{moved} leases moved, all owners alive"
        )
        self._world.violations.check()

    def _who_is_cut_off_lets_go(self) -> None:
        """Its last answers came late and then none: when others take its leases, it has let go of them."""
        world = self._world
        victim = world.faults.rng("F5.slow").choice(self._fleet.workers())
        world.faults.far_away = victim.name
        self._sleep(FAILOVER)
        world.outages.down[("dynamodb", victim.name)] = world.simulation.now + 1.5 * FAILOVER
        self._producer.put_on_every_shard()
        self._sleep(1.5 * FAILOVER)
        world.faults.far_away = ""
        self._everything_is_delivered()

    def _a_dead_reader_is_replaced(self) -> None:
        """One thread dies; its worker goes on, and must not hold a lease that it does not read."""
        world = self._world
        self._expect_soon(
            lambda: bool(self._readers()), BALANCE_SECONDS, Guarantee.BALANCE, lambda: "nobody reads anything"
        )
        host, task = world.faults.rng("F2").choice(self._readers())
        self._fleet.strike(host, task)
        self._is_read_again({task.name.removeprefix(_READER)}, f"its reader in {host} died", _NOBODY)
        self._everything_is_delivered()

    def _readers(self) -> list[tuple[str, SimTask]]:
        """(host, thread) of every lease that is held and read."""
        return [
            (host.name, task)
            for host in self._fleet.workers()
            for task in self._world.simulation.unfinished(host.name)
            if task.name.startswith(_READER + "shardId")
            and self._world.beliefs.believes(host.name, task.name.removeprefix(_READER))
        ]

    def failover_bound(self) -> float:
        """Seconds until the leases of a dead worker are read again."""
        return failover_bound()

    def _is_read_again(self, keys: set[str], what: str, reader: str, within: float = 0.0) -> None:
        """FAILOVER. reader: who read these leases last, and reads them no more. within: `failover_bound` by default."""
        world, within = self._world, within or self.failover_bound()
        started = world.simulation.now
        for key in keys:
            world.delivery.reader[key] = reader
        self._producer.put_on_every_shard()
        waiting = set(keys)
        while waiting and world.simulation.now < started + within:
            self._sleep(_POLL_SECONDS / 2)
            back = {key for key in waiting if world.delivery.reader.get(key) != reader}
            if reader != _NOBODY:
                self._figures.failovers += [world.simulation.now - started] * len(back)
            waiting -= back
        alone = f"{sorted(waiting)} not read {within:g} s after {what}"
        world.violations.expect(not waiting, Guarantee.FAILOVER, alone)

    def _survivors_take_over(self) -> None:
        """A crash without other faults: everything the dead worker had is read again in time."""
        world, fleet = self._world, self._fleet
        self._expect_soon(
            lambda: any(self._leases_of(host) for host in fleet.workers()),
            BALANCE_SECONDS,
            Guarantee.BALANCE,
            lambda: f"nobody has a lease: {world.owners()}",
        )
        victim = world.faults.rng("F1").choice([host for host in fleet.workers() if self._leases_of(host)])
        orphans = self._leases_of(victim)
        fleet.kill(victim.name)
        while not fleet.alive:
            fleet.start()
        self._is_read_again(orphans, f"{victim.name} died", victim.name)
        self._everything_is_delivered()

    def _leases_of(self, host: WorkerHost) -> set[str]:
        """Keys of the leases it holds and that have not ended."""
        owners = self._world.owners().items()
        return {key for key, owner in owners if owner == host.worker_id and self._is_active(key)}

    def _everybody_stops(self) -> None:
        super()._everybody_stops()
        hosts = [host for host in self._fleet.leaving.values() if isinstance(host, WorkerHost)]
        stuck = {host.worker_id for host in hosts if host.timed_out}
        owned = {
            k: o
            for k, o in self._world.owners().items()
            if o is not None and o.startswith("w") and o not in stuck
        }
        dead = {name for name, fate in self._world.delivery.fates.items() if fate == "crash"}
        owned = {key: owner for key, owner in owned.items() if not self._may_stay_owned(key, owner in dead)}
        self._world.violations.expect(not owned, Guarantee.STOP, f"still owned: {owned}")
        self._world.violations.check()

    def _may_stay_owned(self, key: str, is_dead: bool) -> bool:
        """Return whether a lease may have an owner, dead or not, after every worker has stopped."""
        return is_dead and not self._is_active(key)

    def _retention_passes_while_nobody_runs(self) -> None:
        """Check that workers that start then report the missing records, and read the rest."""
        world = self._world
        # Retention is about to drop undelivered records, which no figure would show afterwards.
        self._figures.lost += sum(world.record_log.owed().values())
        self._producer.put_on_every_shard()
        self._sleep(20.0)
        world.kinesis_skew += past_retention(24, 5.0)
        world.note_trimming()
        for _ in range(self._fleet.fewest()):
            self._fleet.start()
        self._producer.put_on_every_shard()
        self._everything_is_delivered()

    def _losses_were_reported(self) -> None:
        reported = {event.shard for event in self._world.lost}
        record_log = self._world.record_log
        silent = {
            key
            for key, positions in self._world.must_be_reported.items()
            if positions.intersection(record_log.shard(key).never_delivered())
        } - reported
        self._world.violations.expect(
            not silent, Guarantee.LOSS_REPORTED, f"no worker reported a loss in {sorted(silent)}"
        )
        alarms = {
            key for key in reported if not record_log.shard(key).is_trimmed and not self._world.is_gone(key)
        }
        self._world.violations.expect(
            not alarms, Guarantee.LOSS_REPORTED, f"a false alarm about {sorted(alarms)}"
        )
        self._world.violations.check()

    # -- state of the fleet ------------------------------------------------------------------------------------

    def _load(self) -> Counter[str | None]:
        rows, record_log = self._world.rows(), self._world.record_log
        loads: Counter[str | None] = Counter()
        for key, owner in self._world.owners().items():
            # A shard that waits for its parents has no owner yet.
            ended = all(p not in rows or checkpoint_position(rows[p]) == END for p in record_log.parents[key])
            if ended and self._is_active(key):
                loads[owner] += 1
        return loads

    def _unleased(self) -> list[str]:
        return sorted(set(self._world.open_shards()) - self._world.rows().keys())

    def _without_range(self) -> list[str]:
        rows = self._world.rows()
        return sorted(
            key for key in rows if self._is_active(key) and "S" not in rows[key].get("endingHashKey", {})
        )

    def _is_balanced(self) -> bool:
        loads = self._load()
        ids = {host.worker_id for host in self._fleet.workers()}
        held = [loads[worker_id] for worker_id in ids]
        return loads.keys() <= ids and max(held) - min(held) <= 1
