"""Lease validity: after every switch, which hosts hold a lease to be theirs, and for how long two of them do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from pykcl.testing.simulation.guarantees import Guarantee, Violations
from pykcl.worker.held_leases import HeldLease, HeldLeases

_Pair = tuple[HeldLease, HeldLease]
_VERSION = attrgetter("version")


class ValidityChecker:
    """ONE_OWNER. Two may believe for a moment after a steal, until the robbed one's next heartbeat is refused.

    So they may in a shard that Kinesis has dropped, which neither can read any more: 1) a worker deletes its row, though
    the owner lives, as Java does; 2) another one lists the shards as they were before, and creates the row again; 3) a
    third takes it before the owner's next heartbeat.

    is_gone: whether Kinesis has dropped a shard. is_frozen: whether a host stands still: it does nothing with what it
    believes. steal_overlap: seconds after a steal, whatever becomes of the lease meanwhile.
    drift_overlap: seconds two may overlap because their clocks run further apart than pykcl allows for; usually 0.
    """

    def __init__(
        self,
        violations: Violations,
        *,
        now: Callable[[], float],
        is_frozen: Callable[[str], bool],
        steal_overlap: Callable[[], float],
        drift_overlap: Callable[[str, str], float],
        is_gone: Callable[[str], bool],
    ) -> None:
        self._violations = violations
        self._now, self._is_frozen = now, is_frozen
        self._stolen_at: dict[str, float] = {}
        self._steal_overlap, self._drift_overlap = steal_overlap, drift_overlap
        self._is_gone = is_gone
        self._held: dict[str, HeldLeases] = {}
        self._version = -1
        self._pairs: list[tuple[str, str, str, HeldLease, HeldLease]] = []
        self._gave_up: set[tuple[str, str]] = set()
        self._started: dict[tuple[int, int], float] = {}
        self.worst = {"steal": 0.0, "expiry": 0.0}

    def watch(self, host: str, held: HeldLeases) -> None:
        self._held[host] = held
        self._version = -1

    def believes(self, host: str, key: str) -> bool:
        """Return whether this host holds the lease to be valid now."""
        held = self._held[host].snapshot().get(key) if host in self._held else None
        return held is not None and held.is_valid_unlocked()

    def doubts(self, host: str, key: str) -> bool:
        """Return whether the host neither believes in the lease now nor has lost it."""
        held = self._held[host].snapshot().get(key) if host in self._held else None
        return held is not None and held.is_in_doubt

    def forget(self, host: str) -> None:
        """Drop the leases that a killed host believed to hold."""
        self._held.pop(host, None)
        self._version = -1

    def stolen(self, key: str) -> None:
        """A lease was taken from an owner who may still be alive."""
        self._stolen_at[key] = self._now()

    def wrote_owner(self, host: str, key: str, owner: str | None) -> None:
        """Note the owner: a host that removed itself has ended its work, also when the answer to that was lost."""
        if owner is None:
            self._gave_up.add((host, key))
        else:
            self._gave_up.discard((host, key))

    def poll(self) -> None:
        """Called after every switch: cheap while no lease is in two hands."""
        version = sum(map(_VERSION, self._held.values()))
        if version != self._version:
            self._version = version
            self._pairs = _shared({host: held.snapshot() for host, held in self._held.items()})
            # An object that is gone leaves its number to another.
            shared = {(id(one), id(other)) for *_, one, other in self._pairs}
            self._started = {mark: started for mark, started in self._started.items() if mark in shared}
        for key, first, second, one, other in self._pairs:
            self._check(key, first, second, (one, other))

    def _check(self, key: str, first: str, second: str, pair: _Pair) -> None:
        mark = (id(pair[0]), id(pair[1]))
        both = pair[0].is_valid_unlocked() and pair[1].is_valid_unlocked()
        idle = {host for host in (first, second) if self._is_frozen(host) or (host, key) in self._gave_up}
        if not both or idle:
            self._started.pop(mark, None)
            return
        lasted = self._now() - self._started.setdefault(mark, self._now())
        since_steal = self._now() - self._stolen_at.get(key, float("-inf"))
        kind = "steal" if since_steal <= self._steal_overlap() or self._is_gone(key) else "expiry"
        self.worst[kind] = max(self.worst[kind], lasted)
        allowed = self._steal_overlap() if kind == "steal" else self._drift_overlap(first, second)
        what = f"{first} and {second} both believe in {key}, for {lasted:.2f} s after {kind}"
        self._violations.expect(
            lasted <= allowed and (kind == "steal" or allowed > 0), Guarantee.ONE_OWNER, what
        )


def _shared(held: Mapping[str, Mapping[str, HeldLease]]) -> list[tuple[str, str, str, HeldLease, HeldLease]]:
    """Every lease in two hands: (key, host, host, lease, lease)."""
    hosts = sorted(host for host in held if held[host])
    return [
        (key, first, second, held[first][key], held[second][key])
        for number, first in enumerate(hosts)
        for second in hosts[number + 1 :]
        for key in sorted(held[first].keys() & held[second].keys())
    ]
