"""Checkpoints that an operator moves under the owner of a lease: the owner overwrites them, or a next owner begins there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum, auto

from pykcl.events import Checkpointed, CheckpointOverwritten, Event, LeaseLost, LossReason
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.memory.expressions import Item
from pykcl.testing.simulation.delivery import (
    AT_LATEST,
    END,
    FIRST,
    Position,
    RecordLog,
    checkpoint_position,
    position_in,
)
from pykcl.testing.simulation.guarantees import Guarantee, Violations
from pykcl.testing.simulation.service_faults import kind_of_write
from tests.simulation.checkers.rows import worker_on

_BEGINS = ("take", "adopt")
"""Kinds of writes with which the work of another owner begins, or of the same one anew."""
_REPORTED_WITHIN = 3.0


@dataclass(frozen=True, slots=True)
class _Edit:
    """own: the row as its owner knows it. at: epoch milliseconds. step: by how much the counter was moved.

    is_undo: it puts back what the last write replaced, whose answer did not come. 1) A checkpoint is written, its answer
    is lost; 2) the one before is put back; 3) the owner tries again, and finds the row as an earlier heartbeat of its
    own would have left it.
    """

    own: Item
    edited: Item
    at: int
    step: int
    is_undo: bool


class _Meaning(Enum):
    """Meaning of a write of a row for the checkpoint that somebody has moved there."""

    LEFT = auto()  # nobody begins, and whoever works on the lease goes on
    SENT = auto()  # it was the very checkpoint of which its owner got no answer
    OBEYED = auto()  # an ownership begins there
    OVERWRITTEN = auto()


def _meaning(
    edit: _Edit,
    kind: str | None,
    before: Item,
    after: Item,
    *,
    of_owner: bool,
    of_beginner: bool,
    is_held: bool,
    had_it: bool,
) -> _Meaning:
    """Return the meaning of the next write of an edited row.

    of_owner: its author works on the lease, by the row. of_beginner: its author has taken the lease, and not started.
    is_held: its author believes in the lease. had_it: its author worked on the lease when it was edited.
    """
    # 1) A take lands; 2) the lease is ended by hand; 3) its taker finds that it took an ended one, and lets it go.
    lets_go = of_beginner and END == checkpoint_position(after) == checkpoint_position(before)
    begins = kind in _BEGINS or not of_owner or lets_go
    # In a fleet of KCL 3.x a worker that stops also releases what its name is on, and what it does not hold.
    is_not_held = edit.step > 0 or (kind == "release" and not is_held)
    is_left = not begins and is_not_held and _checkpoint_of(before) == _checkpoint_of(after)
    if kind == "renew" and is_left and edit.step == 1:
        # 1) The owner sends that very checkpoint, and no answer comes; 2) its heartbeat finds it, one counter further.
        # Seed 4865627116: the owner lets go of what was edited, a leader assigns it, and that worker begins by a heartbeat.
        return _Meaning.SENT if had_it else _Meaning.OBEYED
    if is_left or kind == "assign" or before.get("leaseCounter") == after.get("leaseCounter"):
        # A write with the same counter is about the shard, or the beginning of a hand-off.
        return _Meaning.LEFT
    return _Meaning.OBEYED if begins else _Meaning.OVERWRITTEN


class EditedCheckpoints:
    """Rows whose checkpoint somebody moved while their owner was at work.

    While that one works on it, its own checkpoint counts, and the first write for the row puts it back, with an event
    that says so. Where another ownership begins first, it begins at what the row says: the records that this skips
    are the operator's affair, and no others.

    kinesis_millis: Kinesis' clock. now: virtual seconds. worker_ids: of each pykcl host. is_excused: the host could not
    run since a time. is_cut_off: DynamoDB does not answer the host. believes: the host believes in a lease.
    """

    def __init__(
        self,
        record_log: RecordLog,
        violations: Violations,
        must_be_reported: dict[str, set[Position]],
        *,
        now: Callable[[], float],
        kinesis_millis: Callable[[], int],
        worker_ids: Mapping[str, str],
        is_excused: Callable[[str, float], bool],
        is_cut_off: Callable[[str], bool],
        believes: Callable[[str, str], bool],
    ) -> None:
        self._believes = believes
        self._record_log, self._violations = record_log, violations
        self._must_be_reported = must_be_reported
        self._now, self._kinesis_millis = now, kinesis_millis
        self._is_cut_off = is_cut_off
        self._worker_ids, self._is_excused = worker_ids, is_excused
        self._pending: dict[str, _Edit] = {}
        self._known: defaultdict[str, set[Position]] = defaultdict(set)
        self._begins_at: dict[str, Position] = {}
        # By key, the host whose write has begun an ownership, until that starts.
        self._beginning: dict[str, str] = {}
        # The checkpoint of each row before it was last written.
        self._replaced: dict[str, Position | None] = {}
        # The counter of each row in the last answer to a checkpoint of its owner.
        self._answered: dict[str, int] = {}
        self._unreported: dict[tuple[str, str], float] = {}
        self._reported: set[tuple[str, str, Position]] = set()

    @property
    def pending(self) -> Set[str]:
        """Keys of the rows to which nobody has written since they were edited."""
        return self._pending.keys()

    def edit(self, key: str, own: Item, edited: Item) -> None:
        """Note that the row of a lease has just been edited."""
        step = int(edited["leaseCounter"]["N"]) - int(own["leaseCounter"]["N"])
        was_answered = self._answered.get(key) == int(own["leaseCounter"]["N"])
        is_undo = checkpoint_position(edited) == self._replaced.get(key) and not was_answered
        self._pending[key] = _Edit(own, edited, self._kinesis_millis(), step, is_undo)
        self._known[key].add(checkpoint_position(edited))
        self._reported = {mark for mark in self._reported if mark[1] != key}

    def taken_back(self, key: str) -> Item:
        """Note that the operator takes back the edit; return the checkpoint to write."""
        return _checkpoint_of(self._pending.pop(key).own)

    def with_own_checkpoint(self, key: str, row: Item) -> Item:
        """Return the row with the checkpoint of its owner, where somebody has moved it."""
        edit = self._pending.get(key)
        is_edited = edit is not None and _checkpoint_of(row) == _checkpoint_of(edit.edited)
        return {**row, **_checkpoint_of(edit.own)} if edit is not None and is_edited else row

    def as_known(self, key: str, row: Item | None) -> Item | None:
        """Return the row as its owner knows it: with its own checkpoint, and with a position instead of LATEST."""
        row = None if row is None else self.with_own_checkpoint(key, row)
        if row is None or key not in self._begins_at or checkpoint_position(row) != AT_LATEST:
            return row
        number, sub = self._begins_at[key]
        return {**row, "checkpoint": {"S": str(number)}, "checkpointSubSequenceNumber": {"N": str(sub)}}

    def start_of(self, host: str, shard_id: str, position: Position) -> Position:
        """Return the position behind which an owner has to begin that was told to begin at `position`.

        1) A take is applied, and its answer lost; 2) the checkpoint is edited; 3) the taker reads the row to find out:
        it begins at what the row says.
        """
        edit = self._pending.get(shard_id)
        is_first = self._beginning.pop(shard_id, None) == host
        if is_first and edit is not None and position == checkpoint_position(edit.edited) != AT_LATEST:
            del self._pending[shard_id]
            self._is_obeyed(shard_id, edit, edit.edited)
        return self._begins_at.get(shard_id, position) if position == AT_LATEST else position

    def is_at_latest(self, shard_id: str, position: Position) -> bool:
        """Return whether LATEST stands for this position: whoever begins there knows a time, and no record."""
        return self._begins_at.get(shard_id) == position

    def row_changed(self, change: Change) -> Change:
        """Return the change as its author may know it: that of an owner begins at its own checkpoint."""
        key, author, before, after = change.key, change.author, change.before, change.after
        kind = kind_of_write(change.operation, change.params)
        if kind in _BEGINS:
            self._beginning[key] = author
        self._replaced[key] = None if before is None else checkpoint_position(before)
        edit = self._pending.get(key)
        if edit is None or before is None or _checkpoint_of(before) != _checkpoint_of(edit.edited):
            return self._by_position(change)
        if after is None:
            del self._pending[key]
            return change
        meaning = _meaning(
            edit,
            kind,
            before,
            after,
            of_owner=self._worker_ids.get(author) == worker_on(before),
            of_beginner=self._beginning.get(key) == author,
            is_held=self._believes(author, key),
            had_it=self._worker_ids.get(author) == worker_on(edit.own),
        )
        if meaning is _Meaning.SENT:
            self._is_its_own(key, edit)
            return self._by_position(change)
        if meaning is _Meaning.OVERWRITTEN:
            if not (edit.is_undo and _checkpoint_of(before) == _checkpoint_of(after)):
                change = replace(change, before=self.with_own_checkpoint(key, before))
            own = self._by_position(change)
            self._is_overwritten(change, edit, after)
            return own
        if meaning is _Meaning.OBEYED:
            del self._pending[key]
            self._is_obeyed(key, edit, after)
        # Whoever comes to begin where it is left notes the time of LATEST.
        return change

    def _by_position(self, change: Change) -> Change:
        """Return the change of a row that leaves LATEST with the position that this stands for."""
        after = change.after
        if change.key not in self._begins_at or (after and checkpoint_position(after) == AT_LATEST):
            return change
        known = self.as_known(change.key, change.before)
        del self._begins_at[change.key]
        return replace(change, before=known)

    def _is_overwritten(self, change: Change, edit: _Edit, after: Item) -> None:
        key, found = change.key, checkpoint_position(edit.edited)
        # A step of one may pass for a heartbeat of its own to which no answer came. And no shard ends because somebody
        # says so who does not read it.
        is_fenced = edit.step > 1 and found != END
        what = f"{change.operation} of {key} by {change.author}, though its counter was moved"
        self._violations.expect(not is_fenced, Guarantee.SILENT_AFTER_LOSS, what)
        # Whoever is dead, or has given the lease up, does not hear of a write that arrives late.
        # And a write that was sent over the edit may be reported before it arrives.
        is_reported = (change.author, key, found) in self._reported
        is_silent = is_reported or edit.is_undo or checkpoint_position(after) == found
        if not is_silent and self._believes(change.author, key):
            self._unreported[change.author, key] = self._now()
        del self._pending[key]

    def _is_obeyed(self, key: str, edit: _Edit, after: Item) -> None:
        """Excuse what the edit skips, now that an ownership begins there."""
        place = checkpoint_position(after)
        self._begins_at.pop(key, None)
        shard = self._record_log.shard(key)
        if place == AT_LATEST:
            note = after.get("pykcl", {}).get("M", {})
            since = int((note.get("latestReset") or note.get("latestFrom") or {"N": "0"})["N"])
            what = f"{key} was put to LATEST at {edit.at}, and begins at {since}"
            self._violations.expect(since >= edit.at // 1000 * 1000, Guarantee.NO_DUPLICATES, what)
            skipped = [position for position in shard.put if shard.arrived_at(position) < since]
            if skipped:
                place = self._begins_at[key] = skipped[-1]
        lost = self._must_be_reported.get(key, set())
        # Of what retention took before the oldest record nobody knows; what is skipped nobody wants.
        lost.difference_update({position for position in lost if place < FIRST or position <= place})
        shard.skip(place)

    def heard(self, host: str, event: Event) -> None:
        """NO_FALSE_ALARM. Nothing is reported as changed by others that nobody has changed."""
        if isinstance(event, CheckpointOverwritten):
            self._unreported.pop((host, event.shard), None)
            self._reported.add((host, event.shard, position_in(event.found)))
            fine = position_in(event.found) in self._known[event.shard]
            self._violations.expect(fine, Guarantee.NO_FALSE_ALARM, f"{host}: {event}")
        elif isinstance(event, Checkpointed):
            self._answered[event.shard] = event.counter
            edit = self._pending.get(event.shard)
            if edit is not None and position_in(event.checkpoint) == checkpoint_position(edit.edited):
                self._is_its_own(event.shard, edit)
        elif isinstance(event, LeaseLost):
            # 1) The answer to the write is lost; 2) somebody takes the lease: nobody knows that the write was applied.
            self._unreported.pop((host, event.shard), None)
            fine = event.reason is not LossReason.CHECKPOINT_CHANGED or event.shard in self._known
            self._violations.expect(fine, Guarantee.NO_FALSE_ALARM, f"{host}: {event}")

    def _is_its_own(self, key: str, edit: _Edit) -> None:
        """Drop an edit that is, by chance, the very write that its owner has sent or was about to send."""
        owed, at = self._record_log.shard(key).first_owed(), checkpoint_position(edit.edited)
        passed = owed is not None and owed <= at
        what = f"the owner of {key} goes on at {at}, and {owed} is owed"
        self._violations.expect(not passed, Guarantee.CHECKPOINT_AFTER_DELIVERY, what)
        del self._pending[key]

    def deleted(self, *keys: str) -> None:
        """Note that an operator has deleted these rows: whoever overwrote a checkpoint may hear of that alone.

        Seed 28183547194: 1) the write that overwrites is applied, its answer is lost; 2) the row is deleted; 3) the next
        attempt finds none.
        """
        self._unreported = {mark: at for mark, at in self._unreported.items() if mark[1] not in keys}

    def forget(self, host: str) -> None:
        """Expect no reports of a dead host."""
        self._unreported = {mark: at for mark, at in self._unreported.items() if mark[0] != host}

    def poll(self) -> None:
        """Check that hosts have reported every checkpoint that they overwrote."""
        for (host, key), at in list(self._unreported.items()):
            if self._is_excused(host, at):
                del self._unreported[host, key]
            elif self._is_cut_off(host):
                # Seed 10149174297: the answer is lost, and an outage begins. It is reported once the write is given up.
                self._unreported[host, key] = self._now()
            elif self._now() - at >= _REPORTED_WITHIN:
                what = f"{host} overwrote the checkpoint of others in {key}, and does not report it"
                self._violations.expect(False, Guarantee.NO_FALSE_ALARM, what)


def _checkpoint_of(row: Item) -> Item:
    return {name: row[name] for name in ("checkpoint", "checkpointSubSequenceNumber") if name in row}
