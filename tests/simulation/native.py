"""Simulations of a fleet in KCL 3.x's own mode: scripted Java workers and pykcl workers, any of which may lead.

What else happens in it (F22): leaders that die, stop or stand still, an index of owners that lags, rows of others, and a
migration in mid-run. Its rest is in `native_rest`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pykcl.errors import PyKclError, StopTimedOut
from pykcl.events import Event
from pykcl.local.request_log import ROW_WRITES
from pykcl.model.checkpoint import Checkpoint
from pykcl.stores.expressions import Item
from pykcl.stores.requests import Params
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Change, Fault, failing, throttled, timed_out
from pykcl.testing.simulation.delivery import END, checkpoint_position
from pykcl.testing.simulation.service_faults import StaleScan, kind_of_write
from pykcl.testing.simulation.world import FAILOVER, Host, WorkerHost, World
from pykcl.worker.worker import Worker
from tests.java_compat.scenarios.java_3x import (
    FLIPPED,
    MIGRATION,
    NATIVE,
    OWNER_INDEX,
    UPGRADING,
    Assignment,
    active_workers,
    begin_hand_off,
    migration_row,
    sent,
)
from tests.java_peer.lease import RowUnreadable, read_row
from tests.java_peer.native_peer import NativePeer
from tests.java_peer.options import JavaOptions
from tests.simulation.chaos import FleetChaos
from tests.simulation.checkers.events import EventChecker
from tests.simulation.checkers.followers import (
    METRICS,
    FollowerChecker,
    FollowerRowChecker,
    LockHistory,
    follower_rules,
)
from tests.simulation.checkers.leaders import LOCK, LeaderChecker
from tests.simulation.checkers.observer import Observer
from tests.simulation.clients import InstrumentedClient
from tests.simulation.faults import Leaders, NativeFaults
from tests.simulation.lease_table_actions import FLEET_ROWS, Foreigners
from tests.simulation.world import CheckedFleet, CheckedWorld, JavaHost

NATIVE_STATES = (NATIVE, FLIPPED)
ROUND = 2 * FAILOVER
MOST_JAVA = 3
_VISIT_SECONDS = 40.0
_FIVE_MINUTES_MILLIS = 300_000
_LOCK_SECONDS = 30.0


class NativeEvents(EventChecker):
    is_native = True


class NativeObserver(Observer):
    """Observer of followers. follower: hears of their events and queries."""

    event_checker = NativeEvents
    rules = staticmethod(follower_rules)
    follower: FollowerChecker

    def asked_dynamodb(self, host: str, kind: str, key: str, code: str, *, failed: bool) -> None:
        # A row of that name that is no report: to be refused is no success.
        failed = failed or (kind == "report" and bool(code))
        super().asked_dynamodb(host, kind, key, code, failed=failed)
        if kind == "Query" and not failed:
            self.follower.query_answered(host)

    def heard(self, host: str, event: Event) -> None:
        # First: others ask whether it follows.
        self.follower.heard(host, event)
        super().heard(host, event)

    def poll(self) -> None:
        super().poll()
        self.follower.poll()


class NativeClient(InstrumentedClient):
    """The client of one host, which may be shown an index of owners that lags."""

    world: NativeWorld

    def __getattr__(self, name: str) -> Any:
        if name == "query":
            return self._query
        return super().__getattr__(name)

    def _query(self, **params: Any) -> Any:
        answer = super().__getattr__("query")(**params)
        return self.world.lagging(self._host, params, answer)


class NativeWorld(CheckedWorld):
    """CheckedWorld over the table of a KCL 3.x application, with its index and its rows.

    until: the ends of what is wrong for a while, in virtual seconds, by kind of fault. may_change: whether the state of
    the migration changes in mid-run. expired: number of leases that leaders took for abandoned. visits: of workers that
    were called as a lease. java_is_replaced: workers that start now may lead, as there may be no Java worker any more.
    """

    row_checker = FollowerRowChecker
    observers = NativeObserver
    rows_checker: FollowerRowChecker
    observer: NativeObserver
    faults: NativeFaults

    def _create_checkers(self) -> None:
        self._rng = rng = random.Random(f"{self.simulation.seed}/native")
        self.may_change = self.faults.has("F22.flip") or self.faults.has("F22.rollback")
        self.options.update(draw_native_options(rng))
        self.until: dict[str, float] = {}
        self.expired = 0
        self.java_is_replaced = False
        self._owners_before: deque[tuple[float, str, str | None]] = deque(maxlen=2000)
        self._deleted: set[str] = set()
        self._versions = self.visits = 0
        super()._create_checkers()
        now = lambda: self.simulation.now  # noqa: E731 - as everywhere else
        self.lock_history = LockHistory(now)
        self.follower = FollowerChecker(
            self.violations,
            now=now,
            aws_seconds=lambda: self.kinesis_millis() / 1000,
            seen_seconds=self.seen_seconds,
            frozen=self.observer.frozen,
            worker_ids=self.rows_checker.worker_ids,
            options=self.options,
            failover=FAILOVER,
            lock=self.lock_history,
            on_clock=self.observer.on_clock,
            believes=self.beliefs.believes,
            is_changed_by_hand=self.dynamo_faults.is_changed_by_hand,
        )
        self.leader_checker = LeaderChecker(
            self.violations,
            now=now,
            aws_seconds=lambda: self.kinesis_millis() / 1000,
            clock=lambda host: self.simulation.clock(host).monotonic(self.simulation.now),
            on_clock=self.observer.on_clock,
            frozen=self.observer.frozen,
            worker_ids=self.rows_checker.worker_ids,
            failover=FAILOVER,
            is_changed_by_hand=self.dynamo_faults.is_changed_by_hand,
        )
        self.follower.on_outdated = lambda host, key: self.observer.budgets.spent(
            host, "outdated report", key
        )
        self.simulation.on_switch = self._switched
        self.rows_checker.follower = self.observer.follower = self.follower
        self.lock_history.was_held = self.leader_checker.was_held
        self.rows_checker.leader = self.leader_checker
        self.lock_history.note(None)
        self._create_table()

    def _switched(self) -> None:
        self.beliefs.poll()
        self.leader_checker.poll()

    def _create_table(self) -> None:
        keys = [("leaseOwner", "HASH"), ("leaseKey", "RANGE")]
        self._index: dict[str, Any] = {
            "IndexName": OWNER_INDEX,
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
        self.dynamodb.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
            BillingMode="PAY_PER_REQUEST",
            GlobalSecondaryIndexes=[self._index],
        )
        self.dynamodb.tables[TABLE].status = "ACTIVE"
        first = FLIPPED if self.faults.has("F22.rollback") else self._rng.choice([NATIVE, NATIVE, FLIPPED])
        self.set_version(UPGRADING if self.faults.has("F22.flip") else first)

    def options_of(self, name: str) -> dict[str, Any]:
        rng = random.Random(f"{self.simulation.seed}/native/{name}")
        mode = "auto" if self.may_change else rng.choice(["auto", "auto", "auto", "3x"])
        leader_rng = random.Random(f"{self.simulation.seed}/leader/{name}")
        may_lead = leader_rng.choice(["never", "fallback", "equal"])
        is_mixed = self.faults.leaders is Leaders.MIXED and not self.java_is_replaced
        return {**self.options, "fleet_mode": mode, "leader": may_lead if is_mixed else "equal"}

    @property
    def taken(self) -> int:
        """Number of leases that moved though nobody asked for them: a leader moves others for the balance."""
        return self.expired + self.leader_checker.expired + self.follower.taken

    def seen_seconds(self, host: str) -> float:
        """Return the clock of AWS as the answers to a host say it."""
        return (self.kinesis_millis() + self.outages.ahead_millis(host, self.simulation.now)) / 1000

    def epoch(self) -> int:
        """Return the seconds by the clock of AWS."""
        return self.kinesis_millis() // 1000

    # -- the state of the migration ----------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The client version by its row."""
        return str(self.dynamodb.tables[TABLE].rows[MIGRATION]["cv"]["S"])

    def set_version(self, version: str) -> None:
        """Write the client version, as the leader does, or KCL's tool."""
        self.dynamodb.put_raw(TABLE, migration_row(version, "tool", self.epoch() * 1000))
        self.simulation.trace.add(self.simulation.now, f"client version {version}")

    def change_version(self) -> None:
        """Go one step on: back to 2.x, from there on to the upgrade, and then to 3.x again."""
        table = self.dynamodb.tables[TABLE]
        if self.version == UPGRADING:
            self.set_version(FLIPPED)
        elif self.version == FLIPPED:
            for key in [key for key, row in table.rows.items() if "lut" in row]:
                del table.rows[key]
            table.indexes.clear()
            self.set_version("CLIENT_VERSION_2X")
        else:
            table.indexes[:] = [self._index]
            self.set_version(UPGRADING)

    # -- requests and rows -------------------------------------------------------------------------------------

    def is_due(self, fault: str) -> bool:
        """Return whether something is wrong that was arranged for a while."""
        return not self.faults.healed and self.until.get(fault, 0.0) > self.simulation.now

    def _request(self, operation: str, params: Params) -> Fault | None:
        fault = super()._request(operation, params)
        host = self.simulation.current_group
        if fault is not None or not host.startswith("w"):
            return fault
        kind = kind_of_write(operation, params) if operation in ROW_WRITES else ""
        about = params.get("Key", params.get("Item", {})).get("leaseKey")
        if about == {"S": LOCK} and self.is_due("F22.refused"):
            error = self.faults.rng("F22.refused").choice(
                [throttled(operation), failing(operation), timed_out()]
            )
            return Fault(before=error, on_effect=lambda: self.faults.note("F22.refused", host))
        if operation == "Query" and self.is_due("F22.query"):
            return Fault(before=throttled(operation), on_effect=lambda: self.faults.note("F22.query", host))
        if kind == "report" and self.is_due("F22.report"):
            error = self.faults.rng("F22.report").choice(
                [throttled(operation), failing(operation), timed_out()]
            )
            return Fault(before=error, on_effect=lambda: self.faults.note("F22.report", host))
        return None

    def lagging(self, host: str, params: Params, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a query as it would have been a moment ago, if it is to be late."""
        seconds = 0.0
        if self.is_due("F22.late"):
            seconds = self.faults.rng("F22.late").uniform(1.0, 60.0)
            self.faults.note("F22.late", host)
        elif self.faults.happens("F22.lag", host):
            seconds = self.faults.rng("F22.lag").uniform(0.1, 2.0)
        if not seconds:
            return answer
        wanted = params["ExpressionAttributeValues"][":owner"]["S"]
        owners = self.owners()
        for at, key, owner in reversed(self._owners_before):
            if at < self.simulation.now - seconds:
                break
            owners[key] = owner
        items = [
            {"leaseKey": {"S": key}, "leaseOwner": {"S": owner}}
            for key, owner in sorted(owners.items())
            if owner == wanted
        ]
        return {**answer, "Items": items, "Count": len(items), "ScannedCount": len(items)}

    def _row_changed(self, change: Change) -> None:
        if change.table != TABLE or change.key in self.record_log.parents:
            self._lease_changed(change)
            super()._row_changed(change)
            if change.author.startswith("w") and leaves_to_next_owner(change):
                # It has ended its work, also when the answer to that was lost.
                self.beliefs.wrote_owner(change.author, change.key, None)
            return
        World._row_changed(self, change)
        self.rows_checker.row_changed(change)
        if change.key == LOCK:
            self.lock_history.note(change.after)

    def replace_lock(self, row: Item | None) -> None:
        """Put a row in the place of the lock, as an operator would; None: delete it."""
        table = self.dynamodb.tables[TABLE]
        self.leader_checker.replaced_by_hand(table.rows.pop(LOCK, None))
        if row is not None:
            self.dynamodb.put_raw(TABLE, row)
        self.lock_history.note(row)

    def _lease_changed(self, change: Change) -> None:
        if change.table != TABLE:
            return
        if change.after is None:
            self._deleted.add(change.key)
        elif change.before is None and change.key in self._deleted:
            # 1) A request that creates the row reaches the table long after it was sent, when the lease has ended and its
            # row is deleted; 2) other late ones find the counters that they were sent for.
            self.dynamo_faults.changed_by_hand(change.key)
        before, after = ((row or {}).get("leaseOwner", {}).get("S") for row in (change.before, change.after))
        if before != after:
            self._owners_before.append((self.simulation.now, change.key, before))
        if self.follower.was_robbed(change):
            # By a leader that has waited in vain for its hand-off.
            self.beliefs.stolen(change.key)
            self.delivery.stolen.add(change.key)

    # -- hosts -------------------------------------------------------------------------------------------------

    def worker(
        self, name: str, *, worker_id: str | None = None, table: str = TABLE, stop: Callable[[], bool]
    ) -> Worker:
        worker = super().worker(name, worker_id=worker_id, table=table, stop=stop)
        self.leader_checker.watch(name, worker)
        return worker

    def _client(self, name: str, scan: StaleScan) -> NativeClient:
        client = NativeClient(self.dynamodb, self.simulation.switch, scan, name, self.observer)
        client.world = self
        return client

    def java(self, name: str, rng: random.Random) -> JavaHost:
        """A Java 3.x worker, started."""
        runtime = self.simulation.runtime(name)
        options = JavaOptions(
            version="3.5.1",
            failover=FAILOVER,
            startup_wait=rng.uniform(1, 5),
            parent_poll=2.0,
            cleanup_interval=rng.choice([60.0, 300.0]),
            two_phase=rng.random() < 0.3,
        )
        peer = NativePeer(
            name,
            runtime=runtime,
            client=self.dynamodb,
            table=TABLE,
            stream=self._java_stream(name, runtime),
            on_records=self._java_delivers,
            options=options,
        ).lead_with(
            client=self.dynamodb,
            table=TABLE,
            epoch=self.epoch,
            next_version=self._next_version,
            on_assigned=self._assigned,
        )
        self.leader_checker.watch_java(name, peer.lock)
        return JavaHost(peer, self.simulation)

    def _next_version(self) -> str:
        self._versions += 1
        return f"version-{self._versions}"

    def _assigned(self, leader: str, assignment: Assignment) -> None:
        seen = assignment.seen
        if assignment.how == "assign" and seen.owner is not None and not seen.is_ended:
            self.expired += 1
        self.simulation.trace.add(
            self.simulation.now, f"{leader}: {assignment.how} {seen.key} from {seen.owner} to {assignment.to}"
        )

    def _java_delivers(self, name: str, shard_id: str, records: Any) -> Checkpoint | None:
        self.delivery.reader[shard_id] = name
        return super()._java_delivers(name, shard_id, records)

    def visit(self, name: str, key: str) -> None:
        """Run a worker that is called as a lease, until it is refused."""
        worker = self.worker(name, worker_id=key, stop=lambda: False)
        until = self.simulation.now + _VISIT_SECONDS
        try:
            worker.start()
            while worker.failure is None and self.simulation.now < until:
                self.simulation.sleep(1.0)
        except PyKclError:
            pass
        with suppress(StopTimedOut):
            worker.stop()
        self.beliefs.forget(name)
        self.leader_checker.forget(name)

    def leader(self, hosts: Mapping[str, Host]) -> Host | None:
        """Return the worker that leads, if it is one of these."""
        leading = [name for name in self.leader_checker.leading() if name in hosts]
        return hosts[leading[-1]] if leading else None


def leaves_to_next_owner(change: Change) -> bool:
    """Return whether this write ends the work of an owner that was asked for its lease; the row names the next one."""
    asked_for = change.before is not None and "checkpointOwner" in change.before
    return asked_for and kind_of_write(change.operation, change.params) in ("hand_over", "shard_end")


def draw_native_options(rng: random.Random) -> dict[str, Any]:
    """Return the fields of Config that matter in this mode. Java reads from the start of the stream."""
    return {
        "initial_position": "TRIM_HORIZON",
        "graceful_handoff_timeout": rng.choice([2.0, 10.0, 30.0]),
        "worker_metrics_interval": 30.0,
    }


class NativeFleet(CheckedFleet):
    """CheckedFleet on the table of Java workers; some of these work on it, unless pykcl is to be alone."""

    most_java = MOST_JAVA
    _world: NativeWorld

    def __init__(self, world: NativeWorld, wanted: int) -> None:
        super().__init__(world, wanted)
        world.follower.is_stopping = self._is_stopping
        world.follower.cannot_hand_over = self._cannot_hand_over
        rng = random.Random(f"{world.simulation.seed}/founders")
        leaders = world.faults.leaders
        founders = rng.choice([1, 1, 2])
        if leaders is Leaders.PYKCL:
            self.most_java = founders = 0
        elif leaders is Leaders.FIGHT:
            founders, self.wanted = 2, max(self.wanted, 2)
        for _ in range(founders):
            self.start_java(rng)
        self.wanted += len(self.java_hosts())

    def start(self, worker_id: str | None = None) -> WorkerHost:
        host = super().start(worker_id)
        if self._world.faults.happens("F22.clock", host.name):
            offset = self._world.faults.rng("F22.clock").choice([-1, 1]) * _FIVE_MINUTES_MILLIS
            self._world.simulation.clock(host.name).wall_offset += offset
        return host

    def kill(self, name: str) -> None:
        super().kill(name)
        self._world.leader_checker.forget(name)

    def _ended(self, host: WorkerHost, seconds: float) -> None:
        self._lock_is_released(host, self._world.simulation.now - seconds - _LOCK_SECONDS)
        super()._ended(host, seconds)

    def _lock_is_released(self, host: WorkerHost, since: float) -> None:
        """Check that a worker that has stopped leads no more. One whose thread died could not see to that."""
        world = self._world
        if world.observer.struck.since(host.name, 0.0) or host.timed_out:
            world.leader_checker.forget(host.name)
            return
        row = world.dynamodb.tables[TABLE].rows.get(LOCK)
        free = not self._is_hindered(host.name, since)
        world.leader_checker.stopped(host.name, row, must_be_released=free)

    def _cannot_hand_over(self, host: str, since: float) -> bool:
        """Return whether a host is dead, or was kept from its work since then."""
        return host not in self.alive or self._is_hindered(host, since)

    def _is_hindered(self, host: str, since: float) -> bool:
        world = self._world
        if not world.faults.healed or world.healed_at > since:
            return True
        is_cut_off = world.faults.far_away == host or ("dynamodb", host) in world.outages.down
        seen = world.observer
        return is_cut_off or seen.frozen.seconds_since(host, since) > 0 or seen.struck.since(host, since)


class NativeForeigners(Foreigners):
    """Rows of others, but for those that the fleet itself has."""

    kinds = Foreigners.kinds - {*FLEET_ROWS} - {key for key in Foreigners.kinds if ":" in key}


_JUNK_LOCKS: tuple[dict[str, Any], ...] = (
    {"entityType": {"S": "LEADER"}},
    {"entityType": {"S": "LEADER"}, "ownerName": {"S": "x"}, "leaseDuration": {"N": "120000"}},
    {"entityType": {"S": "LEADER"}, "ownerName": {"N": "1"}, "recordVersionNumber": {"S": "junk"}},
    {"something": {"S": "else"}},
)
_NUMBER = {"N": "1"}
_JUNK_METRICS: tuple[dict[str, Any], ...] = (
    {"entityType": METRICS},
    {"entityType": METRICS, "lut": {"S": "soon"}, "sts": {"M": {}}, "opr": {"M": {}}},
    {"entityType": METRICS, "lut": {"N": "-5"}, "sts": {"M": {}}, "opr": {"M": {}}},
    {"entityType": METRICS, "lut": {"N": "9999999999"}, "sts": {"L": []}, "opr": {"S": "x"}},
    {"entityType": METRICS, "lut": _NUMBER, "sts": {"M": {"C": {"L": [{"S": "much"}]}}}, "opr": {"M": {}}},
    {"lut": _NUMBER},
)


class NativeChaos(FleetChaos):
    """FleetChaos with what happens to a fleet that has a leader."""

    foreign = NativeForeigners
    forbidden = (*FleetChaos.forbidden, "Query")
    _world: NativeWorld
    _fleet: NativeFleet

    def actions(self) -> dict[str, Callable[[random.Random], bool]]:
        return {
            **super().actions(),
            "F22.java": self._fleet.start_java,
            "F22.leader": self._kill_leader,
            "F22.stopped": self._stop_leader,
            "F22.paused": self._pause_leader,
            "F22.refused": lambda rng: self._for_a_while("F22.refused", rng.uniform(5, 120)),
            "F22.hand_off": self._hand_off,
            "F22.late": lambda rng: self._for_a_while("F22.late", rng.uniform(5, 90)),
            "F22.query": lambda rng: self._for_a_while("F22.query", rng.uniform(5, 120)),
            "F22.report": lambda rng: self._for_a_while("F22.report", rng.uniform(5, 120)),
            "F22.lock": self._break_lock,
            "F22.rows": self._put_metrics,
            "F22.identifier": self._start_lease_name,
            "F22.flip": self._flip,
            "F22.rollback": self._change_version,
        }

    def _leader(self) -> str | None:
        frozen = self._world.simulation.is_frozen
        leader = self._world.leader(
            {name: host for name, host in self._fleet.alive.items() if not frozen(name)}
        )
        return leader.name if leader is not None else None

    def _kill_leader(self, rng: random.Random) -> bool:
        name = self._leader()
        if name is None:
            return False
        self._fleet.kill(name)
        if rng.random() < 0.5:
            self._fleet.start_java(rng)
        return True

    def _pause_leader(self, rng: random.Random) -> bool:
        name = self._leader()
        if name is None:
            return False
        self._fleet.freeze(name, rng.choice([rng.uniform(5, 60), rng.uniform(60, 200)]))
        return True

    def _stop_leader(self, rng: random.Random) -> bool:
        del rng
        name = self._leader()
        if name is None:
            return False
        self._fleet.ask_to_stop(self._fleet.alive[name])
        return True

    def _hand_off(self, rng: random.Random) -> bool:
        world = self._world
        if world.version not in NATIVE_STATES or self._leader() is None:
            return False
        rows = world.rows()
        leases = [
            key
            for key, row in sorted(rows.items())
            if "leaseOwner" in row and "checkpointOwner" not in row and checkpoint_position(row) != END
        ]
        active = active_workers(world.dynamodb.tables[TABLE].rows.values(), world.epoch())
        if not leases or not active:
            return False
        try:
            seen = read_row(rows[rng.choice(leases)])
        except RowUnreadable:
            return False
        others = [worker for worker in active if worker != seen.owner]
        return bool(others) and sent(world.dynamodb, begin_hand_off(TABLE, seen, rng.choice(others)))

    def _for_a_while(self, fault: str, seconds: float) -> bool:
        self._world.until[fault] = self._world.simulation.now + seconds
        # Noted when it is felt.
        return False

    def _break_lock(self, rng: random.Random) -> bool:
        world = self._world
        junk = {"leaseKey": {"S": LOCK}, **rng.choice(_JUNK_LOCKS)}
        world.replace_lock(junk)
        seconds = rng.uniform(1, 90)
        world.simulation.spawn("operator", "operator", lambda: self._mend_lock(junk, seconds))
        return True

    def _mend_lock(self, junk: dict[str, Any], seconds: float) -> None:
        world = self._world
        until = world.simulation.now + seconds
        while world.simulation.now < until and not world.faults.healed:
            world.simulation.sleep(1.0)
        if world.dynamodb.tables[TABLE].rows.get(LOCK) == junk:
            world.replace_lock(None)

    def _put_metrics(self, rng: random.Random) -> bool:
        key = f"java-old-{rng.randint(1, 3)}"
        self._world.dynamodb.put_raw(TABLE, {"leaseKey": {"S": key}, **rng.choice(_JUNK_METRICS)})
        return True

    def _start_lease_name(self, rng: random.Random) -> bool:
        """Start a worker that is called as a lease: it must be refused by the first report, and harm no lease."""
        world = self._world
        keys = sorted(world.rows())
        if not keys or world.version not in NATIVE_STATES:
            return False
        world.visits += 1
        name, key = f"w0lease{world.visits}", rng.choice(keys)
        world.simulation.spawn(name, name, lambda: world.visit(name, key))
        return True

    def _flip(self, _: random.Random) -> bool:
        if self._world.version != UPGRADING:
            return False
        self._world.change_version()
        return True

    def _change_version(self, _: random.Random) -> bool:
        self._world.change_version()
        return True
