"""Rest of a fleet in KCL 3.x's own mode: a leader assigns all leases, and at last there is none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping

from pykcl.planning.leader_lock import AMONG_PYKCL
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.expressions import Item
from pykcl.testing.simulation.delivery import END, checkpoint_position
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.world import FAILOVER, Host
from tests.java_compat.scenarios.java_3x import active_workers, begin_hand_off, sent
from tests.java_peer.lease import read_row
from tests.simulation.checkers.leaders import LOCK
from tests.simulation.checkers.rows import worker_on
from tests.simulation.faults import Leaders
from tests.simulation.native import NATIVE_STATES, ROUND, NativeFleet, NativeWorld
from tests.simulation.quiescence import WHOLE_SHARD, FleetQuiescence
from tests.simulation.world import JavaHost

_TERM_BEGINS = 185.0
"""Seconds until another Java worker leads after the leader died: the lock's duration, and an attempt each thirty
seconds."""
_THAWED = 200.0
"""Seconds until the last Java worker that stands still goes on."""
_FOLLOWED = 150.0
"""Seconds until every worker knows of another client version."""
_SETTLED = 300.0
_DEAD_BELIEVED = 60.0
"""Seconds for which the metrics of a dead worker are believed, and leases may be assigned to it."""
_FOUND = 12.0
_GONE = "gone"
_LED_AGAIN = 50.0
"""Seconds until another pykcl worker reads what a dead pykcl leader read, where nobody else may lead. It reads the lock
each two seconds, takes it after its thirty, scans, and queries the index within five; clocks run a tenth slow at most.
"""
_LED_SOON = 60.0
"""Seconds until a lock that was free or expired is held again, after it may be taken."""
_RESCUED = 135.0
"""Seconds until followers read what a dead leader read: they see the last heartbeat of its lock up to thirty seconds
late, and scan once in thirty seconds whether it stands still."""


_QUIET_ROUNDS = 15
"""Rounds of the leader; it balances in every third one."""


def is_fairly_owned(
    rows: Mapping[str, Item], ids: Collection[str], *, max_leases: int | None, by_java: bool
) -> bool:
    """Return whether every lease has an owner that lives, and nobody has more than its leader allows.

    Java's leader lets nobody have more than the mean, rounded up, of all leases, ended ones, too. Here it goes by the
    number of leases; a leader of pykcl goes by what flows, which says nothing of their number. Where all workers have
    `max_leases`, it leaves an ended lease to nobody: its row waits for a child that has no checkpoint yet.
    """
    loads = Counter(worker_on(row) for row in rows.values())
    is_full = not by_java and max_leases is not None and all(loads[name] >= max_leases for name in ids)
    if is_full and all(checkpoint_position(row) == END for row in rows.values() if worker_on(row) is None):
        del loads[None]
    return loads.keys() <= set(ids) and (
        not by_java or max(loads.values()) <= -(-sum(loads.values()) // len(ids))
    )


class NativeQuiescence(FleetQuiescence):
    """FleetQuiescence of a fleet whose leader assigns the leases, at last without a leader."""

    _world: NativeWorld
    _fleet: NativeFleet

    def run(self) -> None:
        """Raises GuaranteeBroken."""
        self._heal()
        self._is_led()
        self._everything_is_delivered()
        self._owners_of_deleted_rows_report_expired_shards()
        kinesis = self._world.kinesis
        span, kinesis.read_span = kinesis.read_span, WHOLE_SHARD
        self._fleet_is_balanced()
        self._newcomer_gets_its_share()
        self._nothing_moves()
        self._no_lease_moves_back_and_forth()
        self._nothing_moves_under_strain()
        self._who_is_cut_off_lets_go()
        self._a_dead_reader_is_replaced()
        self._survivors_take_over()
        self._a_deploy_repeats_nothing()
        self._a_dead_leader_is_survived()
        self._everybody_stops()
        kinesis.read_span = span
        self._retention_passes_while_nobody_runs()
        self._everybody_stops()
        self._losses_were_reported()

    def _may_stay(self, host: Host) -> bool:
        return True

    def _is_led(self) -> None:
        """Wait until a worker leads in 3.x's own mode, and all others know it."""
        world, fleet = self._world, self._fleet
        was_native = world.version in NATIVE_STATES
        while world.version not in NATIVE_STATES:
            world.change_version()
        if not fleet.java_hosts():
            # Not where pykcl is alone.
            fleet.start_java(self._rng)
        while len(fleet.workers()) < 2:
            fleet.start()

        def leads() -> bool:
            leader = world.leader(fleet.alive)
            return leader is not None and not world.simulation.is_frozen(leader.name)

        self._expect_soon(
            leads, _THAWED + _TERM_BEGINS + _FOLLOWED, Guarantee.BALANCE, lambda: "nobody leads"
        )
        self._sleep(2 * ROUND if was_native else _FOLLOWED)

    @property
    def _rng(self) -> random.Random:
        return random.Random(f"{self._world.simulation.seed}/rest")

    def failover_bound(self) -> float:
        return native_failover_bound()

    def _leave(self, name: str) -> None:
        self._fleet.ask_to_stop(self._fleet.alive[name])

    def _patience(self) -> float:
        # Until a lease that stands still is assigned again; and children are assigned at the leader's next round, one
        # generation after the other. Callers wait twice as long: an owner that finds its lease late misses a round.
        return super()._patience() + 2 * ROUND + ROUND * self._generations()

    def _sleep(self, seconds: float) -> None:
        super()._sleep(seconds)
        for host in self._fleet.java_hosts():
            if any(
                worker_on(row) == host.worker_id and self._java_cannot_end(key)
                for key, row in self._world.rows().items()
            ):
                self._world.java_is_replaced = True
                self._fleet.kill(host.name)
                self._fleet.start()

    def _java_cannot_end(self, key: str) -> bool:
        return self._is_active(key) and java_cannot_end(
            key, self._world.rows().keys(), self._world.record_log.parents
        )

    def _generations(self) -> int:
        record_log = self._world.record_log
        active = {key: self._is_active(key) for key in self._world.rows()}
        return generations_to_read(record_log.parents, active, record_log.owed())

    def _is_balanced(self) -> bool:
        return is_fairly_owned(
            self._world.rows(),
            {host.worker_id for host in self._fleet.alive.values()},
            max_leases=self._world.options.get("max_leases"),
            by_java=isinstance(self._world.leader(self._fleet.alive), JavaHost),
        )

    def _fleet_is_balanced(self) -> None:
        started = self._world.simulation.now
        self._expect_soon(
            self._is_balanced,
            _SETTLED + 2 * self._patience(),
            Guarantee.BALANCE,
            lambda: str(self._world.owners()),
        )
        self._figures.to_balance = self._world.simulation.now - started

    def _newcomer_gets_its_share(self) -> None:
        self._fleet.start()
        self._world.delivery.is_healed = True
        self._sleep(ROUND)

        def is_balanced() -> bool:
            self._producer.put_on_every_shard()
            return self._is_balanced()

        self._expect_soon(is_balanced, _SETTLED, Guarantee.BALANCE, lambda: str(self._world.owners()))

    def _no_lease_moves_back_and_forth(self) -> None:
        """A few records flow. A leader of pykcl may move a lease for the balance; what then moves again, moves for nothing."""
        world = self._world
        if isinstance(world.leader(self._fleet.alive), JavaHost):
            return
        before, chance = world.leader_checker.moved.copy(), self._rng
        for _ in range(_QUIET_ROUNDS):
            self._producer.put_on_every_shard(chance=chance)
            self._sleep(ROUND)
        again = sorted(key for key, count in (world.leader_checker.moved - before).items() if count > 1)
        world.violations.expect(not again, Guarantee.NO_CHURN, f"for the balance, these move twice: {again}")

    def _a_dead_reader_is_replaced(self) -> None:
        self._a_follower_reads()
        super()._a_dead_reader_is_replaced()

    def _survivors_take_over(self) -> None:
        self._a_follower_reads()
        super()._survivors_take_over()

    def _a_follower_reads(self) -> None:
        """Where Java workers have all leases, one of these is handed over to a follower."""
        world = self._world
        while len(self._fleet.workers()) < 2:
            self._fleet.start()

        def asks() -> bool:
            if self._readers():
                return True
            active = active_workers(world.dynamodb.tables[TABLE].rows.values(), world.epoch())
            followers = sorted({host.worker_id for host in self._fleet.workers()} & set(active))
            java = {host.worker_id for host in self._fleet.java_hosts()}
            leases = [
                read_row(row) for key, row in sorted(world.rows().items()) if key in world.open_shards()
            ]
            leases = [each for each in leases if each.owner in java and each.checkpoint_owner is None]
            if leases and followers:
                sent(world.dynamodb, begin_hand_off(TABLE, leases[0], followers[0]))
            return False

        self._expect_soon(asks, _SETTLED, Guarantee.BALANCE, lambda: str(world.owners()))

    def _who_is_cut_off_lets_go(self) -> None:
        """For so long that the leader gives its leases to others."""
        world = self._world
        victim = world.faults.rng("F5.slow").choice(self._fleet.workers())
        world.outages.down[("dynamodb", victim.name)] = world.simulation.now + 5 * FAILOVER
        self._producer.put_on_every_shard()
        self._sleep(5 * FAILOVER)
        self._everything_is_delivered()

    def _a_dead_leader_is_survived(self) -> None:
        """The others read what it read: without a leader, before any Java worker may lead; or soon led by another."""
        world, fleet = self._world, self._fleet
        for _ in range(fleet.fewest() + 1 - len(fleet.workers())):
            fleet.start()
        self._sleep(2 * ROUND)
        self._expect_soon(
            lambda: world.leader(fleet.alive) is not None,
            _TERM_BEGINS + _LED_SOON,
            Guarantee.BALANCE,
            lambda: "nobody leads",
        )
        leader = world.leader(fleet.alive)
        assert leader is not None
        lock_seconds = int(world.dynamodb.tables[TABLE].rows[LOCK]["leaseDuration"]["S"]) / 1000
        is_soon_led = world.faults.leaders is Leaders.PYKCL and lock_seconds == AMONG_PYKCL
        doomed = {leader.name: leader, **{host.name: host for host in fleet.java_hosts()}}
        gone = {host.worker_id for host in doomed.values()}
        orphans = {
            key for key, row in world.rows().items() if worker_on(row) in gone and self._is_active(key)
        }
        for name in doomed:
            fleet.kill(name)
        self._is_read_again(orphans, "the leader died", _GONE, _LED_AGAIN if is_soon_led else _RESCUED)
        self._everything_is_delivered()

    def _may_stay_owned(self, key: str, is_dead: bool) -> bool:
        # A leader has asked for a lease, for itself say, and died: whoever works on it hands it over to the dead. Or both
        # stop: 1) the next owner releases what it finds to be its own; 2) the lease is handed over to it. Nobody can know.
        is_found = self._world.observer.ownership.last_author(key) == self._world.owners().get(key)
        return is_dead or not is_found or not self._is_active(key)

    def _everybody_stops(self) -> None:
        for name in [host.name for host in self._fleet.java_hosts()]:
            self._fleet.kill(name)
        super()._everybody_stops()


def native_failover_bound() -> float:
    """Seconds until the leases of a dead worker are read again. Of a follower: the leader finds them still, gives them to
    the dead once more as long as it believes its metrics, and their next owner finds them in the index. Those of the
    leader are rescued before that."""
    return _DEAD_BELIEVED + 3 * ROUND + FAILOVER + _FOUND


def java_cannot_end(key: str, rows: Collection[str], parents: Mapping[str, Collection[str]]) -> bool:
    """Return whether Java never ends a parent of a merge, as the row of the other parent has been deleted.

    rows: keys of all leases. parents: of every shard. Java 3.5.1 asks for both rows or none, whether the child has its
    row or not (`lifecycle/ShutdownTask.java`).

    1) Both parents end, and the child is begun; 2) their rows are deleted, and the child's, too, once it has ended and
    its own children are begun; 3) the row of one of them comes back: an operator resets an ancestor, or a request that
    makes a lease was under way while its sender stood still; 4) Java tries for ever, until somebody replaces it. While
    neither the child nor anything below it has a row, the other parent may still get its own.
    """
    begun = _with_ancestors(rows, parents)
    return any(
        child in begun and not set(both) <= set(rows) for child, both in parents.items() if key in both
    )


def _with_ancestors(keys: Collection[str], parents: Mapping[str, Collection[str]]) -> set[str]:
    """parents: of every shard; a parent has the smaller key."""
    found = set(keys)
    for key in sorted(parents, reverse=True):
        if key in found:
            found.update(parents[key])
    return found


def generations_to_read(
    parents: Mapping[str, Collection[str]], active: Mapping[str, bool], owed: Collection[str]
) -> int:
    """Return the length of the longest line of shards, each a parent of the next, that are still to be read.

    parents: of every shard; a parent has the smaller key. active: of every lease, True until it has ended. owed: shards
    with records that are to be delivered. Shards without a row count, too: a shard gets its row when its parent ends.
    Where a descendant has a row, the row of the shard was deleted after its end.
    """
    begun = _with_ancestors(active, parents)
    line: dict[str, int] = {}
    for key in sorted(parents):
        is_to_be_read = key in owed or active.get(key, key not in begun)
        line[key] = int(is_to_be_read) + max((line.get(parent, 0) for parent in parents[key]), default=0)
    return max(line.values(), default=0)
