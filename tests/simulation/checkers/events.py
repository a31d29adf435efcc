"""Events about the fleet: its workers and its kind are true when reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from pykcl.events import Event, FleetChanged, FleetJoined, FleetUpgradedToV3
from pykcl.planning.fleet_protocol import FleetKind
from pykcl.stores.expressions import Item
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Guarantee, Violations

_SCAN_SECONDS = 20.0
"""Within which a scan has read what it shows: its pages are tried again, and may be old."""
_NATIVE = (FleetKind.JAVA_3X_NATIVE.value,)


class EventChecker:
    """is_native: the fleet works by KCL 3.x's own protocol, now or at times; no other fleet of a simulation does.

    rows: the leases as they are. worker_ids: of each pykcl host there ever was. frozen: when hosts stood still:
    what one has read before, it reports afterwards.
    """

    is_native = False

    def __init__(
        self,
        violations: Violations,
        *,
        now: Callable[[], float],
        rows: Callable[[], Mapping[str, Item]],
        worker_ids: Mapping[str, str],
        frozen: Freezes,
    ) -> None:
        self._violations, self._now, self._rows, self._worker_ids = violations, now, rows, worker_ids
        self._frozen = frozen
        self._owners: dict[str, tuple[str | None, float]] = {}
        self._named: deque[tuple[float, str]] = deque(maxlen=2000)

    def row_changed(self, change: Change) -> None:
        now = self._now()
        for item in (change.before, change.after):
            self.names(item or {})
        owner, before = _lease_owner_of(change.after), _lease_owner_of(change.before)
        # What other hands have done to the row meanwhile shows in what it was before.
        if owner != before or owner != self._owners.get(change.key, (None, 0.0))[0]:
            self._owners[change.key] = (owner, now)

    def names(self, row: Item) -> None:
        """Whoever this row names, a scan of a moment later may still name."""
        self._named.extend((self._now(), name) for name in _owners_in(row))

    def heard(self, host: str, event: Event) -> None:
        if isinstance(event, FleetJoined):
            self._check_joined(host, event)
        elif isinstance(event, FleetChanged):
            self._expect(self.is_native or event.kind not in _NATIVE, f"{host}: {event}")
        elif isinstance(event, FleetUpgradedToV3):
            # Only a worker that is called as a lease follows no leader: its report would stand in that lease's place.
            has_name_of_lease = self._worker_ids[host].startswith("shardId-")
            self._expect(self.is_native and has_name_of_lease, f"{host}: {event}")

    def _check_joined(self, host: str, event: FleetJoined) -> None:
        mine = self._worker_ids[host]
        pykcl = set(self._worker_ids.values())
        since = self._frozen.awake_seconds_before(host, self._now(), _SCAN_SECONDS)
        lately = self._named_since(since) - {mine}
        surely = self._owners_since(since) - {mine}
        self._expect(
            self._fits(event, surely, lately, pykcl) and (self.is_native or event.kind not in _NATIVE),
            f"{host} joined {event}; for long there are {sorted(surely)}, of late {sorted(lately)}",
        )

    def _fits(self, event: FleetJoined, surely: set[str], lately: set[str], pykcl: set[str]) -> bool:
        if self.is_native:
            # A lease that was assigned to a pykcl worker, and that it has not adopted, does not show what it is.
            return len(surely) <= event.pykcl_workers + event.java_workers <= len(lately)
        return len(surely & pykcl) <= event.pykcl_workers <= len(lately & pykcl) and len(
            surely - pykcl
        ) <= event.java_workers <= len(lately - pykcl)

    def _named_since(self, since: float) -> set[str]:
        recent = {name for at, name in self._named if at >= since}
        return recent.union(*map(_owners_in, self._rows().values()))

    def _owners_since(self, since: float) -> set[str]:
        """Whoever has been the owner of one and the same row since then, as long as a scan may take."""
        found = set()
        for key, row in self._rows().items():
            owner, started = self._owners.get(key, (None, self._now()))
            if owner is not None and started < since and owner in _owners_in(row):
                found.add(owner)
        return found

    def _expect(self, holds: bool, what: str) -> None:
        self._violations.expect(holds, Guarantee.NO_FALSE_ALARM, what)


def _lease_owner_of(item: Item | None) -> str | None:
    return (item or {}).get("leaseOwner", {}).get("S")


def _owners_in(item: Item) -> set[str]:
    return {item[name]["S"] for name in ("leaseOwner", "checkpointOwner") if "S" in item.get(name, {})}
