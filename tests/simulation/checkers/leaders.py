"""Leaders: who believes that it leads a fleet of KCL 3.x, what it writes as the leader, and the row of its lock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from pykcl.stores.expressions import Item
from pykcl.stores.requests import Params, parse_write
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Guarantee, Violations
from pykcl.worker.leadership import Leadership
from pykcl.worker.worker import Worker

LOCK = "Leader"
ASSIGNED = frozenset({"leaseOwner", "checkpointOwner", "leaseCounter", "ownerSwitchesSinceCheckpoint"})
"""Attributes of a lease that a leader may change."""
_FORM = {
    "leaseKey": "S", "entityType": "S", "ownerName": "S", "leaseDuration": "S", "recordVersionNumber": "S",
}  # fmt: skip
_is_version = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z").match
DAY = 86400.0
_MOMENT = 0.1
_JAVA_BELIEVES = 120.0
_SOME_LOCK: Item = {
    "leaseKey": {"S": LOCK},
    "entityType": {"S": "LEADER"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "the version of another worker"},
}


class JavaLock(Protocol):
    """The lock as a Java worker holds it. held_for: seconds since before it put this version."""

    @property
    def version(self) -> str | None: ...

    @property
    def held_for(self) -> float: ...


class _PyKclHolder:
    """What a pykcl worker believes of the lock. seconds: by its own clock."""

    def __init__(self, worker: Worker, seconds: Callable[[], float]) -> None:
        self._worker, self._seconds = worker, seconds

    @property
    def leadership(self) -> Leadership | None:
        manager = self._worker._manager
        return None if manager is None else manager._leadership

    @property
    def version(self) -> str | None:
        held = self.leadership._held if self.leadership is not None else None
        return None if held is None else held.lock.version

    def believes(self, least: float) -> bool:
        del least
        held = self.leadership._held if self.leadership is not None else None
        return held is not None and held.is_believed(self._seconds())


class _JavaHolder:
    """What a Java worker believes of the lock: all of its duration long."""

    def __init__(self, lock: JavaLock) -> None:
        self._lock = lock

    @property
    def version(self) -> str | None:
        return self._lock.version

    def believes(self, least: float) -> bool:
        return self._lock.version is not None and self._lock.held_for < least


class LeaderChecker:
    """LEADS_ALONE.

    aws_seconds: the clock of AWS. clock: seconds by the clock of a host. on_clock(host, seconds): the virtual seconds
    while it counts so many. changed_by_hand: keys of leases whose counter somebody put back. terms: versions of the lock
    with which a term began, by pykcl workers. assigned: number of assignments of pykcl workers; expired: of those, the
    ones of leases whose worker was taken for dead; moved: of those, by lease, the ones from a worker that was to finish.
    """

    def __init__(
        self,
        violations: Violations,
        *,
        now: Callable[[], float],
        aws_seconds: Callable[[], float],
        clock: Callable[[str], float],
        on_clock: Callable[[str, float], float],
        frozen: Freezes,
        worker_ids: Mapping[str, str],
        failover: float,
        is_changed_by_hand: Callable[[str], bool],
    ) -> None:
        self._violations, self._now, self._aws_seconds = violations, now, aws_seconds
        self._clock, self._on_clock, self._frozen = clock, on_clock, frozen
        self._worker_ids, self._failover = worker_ids, failover
        self._is_changed_by_hand = is_changed_by_hand
        self._holders: dict[str, _PyKclHolder | _JavaHolder] = {}
        self._versions: dict[str, str | None] = {}
        # (host, version) of each lock that a host has put or held, and of each that it has tried to release.
        self._own: set[tuple[str, str]] = set()
        self._releases: set[tuple[str, str]] = set()
        self._destroyed: set[str] = set()
        self._held: set[str] = set()
        self._lock_since = now()
        self._counted_at: dict[str, float] = {}
        self.terms = self.assigned = self.expired = 0
        self.moved: Counter[str] = Counter()

    def _expect(self, holds: bool, what: str, guarantee: Guarantee = Guarantee.LEADS_ALONE) -> None:
        self._violations.expect(holds, guarantee, what)

    # -- beliefs -----------------------------------------------------------------------------------------------

    def watch(self, host: str, worker: Worker) -> None:
        self._holders[host] = _PyKclHolder(worker, lambda: self._clock(host))

    def watch_java(self, host: str, lock: JavaLock) -> None:
        self._holders[host] = _JavaHolder(lock)

    def forget(self, host: str) -> None:
        """Drop what a killed host believed."""
        self._holders.pop(host, None)
        self._versions.pop(host, None)

    def believes(self, host: str) -> bool:
        """Return whether this host believes now that it leads."""
        holder = self._holders.get(host)
        return holder is not None and holder.believes(_JAVA_BELIEVES)

    def was_held(self, version: str) -> bool:
        """Return whether a host has ever held the lock under this version, as far as it knew."""
        return version in self._held

    def leading(self) -> list[str]:
        """Return the hosts that believe that they lead, in the order in which they were started."""
        return [host for host in self._holders if self.believes(host)]

    def poll(self) -> None:
        """Called after every switch: a belief begins with another version."""
        for host, holder in self._holders.items():
            version = holder.version
            if version != self._versions.get(host):
                self._versions[host] = version
                if version is not None:
                    self._held.add(version)
                    self._own.add((host, version))
                    self._begins(host)

    def _begins(self, host: str) -> None:
        if not self.believes(host) or self._versions[host] in self._destroyed:
            return
        for other, holder in self._holders.items():
            if other == host or holder.version in self._destroyed:
                continue
            # Java counts on its lock to the last second, and the clock of who waits may run fast.
            least = min(_JAVA_BELIEVES, self._on_clock(host, _JAVA_BELIEVES)) - _MOMENT
            self._expect(not holder.believes(least), f"{host} and {other} both believe that they lead")

    # -- the lock ----------------------------------------------------------------------------------------------

    def lock_sent(self, operation: str, params: Params, host: str) -> None:
        """Check that a write of the lock hits no version but the one that its writer has seen."""
        what = f"{host}: {operation} of the lock"
        self._expect(operation in ("PutItem", "UpdateItem"), what)
        mine = {**_SOME_LOCK, "ownerName": {"S": self._worker_ids.get(host, host)}}
        condition = parse_write(operation, params, "leaseKey").condition
        hits = condition(mine) or (operation == "UpdateItem" and condition({}))
        self._expect(
            not hits, f"{what} under a condition that any version of it fulfils", Guarantee.CONDITIONAL
        )
        values = params.get("ExpressionAttributeValues", {})
        if ":released" in values and ":seen" in values:
            self._releases.add((host, values[":seen"]["S"]))

    def lock_changed(self, change: Change) -> None:
        before, after, host = change.before, change.after or {}, change.author
        still = self._now() - self._lock_since
        self._lock_since = self._now()
        is_ours = host in self._worker_ids
        if is_ours:
            self._expect(
                before is None or _is_lock(before), f"{host} writes over {before}", Guarantee.FOREIGN_KEPT
            )
            is_own = after.get("ownerName") == {"S": self._worker_ids[host]}
            has_form = _is_lock(after) and bool(_is_version(after["recordVersionNumber"]["S"]))
            self._expect(is_own and has_form, f"{host} puts a lock of another form than Java's: {after}")
            # Its answer may be lost.
            self._own.add((host, str(after.get("recordVersionNumber", {}).get("S"))))
        if change.operation != "PutItem":
            return
        self.terms += is_ours
        if before is not None and _is_lock(before) and "isReleased" not in before:
            least = self._on_clock(host, int(before["leaseDuration"]["S"]) / 1000) - _MOMENT
            who = before["ownerName"]["S"]
            self._expect(
                still >= least, f"{host} takes the lock of {who} after {still:.1f} s of {least:.1f} s"
            )

    def replaced_by_hand(self, before: Item | None) -> None:
        """Note that somebody put something else in the place of the lock: its owner cannot know of it."""
        self._lock_since = self._now()
        if before is not None and "recordVersionNumber" in before:
            self._destroyed.add(str(before["recordVersionNumber"].get("S")))
            # Its owner may not have heard yet of the version that it wrote last. Seed 97411544242.
            self._destroyed.update(
                str(holder.version)
                for host, holder in self._holders.items()
                if before.get("ownerName") == {"S": self._worker_ids.get(host, host)}
            )

    def stopped(self, host: str, row: Item | None, *, must_be_released: bool) -> None:
        """Check that a worker that has stopped leaves no lock behind. must_be_released: nothing kept it from that."""
        holder = self._holders.get(host)
        held = holder.version if holder is not None else None
        self._expect(held is None, f"{host} has stopped, and holds the lock")
        self.forget(host)
        if row is None or not _is_lock(row) or "isReleased" in row:
            return
        # Another worker may have failed to release the lock that is there: 1) its release is lost; 2) it leaves the fleet;
        # 3) this one stops.
        lock = (host, row["recordVersionNumber"]["S"])
        fine = lock not in self._own or (lock in self._releases and not must_be_released)
        self._expect(fine, f"{host} has stopped, and the lock is not released")

    # -- what a leader writes ----------------------------------------------------------------------------------

    def assignment_sent(self, params: Params, host: str) -> None:
        """Check that only who believes in the lock assigns leases. Who was just frozen may have asked before."""
        key = params["Key"].get("leaseKey", {}).get("S")
        may = self.believes(host) or self._frozen.just_ended(host)
        self._expect(may, f"{host} assigns {key}, and does not believe that it leads")

    def lease_changed(self, change: Change, *, by_leader: bool) -> None:
        before, after = change.before, change.after
        if by_leader and before is not None and after is not None:
            self._was_assigned(change, before, after)
        if before is None or after is None or before.get("leaseCounter") != after.get("leaseCounter"):
            self._counted_at[change.key] = self._now()

    def _was_assigned(self, change: Change, before: Item, after: Item) -> None:
        host, key = change.author, change.key
        self.assigned += 1
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        self._expect(changed <= ASSIGNED, f"{host} assigns {key} and changes {sorted(changed)}")
        step = int(after["leaseCounter"]["N"]) - int(before["leaseCounter"]["N"])
        hands_over = "checkpointOwner" in after
        self.moved[key] += hands_over
        self._expect(
            step == (not hands_over), f"{host} assigns {key}: counter {step:+d}", Guarantee.COUNTER_BY_ONE
        )
        is_fenced = "leaseCounter = " in change.params.get("ConditionExpression", "")
        has_ended = after.get("checkpoint", {}).get("S") == "SHARD_END"
        # The other reasons to give it away at once: it has ended, or its worker was asked for it, and kept it.
        is_taken = is_fenced or not (has_ended or "checkpointOwner" in before)
        if hands_over or not is_taken or "leaseOwner" not in before:
            return
        self.expired += not has_ended
        what = f"{host} takes {key} for expired, whether it has moved since or not"
        self._expect(is_fenced, what)
        still = self._now() - self._counted_at.get(key, float("-inf"))
        is_dead = still >= self._on_clock(host, self._failover) - _MOMENT
        what = f"{host} takes {key} for expired, which moved {still:.1f} s ago"
        self._expect(is_dead or self._is_changed_by_hand(key), what)

    def metrics_deleted(self, host: str, before: Item | None) -> None:
        """Check that a leader deletes only reports that are a day old."""
        at = int((before or {}).get("lut", {}).get("N", "0"))
        age = self._aws_seconds() - at
        self._expect(age >= DAY - 1, f"{host} deletes metrics of another worker that are {age:.0f} s old")


def _is_lock(row: Item) -> bool:
    """Return whether a row has exactly the attributes of Java's lock."""
    form = {**_FORM, **({"isReleased": "S"} if "isReleased" in row else {})}
    return (
        row.keys() == form.keys()
        and all(row[name].keys() == {kind} for name, kind in form.items())
        and row["entityType"]["S"] == "LEADER"
        and row["leaseDuration"]["S"].isdigit()
        and row.get("isReleased", {"S": "1"}) == {"S": "1"}
    )
