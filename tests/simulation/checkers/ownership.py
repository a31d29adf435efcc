"""Ownership: who takes and frees which lease by the rows alone, and whether the events about it are true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykcl.events import Event, LeaseTaken, RetriesExhausted
from pykcl.stores.expressions import Item
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation.delivery import END, Position, checkpoint_position
from pykcl.testing.simulation.guarantees import Guarantee, Violations
from pykcl.testing.simulation.service_faults import kind_of_write
from tests.simulation.checkers.rows import worker_on

_REPORTED_WITHIN = 3.0
_MOMENT = 0.05


@dataclass(slots=True)
class _Taking:
    """at: virtual seconds. stood_still: seconds without a change of the row. reason: of the event, once reported."""

    at: float
    counter: int
    from_owner: str | None
    stood_still: float
    reason: str = ""


class OwnershipChecker:
    """Checker of takes and releases.

    Seconds on the clock of the host: failover, without a change before a lease is taken from its owner; settling, from
    a steal to the start of the processor; left_alone, after a host has released a lease. on_clock(host, seconds)
    returns the min virtual seconds of these.

    row: returns the current lease row. worker_ids: by pykcl host. is_stopping: the host releases because it stops.
    is_excused: the host could not run since that time. on_taken, on_released: called with (host, lease). on_stolen:
    called with the lease, and True if its taker reports a steal. on_hidden: called for a taken lease whose previous
    change no scan could show.
    """

    def __init__(
        self,
        violations: Violations,
        *,
        now: Callable[[], float],
        row: Callable[[str], Item | None],
        worker_ids: dict[str, str],
        failover: float,
        settling: float,
        left_alone: float,
        on_clock: Callable[[str, float], float],
    ) -> None:
        self._violations, self._now, self._row, self._worker_ids = violations, now, row, worker_ids
        self._failover, self._settling, self._left_alone_for = failover, settling, left_alone
        self._on_clock = on_clock
        self._changed_at: dict[str, float] = {}
        self._taker: dict[str, str] = {}
        self._creator: dict[str, str] = {}
        self._last_write: dict[str, tuple[str, int]] = {}
        # The worker identifier that somebody else has written into the row, and the counter of that write.
        self._given: dict[str, tuple[str | None, int]] = {}
        self._takings: dict[tuple[str, str], _Taking] = {}
        self._unreported: dict[tuple[str, str], float] = {}
        self._without_reader: set[tuple[str, str]] = set()
        self._left_alone: dict[tuple[str, str], float] = {}
        self._handed_back: set[tuple[str, str]] = set()
        self._stood: dict[str, dict[object, float]] = {}
        self._by_hand: dict[str, dict[object, float]] = {}
        self.taken = 0
        self.on_taken: Callable[[str, str], None] = lambda host, key: None
        self.on_stolen: Callable[[str, bool], None] = lambda key, stolen: None
        self.on_released: Callable[[str, str], None] = lambda host, key: None
        self.on_hidden: Callable[[str], None] = lambda key: None
        self.is_stopping: Callable[[str], bool] = lambda host: False
        self.is_excused: Callable[[str, float], bool] = lambda host, since: False

    def is_made_by_pykcl(self, key: str) -> bool:
        """Return True if a pykcl worker created the row, at its last creation."""
        return self._creator.get(key) in self._worker_ids

    def owns(self, host: str, key: str) -> bool:
        """Return True if this host was the last to take the lease, and the row still names it as the owner."""
        row = self._row(key) if self._taker.get(key) == host else None
        return row is not None and row.get("leaseOwner", {}).get("S") == self._worker_ids.get(host)

    def last_author(self, key: str) -> str | None:
        """Return the worker identifier of the host that was the last to write to the row; None: a peer, or nobody."""
        host, _ = self._last_write.get(key, ("", 0))
        return self._worker_ids.get(host)

    def durable(self, host: str, key: str) -> Position | None:
        """Return the checkpoint in the row of a lease that this host owns."""
        row = self._row(key) if self.owns(host, key) else None
        return None if row is None or "pendingCheckpoint" in row else checkpoint_position(row)

    def row_changed(self, change: Change) -> None:
        key, host = change.key, change.author
        seen_since = self._seen_since(key, change)
        stood_still = self._now() - seen_since
        is_hidden = seen_since < self._changed_at.get(key, float("-inf"))
        if _is_sign_of_life(change):
            self._changed_at[key] = self._now()
        if change.before is None:
            self._creator[key] = host
        if change.before is None or change.after is None:
            return
        self._last_write[key] = (host, int(change.after.get("leaseCounter", {}).get("N", -1)))
        kind = kind_of_write(change.operation, change.params)
        if host not in self._worker_ids or kind == "assign":
            if change.before.get("leaseOwner") != change.after.get("leaseOwner"):
                self._taker.pop(key, None)
                owner = change.after.get("leaseOwner", {}).get("S")
                self._given[key] = owner, self._last_write[key][1]
            return
        if kind == "take":
            self._was_taken(host, change, stood_still)
            if is_hidden:
                # To its taker the owner seemed silent, but the owner may still hold the lease in its own view.
                self.on_hidden(key)
        elif kind == "adopt":
            self._was_adopted(host, change, stood_still)
        elif kind == "hand_over":
            self._taker.pop(key, None)
        elif kind == "release":
            self._was_released(host, key)

    def _seen_since(self, key: str, change: Change) -> float:
        """Return the time since which the row seems unchanged to a worker that only scans from time to time.

        1) w1 takes a lease, and the row says (w1, 1), later perhaps (w1, 2); 2) another library takes it by hand and
        puts the counter back to 0; 3) w1 takes it again: (w1, 1). A scan before 2 and one after 3 cannot show that it
        ever moved.
        """
        before, after = _standing(change.before), _standing(change.after)
        stood = self._stood.setdefault(key, {})
        last = next(reversed(stood), before)
        if last != before:
            # Whatever it was until then it may be again.
            self._by_hand[key] = {**stood, **self._by_hand.get(key, {})}
            stood.clear()
        if after != last or not stood:
            stood.pop(after, None)
            stood[after] = self._now()
        return min(
            self._changed_at.get(key, float("-inf")), self._by_hand.get(key, {}).get(before, float("inf"))
        )

    def _was_taken(self, host: str, change: Change, stood_still: float) -> None:
        key = change.key
        waited = self._now() >= self._left_alone.get((host, key), 0.0)
        self._expect(waited, Guarantee.BUDGETS, f"{host} gave {key} up, and takes it again")
        self._now_has(host, change, stood_still)

    def _was_adopted(self, host: str, change: Change, stood_still: float) -> None:
        """Note the first heartbeat for a lease that a leader has assigned; an ended one is kept without a reader."""
        if checkpoint_position(change.after or {}) == END:
            self._without_reader.add((host, change.key))
        else:
            self._now_has(host, change, stood_still)

    def _now_has(self, host: str, change: Change, stood_still: float) -> None:
        key, before = change.key, change.before or {}
        self._handed_back.discard((host, key))
        self._without_reader.discard((host, key))
        counter = int((change.after or {})["leaseCounter"]["N"])
        # Whoever works on it while it is handed over: 1) the host adopts a lease, and no answer comes; 2) the leader asks
        # for it; 3) the next attempt goes on with that row.
        owner = worker_on(before) if "leaseOwner" in before else None
        self._takings[host, key] = _Taking(self._now(), counter, owner, stood_still)
        self._taker[key] = host
        self.taken += 1
        self.on_taken(host, key)

    def _was_released(self, host: str, key: str) -> None:
        self._taker.pop(key, None)
        self.on_released(host, key)
        if not self.is_stopping(host) and (host, key) not in self._handed_back:
            # Who does not stop lets go only of what it cannot work on. Where it has reported, the time has started: its
            # request may reach the table long after it gave up waiting for the answer.
            self._leave_alone(host, key, self._left_alone_for)

    def _leave_alone(self, host: str, key: str, seconds: float) -> None:
        # The worker counts from its next scan of the table on, which comes later.
        self._left_alone[host, key] = self._now() + self._on_clock(host, seconds)

    def answered(self, host: str, key: str) -> None:
        """The host got the answer that it has the lease, so it has to report that it took it, unless it had ended.

        The row as its write left it decides: 1) w1 adopts an ended lease; 2) the leader deletes the row, as its children
        have started; 3) the answer comes, and there is no row that says that the lease had ended.
        """
        if (host, key) not in self._without_reader:
            self._unreported[host, key] = self._now()

    def heard(self, host: str, event: Event) -> None:
        if isinstance(event, RetriesExhausted):
            self._leave_alone(host, event.shard, event.left_alone_for)
            self._handed_back.add((host, event.shard))
        if isinstance(event, LeaseTaken):
            self._unreported.pop((host, event.shard), None)
            self._event_about(host, event)

    def _event_about(self, host: str, event: LeaseTaken) -> None:
        key = event.shard
        taking = self._takings.get((host, key))
        what = f"{host} reports that it took {key} ({event.reason} from {event.from_owner}, {event.counter})"
        again = taking is not None and taking.reason and taking.counter == event.counter
        if taking is not None and again and self.is_excused(host, taking.at):
            # Its reader died, and the next take, planned from an older scan, found the row as it would write it.
            return
        if taking is None or taking.counter != event.counter or taking.reason:
            is_reported = taking is not None and taking.counter == event.counter
            adopted = not is_reported and self._has_written(host, key, event.counter)
            self._expect(adopted, Guarantee.NO_FALSE_ALARM, f"{what}, but no row shows it")
            self._taker[key] = host
            return
        taking.reason = event.reason
        is_free = taking.from_owner is None
        fits = taking.from_owner == event.from_owner and is_free == (event.reason in ("unowned", "child"))
        # A leader has given it to this worker between its scan and its write, which finds the row as it would make it.
        is_given = taking.from_owner == self._worker_ids[host] and event.from_owner is None
        fits = fits or is_given
        self._expect(fits, Guarantee.NO_FALSE_ALARM, f"{what}, but the row shows: from {taking.from_owner}")
        # Two processes with one worker identifier mistake each other's writes for their own.
        others = taking.from_owner != self._worker_ids[host]
        waited = taking.stood_still >= self._on_clock(host, self._failover) - _MOMENT
        self._expect(
            waited or not others or event.reason != "expired",
            Guarantee.ONE_OWNER,
            f"{what} after {taking.stood_still:.2f} s",
        )
        self.on_stolen(key, event.reason == "rebalance")

    def _has_written(self, host: str, key: str, counter: int) -> bool:
        """Return True if the row names this host, by a write of this host, or as a leader has given it the lease.

        For example, an earlier heartbeat arrived late and found the lease unchanged. Then the take is refused, and
        finds the row already as it would write it. Seed 4865627194: a leader that was away has assigned it meanwhile.
        """
        row, worker_id = self._row(key) or {}, self._worker_ids[host]
        is_owner = row.get("leaseOwner", {}).get("S") == worker_id
        is_given = self._given.get(key) == (worker_id, counter)
        return is_owner and (is_given or self._last_write.get(key) == (host, counter))

    def starts(self, host: str, key: str, position: Position) -> None:
        """Check that a processor of this host started at the checkpoint of the row, and not too soon."""
        durable = self.durable(host, key)
        what = f"{host} starts {key} at {position}"
        self._expect(durable in (None, position), Guarantee.NO_GAP, f"{what}, its row is at {durable}")
        taking = self._takings.get((host, key))
        if taking is not None and taking.reason == "rebalance":
            waited = self._now() - taking.at
            settled = waited >= self._on_clock(host, self._settling) - _MOMENT
            self._expect(settled, Guarantee.ONE_OWNER, f"{what}, {waited:.2f} s after it stole it")

    def forget(self, host: str) -> None:
        """Expect no more reports of a dead host."""
        self._unreported = {mark: at for mark, at in self._unreported.items() if mark[0] != host}

    def poll(self) -> None:
        """Check that hosts have reported every lease that they took."""
        if not self._unreported:
            return
        for (host, key), at in list(self._unreported.items()):
            if self.is_excused(host, at):
                del self._unreported[host, key]
                continue
            reported = self._now() - at < _REPORTED_WITHIN
            self._expect(reported, Guarantee.NO_FALSE_ALARM, f"{host} took {key}, and does not report it")

    def _expect(self, holds: bool, guarantee: Guarantee, what: str) -> None:
        self._violations.expect(holds, guarantee, what)


def _standing(row: Item | None) -> object:
    """Return the attributes that show other workers the activity on the lease."""
    names = ("leaseOwner", "leaseCounter", "checkpoint", "checkpointSubSequenceNumber")
    return None if row is None else tuple(str(row.get(name)) for name in names)


def _is_sign_of_life(change: Change) -> bool:
    """Return True if the change shows other workers that the owner is alive.

    A Java worker notes the children of a shard, and the range of its hash keys, without moving the counter.
    """
    before, after = change.before or {}, change.after or {}
    return any(before.get(name) != after.get(name) for name in ("leaseCounter", "leaseOwner"))
