"""Followers: a fleet that a leader of KCL 3.x runs. What its pykcl workers report, take, hand over and leave alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykcl.events import Event, FleetFollowed, FleetUnfollowed, LeaseStateChanged
from pykcl.local.request_log import ROW_WRITES
from pykcl.planning.lifecycle import State
from pykcl.stores.expressions import Item
from pykcl.stores.requests import Params, parse_write
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation.delivery import END, checkpoint_position
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Guarantee, Violations
from pykcl.testing.simulation.service_faults import kind_of_write
from tests.simulation.checkers.leaders import DAY, LOCK, LeaderChecker
from tests.simulation.checkers.request_budget import Rule, rules_for
from tests.simulation.checkers.rows import RowChecker, worker_on

METRICS = {"S": "WORKER_METRIC_STATS"}
_REPORTS = ("report", "withdraw")
_SOME_LEASE: Item = {
    "leaseKey": {"S": "shardId-000000000000"},
    "leaseCounter": {"N": "1"},
    "entityType": {"S": "LEASE"},
    "lut": {"N": "1"},
}
_UNDER_WAY = 15.0
"""Seconds for which a worker still does what it decided on before: a scan, and a write with its repetitions."""
_CLOCK_SLACK = 10.0
_NO_LOCK = 30.0
_SHORTEST_LOCK, _LONGEST_LOCK = 20.0, 120.0
_STILL_FACTOR = 3
_SLOWEST_CLOCK = 0.9


class FollowerRowChecker(RowChecker):
    """RowChecker that also knows the rows of metrics and of the lock. follower, leader: check their writes."""

    ours = RowChecker.ours | {"throughputKBps"}
    follower: FollowerChecker
    leader: LeaderChecker

    def request_sent(self, operation: str, params: Params, host: str) -> None:
        if self._is_peer(host):
            return
        kind = kind_of_write(operation, params)
        if operation in ("UpdateItem", "DeleteItem") and kind in _REPORTS:
            self.follower.metrics_sent(kind, params, host)
            return
        if operation in ROW_WRITES and kind == "lock":
            self.leader.lock_sent(operation, params, host)
            return
        super().request_sent(operation, params, host)
        if operation == "UpdateItem" and kind == "assign":
            self.leader.assignment_sent(params, host)
        if kind == "release" and operation == "UpdateItem":
            self.follower.release_sent(host, str(params["Key"]["leaseKey"]["S"]))

    def row_changed(self, change: Change) -> None:
        ours = not self._is_peer(change.author)
        kind = kind_of_write(change.operation, change.params)
        if change.key in self._record_log.parents:
            by_leader = ours and kind == "assign"
            if not by_leader:
                super().row_changed(change)
            self.leader.lease_changed(change, by_leader=by_leader)
            self.follower.row_changed(change)
            return
        if change.key == LOCK:
            self.leader.lock_changed(change)
            return
        if not ours:
            return
        who = f"{change.operation} of {change.key} by {change.author}"
        is_own = change.key == self.worker_ids.get(change.author)
        was_metrics = change.before is None or change.before.get("entityType") == METRICS
        self._expect(kind in _REPORTS and was_metrics, Guarantee.FOREIGN_KEPT, who)
        if change.after is not None:
            self._expect(is_own, Guarantee.FOREIGN_KEPT, who)
            self.follower.metrics_written(change.author)
            return
        self.follower.metrics_deleted(change.author, change.before)
        if not is_own:
            self.leader.metrics_deleted(change.author, change.before)


class LockHistory:
    """The lock of the leader as its row was: who held it under which version, and since when.

    was_held: whether anybody has ever believed in a version. Nobody leads by a take whose answer was lost: 1) it is
    applied; 2) something else is put in the place of the lock before its author reads it again.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.was_held: Callable[[str], bool] = lambda version: True
        self._states: list[tuple[float, tuple[str, str, float] | None]] = []

    def note(self, row: Item | None) -> None:
        """Note the row as it is from now on."""
        state = _holder_of(row)
        if not self._states or self._states[-1][1] != state:
            self._states.append((self._now(), state))

    def nobody_led(self, since: float) -> bool:
        """Return whether at some moment since then the lock had stood still for as long as a rescue needs."""
        states: list[tuple[float, tuple[str, str, float] | None]] = []
        for at, state in self._states:
            held = state if state is not None and self.was_held(state[1]) else None
            if not states or states[-1][1] != held:
                states.append((at, held))
        ends = [at for at, _ in states[1:]] + [self._now()]
        return any(
            end >= since and end - start >= _SLOWEST_CLOCK * (_NO_LOCK if state is None else state[2])
            for (start, state), end in zip(states, ends, strict=True)
        )


def _holder_of(row: Item | None) -> tuple[str, str, float] | None:
    """(owner, version, seconds after which it counts as silent); None: the lock is free, or the row is not one of it."""
    item = row or {}
    owner, version = (item.get(name, {}).get("S") for name in ("ownerName", "recordVersionNumber"))
    duration = item.get("leaseDuration", {}).get("S", "")
    is_lock = item.get("entityType") == {"S": "LEADER"} and duration.isdigit() and "isReleased" not in item
    if not (is_lock and owner and version):
        return None
    return str(owner), str(version), min(max(int(duration) / 1000, _SHORTEST_LOCK), _LONGEST_LOCK) / 2


class FollowerChecker:
    """FOLLOWS_LEADER.

    aws_seconds: the clock of AWS. seen_seconds: the same as the answers to a host say it. stood_still: seconds for
    which the row of a lease had not moved when a host took it last. is_stopping: whether a host was asked to stop.
    lock: the leader's lock. is_native: whether the fleet is in KCL 3.x's own mode by its row. believes: whether a host
    believes in a lease. is_changed_by_hand: whether the counter of a lease may have come back to what a host has seen.
    on_outdated(host, key): a host has deleted a report that was a day old.
    """

    def __init__(
        self,
        violations: Violations,
        *,
        now: Callable[[], float],
        aws_seconds: Callable[[], float],
        seen_seconds: Callable[[str], float],
        frozen: Freezes,
        worker_ids: Mapping[str, str],
        options: Mapping[str, Any],
        failover: float,
        lock: LockHistory,
        on_clock: Callable[[str, float], float],
        believes: Callable[[str, str], bool],
        is_changed_by_hand: Callable[[str], bool],
    ) -> None:
        self._is_changed_by_hand = is_changed_by_hand
        self._violations, self._now, self._aws_seconds = violations, now, aws_seconds
        self._seen_seconds = seen_seconds
        self._frozen, self._worker_ids, self._lock = frozen, worker_ids, lock
        self._failover, self._on_clock, self._believes = failover, on_clock, believes
        self._handoff_timeout = float(options["graceful_handoff_timeout"])
        self._since: dict[str, float] = {}
        self._queried: set[str] = set()
        self._reported: set[str] = set()
        self._withdrew: set[str] = set()
        self._handing_back: set[tuple[str, str]] = set()
        self._jumped_at: dict[str, float] = {}
        self._clock: dict[str, float] = {}
        self._first_clock = aws_seconds() - now()
        self._asked: dict[str, tuple[str, float]] = {}
        self._moved_at: dict[str, float] = {}
        self.is_stopping: Callable[[str], bool] = lambda host: False
        self.cannot_hand_over: Callable[[str, float], bool] = lambda host, since: True
        self.on_outdated: Callable[[str, str], None] = lambda host, key: None
        self.longest_hand_over = 0.0
        self.taken = 0

    def _expect(self, holds: bool, what: str, guarantee: Guarantee = Guarantee.FOLLOWS_LEADER) -> None:
        self._violations.expect(holds, guarantee, what)

    def follows(self, host: str, for_seconds: float = 0.0) -> bool:
        """Return whether the host has followed a leader for so long, not counting the time in which it stood still."""
        since = self._since.get(host)
        awake = self._frozen.awake_seconds_before(host, self._now(), for_seconds)
        return since is not None and since <= awake

    def heard(self, host: str, event: Event) -> None:
        if isinstance(event, FleetFollowed):
            self._since[host] = self._now()
        elif isinstance(event, FleetUnfollowed):
            self._since.pop(host, None)
        elif isinstance(event, LeaseStateChanged):
            if event.after == State.HANDING_BACK.value:
                self._handing_back.add((host, event.shard))
            else:
                self._handing_back.discard((host, event.shard))

    # -- metrics -----------------------------------------------------------------------------------------------

    def query_answered(self, host: str) -> None:
        self._queried.add(host)

    def metrics_sent(self, kind: str, params: Params, host: str) -> None:
        mine, key = self._worker_ids[host], params["Key"].get("leaseKey", {}).get("S")
        if kind == "withdraw" and key != mine:
            # By the leader, of a worker that has gone: see LeaderChecker.
            return
        self._expect(key == mine, f"{host} writes the metrics of {key}")
        operation = "UpdateItem" if kind == "report" else "DeleteItem"
        hits = parse_write(operation, params, "leaseKey").condition(_SOME_LEASE)
        self._expect(
            not hits, f"{host}: {kind} under a condition that a lease fulfils", Guarantee.CONDITIONAL
        )
        if kind == "withdraw":
            self._withdrew.add(host)
            return
        self._expect(host in self._queried, f"{host} reports metrics before it can find its leases")
        self._expect(host in self._since, f"{host} reports metrics to a fleet without a leader")
        self._withdrew.discard(host)
        off = int(params["ExpressionAttributeValues"][":at"]["N"]) - self._seen_seconds(host)
        is_late = self._frozen.seconds_since(host, self._now() - _UNDER_WAY) > 0 or self._clock_jumped(host)
        self._expect(abs(off) <= _CLOCK_SLACK or is_late, f"{host} reports a time that is {off:+.0f} s off")

    def metrics_written(self, host: str) -> None:
        self._reported.add(host)

    def metrics_deleted(self, host: str, before: Item | None) -> None:
        """Note a report that is a day old: the next one of that worker is another reason to delete its row."""
        row = before or {}
        if self._aws_seconds() - int(row.get("lut", {}).get("N", "0")) >= DAY:
            self.on_outdated(host, str(row.get("leaseKey", {}).get("S")))

    def _clock_jumped(self, host: str) -> bool:
        """Return whether the clock that a host sees jumped lately: a proxy came or went, or retention overtook the fleet."""
        offset = self._seen_seconds(host) - self._now()
        if abs(offset - self._clock.get(host, self._first_clock)) > 1.0:
            self._clock[host], self._jumped_at[host] = offset, self._now()
        return self._now() - self._jumped_at.get(host, float("-inf")) < _UNDER_WAY

    def release_sent(self, host: str, key: str) -> None:
        """Check that a worker that stops has withdrawn its metrics before it releases its first lease.

        One that it cannot read it may hand back in the same moment for that reason.
        """
        is_assigned_more = host in self._reported and host not in self._withdrew
        stops = self.is_stopping(host) and host in self._since and (host, key) not in self._handing_back
        self._expect(
            not (stops and is_assigned_more), f"{host} stops and releases, and its metrics are there"
        )

    # -- leases ------------------------------------------------------------------------------------------------

    def row_changed(self, change: Change) -> None:
        key, host = change.key, change.author
        before, after = change.before, change.after
        self._watch_hand_off(key, after)
        if host in self._worker_ids and before is not None and after is not None:
            kind = kind_of_write(change.operation, change.params)
            if kind == "take":
                self.taken += 1
                self._was_taken(host, key, before)
            if kind == "shard_end" and checkpoint_position(before) != END:
                keeps = "leaseOwner" in after or not self.follows(host, _UNDER_WAY)
                self._expect(keeps, f"{host} ends {key}, which nobody owns any more")
        if before is None or after is None or _standing(before) != _standing(after):
            self._moved_at[key] = self._now()

    def _was_taken(self, host: str, key: str, before: Item) -> None:
        if not self.follows(host, _UNDER_WAY):
            return
        still = self._now() - self._moved_at.get(key, float("-inf"))
        long_enough = self._on_clock(host, _STILL_FACTOR * self._failover) - 0.1
        is_dead = still >= long_enough or self._is_changed_by_hand(key)
        since = self._frozen.awake_seconds_before(host, self._now(), _UNDER_WAY)
        is_rescue = is_dead and self._lock.nobody_led(since)
        owner = before.get("leaseOwner", {}).get("S")
        what = f"{host} takes {key} from {owner}, still for {still:.1f} s, from a fleet with a leader"
        self._expect(is_rescue, what)

    def _watch_hand_off(self, key: str, after: Item | None) -> None:
        worker = (after or {}).get("checkpointOwner", {}).get("S")
        if worker is None:
            asked = self._asked.pop(key, None)
            if asked is not None and asked[0] in self._worker_ids.values():
                self.longest_hand_over = max(self.longest_hand_over, self._now() - asked[1])
        elif self._asked.get(key, ("", 0.0))[0] != worker and any(
            self._believes(host, key) for host in self._hosts_of(worker)
        ):
            # Who has not adopted it before the leader moves it on cannot know of it.
            self._asked[key] = (worker, self._now())

    def _hosts_of(self, worker: str) -> list[str]:
        return [host for host, worker_id in self._worker_ids.items() if worker_id == worker]

    def poll(self) -> None:
        """Check that leases which the leader has asked for are handed over within their deadline."""
        longest = (self._handoff_timeout + self._failover / 2) / _SLOWEST_CLOCK + _UNDER_WAY
        for key, (worker, since) in self._asked.items():
            hosts = self._hosts_of(worker)
            if not hosts or self._now() - since <= longest:
                continue
            if not any(self.cannot_hand_over(host, since) for host in hosts):
                self._expect(
                    False, f"{worker} was asked for {key} {self._now() - since:.0f} s ago, and has it still"
                )

    def was_robbed(self, change: Change) -> bool:
        """Return whether the leader has given a lease away whose worker may still believe in it."""
        before, after = change.before or {}, change.after or {}
        worker = worker_on(before)
        by_leader = (
            change.author not in self._worker_ids
            or kind_of_write(change.operation, change.params) == "assign"
        )
        is_given = worker is not None and worker_on(after) != worker and by_leader
        still = self._now() - self._moved_at.get(change.key, float("-inf"))
        return is_given and worker in self._worker_ids.values() and still < self._failover


def _standing(row: Item) -> tuple[str, str]:
    return str(row.get("leaseCounter")), str(row.get("leaseOwner"))


def follower_rules(options: Mapping[str, Any], failover: float) -> dict[str, Rule]:
    """Return the limits of requests as `rules_for` does, with those of a follower."""
    rules = rules_for(options, failover)
    read = rules["GetItem"]
    every = float(options["worker_metrics_interval"])
    return {
        **rules,
        "adopt": Rule(20, 15),
        "hand_over": Rule(60, 6, ("take", "adopt")),
        "release": Rule(60, 6, ("take", "adopt")),
        "shard_end": Rule(60, 6, ("take", "adopt"), tries=60),
        "report": Rule(60, 2 + 60 / (0.8 * every), tries=180),
        # A leader deletes those of workers that have gone, too, after each scan until one succeeds.
        # Where the clock of AWS jumps by a day, as it does here when retention overtakes a fleet, each jump is a reason.
        "withdraw": Rule(60, 3, ("outdated report",), tries=90),
        # Kept each quarter of its duration; taken again where the answer is lost.
        "lock": Rule(60, 25, tries=250),
        # What nobody reads, after each scan.
        "assign": Rule(60, 20, tries=120),
        # Every two seconds while anything changes; a leader, at once after it has assigned a lease to itself.
        "Query": Rule(20, 16, ("assign*",), tries=60),
        # Of each lease that the index shows and that is not in hand, at each query.
        "GetItem": Rule(read.window, read.most + 14, (*read.credits, "adopt"), tries=read.tries + 60),
        "open": Rule(20, rules["open"].most, (*rules["open"].credits, "adopt")),
    }
