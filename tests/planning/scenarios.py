"""Runs decision scenarios: JSON that says what is given and what the planners must decide.

    python -m tests.planning.scenarios FILE...

A file is an array of objects of one or more of the kinds below, told apart by the key of their expectation.
`comment` says why the expectation is right; every other key may be absent. An unknown key fails the scenario.
Keys marked + are ours; the others are those of the public Rust library, whose files run unchanged.

`to_create`: the rows `create_new_leases` must plan, no more and no fewer, each compared on the keys it gives.
    strategy            "TRIM_HORIZON" (default), "LATEST" or {"AT_TIMESTAMP": epoch millis}
    shards              shard_id, parent_shard_id, adjacent_parent_shard_id,
                        hash_key_range {starting_hash_key, ending_hash_key},
                        + sequence_number_range {starting_sequence_number, ending_sequence_number}
    leases, to_create   lease_key, checkpoint {sequence_number, sub_sequence_number}, parent_shard_ids,
                        child_shard_ids, lease_owner, starting_hash_key, ending_hash_key, lease_counter,
                        owner_switches_since_checkpoint, checkpoint_owner, entity_type,
                        + latest_from (epoch millis); accepted and not used: pending_checkpoint,
                        pending_checkpoint_state, throughput_kbps
    + unreadable        keys of rows that cannot be understood
    + ordered           true: `to_create` is also the order of creation
    In this form a lease at AT_TIMESTAMP carries the epoch millis in its sub-sequence number. Real rows carry
    0 there and the time comes from the configuration; the translation is made here and nowhere else.

`expected`: how many leases `Fleet.choose` must choose, all in `available`, whatever the random seed.
    worker, leases, leases_to_acquire and max_leases (default: no limit), recently_ended_by_us
    heartbeats          lease key -> age in seconds; an owned lease without one counts as just seen
    available           default: every lease
    + max_steal (1), failover_time (10 seconds), in_hand, left_alone, unreadable, segment_keys,
      segment_grace (0 seconds)
    + reason            the reason every chosen lease must have been chosen for
    + fair_share        what `Fleet.share` must say about the same fleet

`to_delete` (+): the keys `plan_deletions` must plan.
    leases, shards, complete (default true), gone, unreadable
    to_ask              what `garbage_candidates` must name

`holes` (+): the hash keys [first, last] that the last of some audits must find in no lease.
    leases, shards, unreadable
    earlier             the `leases` of each audit before that one; default: none
    audits              how often the last one is repeated (1)
    confirmed, closed   the holes it must tell of, or tell the end of; default: none
    must_sync           whether the shards have to be listed at once; default: false
    fills               lease key -> [first, last] to be written into its row; default: none
    unplaced            keys of leases with a range nobody knows; default: none

`steps` (+): what a `WorkList` must do with a batch, in order: "call 0-4" for its records 0 to 3, "split", "retry",
"letter 2-3 RetryAttemptsExhausted 3" with the number of failed calls, "hand back".
    records             how many there are; max_attempts, bisect, retry_timeout (300), in_a_row (0: off)
    ends                what the calls do, in order: "returned", "error", "temporary", "failed at 3", "rejected 3",
                        "rejected" without a record, "checkpointed 3, error" after a checkpoint before record 3
    poison              indexes of records; a call that has one, and no entry in `ends`, ends with "error"
    seconds             how long a call takes (0); every pause is the longest possible
    max_record_age, arrived   seconds; when each record arrived, seconds before the first call
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pykcl.model.checkpoint import AT_TIMESTAMP, Checkpoint, StartPosition
from pykcl.model.dead_letter import Condition
from pykcl.model.lease import Lease, PykclMetadata, UnreadableRow
from pykcl.model.shard import HashRange, Shard, ShardListing
from pykcl.planning.attempts import Failure as Failed
from pykcl.planning.attempts import InARow, Part, Policy, Verdict, WorkList
from pykcl.planning.leader import Audit, Findings
from pykcl.planning.lease_assignment import Fleet
from pykcl.planning.lease_creation import create_new_leases
from pykcl.planning.lease_deletion import garbage_candidates, plan_deletions
from pykcl.planning.lease_view import LeaseView

_SHARD_KEYS = {
    *("shard_id", "parent_shard_id", "adjacent_parent_shard_id", "hash_key_range", "sequence_number_range"),
}
_UNUSED_LEASE_KEYS = {"pending_checkpoint", "pending_checkpoint_state", "throughput_kbps"}
_LEASE_KEYS = {
    *("lease_key", "checkpoint", "parent_shard_ids", "child_shard_ids", "lease_owner"),
    *("starting_hash_key", "ending_hash_key", "lease_counter", "owner_switches_since_checkpoint"),
    *("checkpoint_owner", "entity_type", "latest_from"),
    *_UNUSED_LEASE_KEYS,
}
_HASH_KEYS = {"starting_hash_key", "ending_hash_key"}
_SEQUENCE_KEYS = {"starting_sequence_number", "ending_sequence_number"}
_CHECKPOINT_KEYS = {"sequence_number", "sub_sequence_number"}


class ScenarioError(ValueError):
    """A file or scenario that is not in the form above. The text says what is wrong and in which scenario."""


def refuse_unknown(raw: Mapping[str, Any], known: Collection[str], what: str) -> None:
    unknown = sorted(raw.keys() - set(known))
    if unknown:
        raise ScenarioError(f"unknown key {', '.join(map(repr, unknown))} of a {what}")


def or_default(body: Mapping[str, Any], key: str, default: Any) -> Any:
    value = body.get(key)
    return default if value is None else value


def start_of(raw: Any) -> StartPosition:
    if raw in ("TRIM_HORIZON", "LATEST"):
        return StartPosition(raw)
    if isinstance(raw, dict) and raw.keys() == {AT_TIMESTAMP} and isinstance(raw[AT_TIMESTAMP], int):
        return StartPosition(AT_TIMESTAMP, at_millis=raw[AT_TIMESTAMP])  # type: ignore[arg-type]
    raise ScenarioError(
        f'strategy {raw!r} is none of "TRIM_HORIZON", "LATEST", {{"AT_TIMESTAMP": epoch millis}}'
    )


def shards_of(body: Mapping[str, Any]) -> tuple[Shard, ...]:
    return tuple(_shard(raw) for raw in body.get("shards") or ())


def _shard(raw: Mapping[str, Any]) -> Shard:
    refuse_unknown(raw, _SHARD_KEYS, "shard")
    hash_range = raw.get("hash_key_range") or {}
    refuse_unknown(hash_range, _HASH_KEYS, "hash key range")
    sequence_range = raw.get("sequence_number_range") or {}
    refuse_unknown(sequence_range, _SEQUENCE_KEYS, "sequence number range")
    parents = (raw.get("parent_shard_id"), raw.get("adjacent_parent_shard_id"))
    return Shard(
        raw["shard_id"],
        tuple(parent for parent in parents if parent),
        _hash_range(hash_range),
        sequence_range.get("starting_sequence_number"),
        sequence_range.get("ending_sequence_number"),
    )


def _hash_range(raw: Mapping[str, Any]) -> HashRange | None:
    start, end = raw.get("starting_hash_key"), raw.get("ending_hash_key")
    return None if start is None or end is None else HashRange.parse(start, end)


def leases_of(raw: Sequence[Mapping[str, Any]] | None) -> dict[str, Lease]:
    return {lease.key: lease for lease in map(_lease, raw or ())}


def _lease(raw: Mapping[str, Any]) -> Lease:
    refuse_unknown(raw, _LEASE_KEYS, "lease")
    latest_from = raw.get("latest_from")
    return Lease(
        key=raw["lease_key"],
        checkpoint=_checkpoint(raw["checkpoint"]),
        counter=raw.get("lease_counter") or 0,
        owner=raw.get("lease_owner"),
        owner_switches=raw.get("owner_switches_since_checkpoint") or 0,
        parents=tuple(raw.get("parent_shard_ids") or ()),
        children=tuple(raw.get("child_shard_ids") or ()),
        hash_range=_hash_range(raw),
        checkpoint_owner=raw.get("checkpoint_owner"),
        entity_type=raw.get("entity_type"),
        metadata=PykclMetadata(latest_from=latest_from) if latest_from is not None else None,
    )


def _checkpoint(raw: Mapping[str, Any]) -> Checkpoint:
    refuse_unknown(raw, _CHECKPOINT_KEYS, "checkpoint")
    sequence_number = raw["sequence_number"]
    sub = 0 if sequence_number == AT_TIMESTAMP else raw.get("sub_sequence_number") or 0
    return Checkpoint(sequence_number, sub)


def described(lease: Lease, start: StartPosition) -> dict[str, Any]:
    """A planned row in the form of `to_create`, every key given; the checkpoint as two keys of its own."""
    at_timestamp = lease.checkpoint.sequence_number == AT_TIMESTAMP
    return {
        "lease_key": lease.key,
        "sequence_number": lease.checkpoint.sequence_number,
        "sub_sequence_number": start.at_millis if at_timestamp else lease.checkpoint.sub_sequence_number,
        "parent_shard_ids": tuple(sorted(lease.parents)),
        "child_shard_ids": tuple(sorted(lease.children)),
        "lease_owner": lease.owner,
        "starting_hash_key": str(lease.hash_range.first) if lease.hash_range else None,
        "ending_hash_key": str(lease.hash_range.last) if lease.hash_range else None,
        "lease_counter": lease.counter,
        "owner_switches_since_checkpoint": lease.owner_switches,
        "checkpoint_owner": lease.checkpoint_owner,
        "entity_type": lease.entity_type,
        "latest_from": lease.metadata.latest_from if lease.metadata else None,
        "pending_checkpoint": None,
        "pending_checkpoint_state": None,
        "throughput_kbps": None,
    }


def normal(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An expected row, comparable with `_describe`: only the keys given."""
    refuse_unknown(raw, _LEASE_KEYS, "lease")
    row = {key: value for key, value in raw.items() if key != "checkpoint"}
    row["lease_key"] = raw["lease_key"]
    checkpoint = raw.get("checkpoint") or {}
    refuse_unknown(checkpoint, _CHECKPOINT_KEYS, "checkpoint")
    row.update(checkpoint)
    if row.get("sub_sequence_number", 0) is None:
        row["sub_sequence_number"] = 0
    for key in ("parent_shard_ids", "child_shard_ids"):
        if key in row:
            row[key] = tuple(sorted(row[key] or ()))
    return row


__all__ = ["Failure", "Scenario", "ScenarioError", "load", "main", "parse"]

SEEDS = range(20)
"""Random seeds every acquisition scenario is tried under."""

_CREATE_KEYS = {"comment", "strategy", "shards", "leases", "to_create", "unreadable", "ordered"}
_ACQUIRE_KEYS = {
    *(
        "comment",
        "leases_to_acquire",
        "max_leases",
        "worker",
        "leases",
        "heartbeats",
        "available",
        "expected",
    ),
    *("recently_ended_by_us", "max_steal", "failover_time", "in_hand", "left_alone", "unreadable"),
    *("reason", "fair_share", "segment_keys", "segment_grace"),
}
_AUDIT_KEYS = {
    *("comment", "leases", "shards", "unreadable", "earlier", "audits"),
    *("holes", "confirmed", "closed", "must_sync", "fills", "unplaced"),
}
_ATTEMPT_KEYS = {
    *(
        "comment",
        "records",
        "max_attempts",
        "bisect",
        "retry_timeout",
        "in_a_row",
        "ends",
        "poison",
        "seconds",
    ),
    *("max_record_age", "arrived", "steps"),
}
_CLEANUP_KEYS = {"comment", "leases", "shards", "complete", "gone", "unreadable", "to_delete", "to_ask"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One object of a scenario file, its keys checked."""

    comment: str
    body: Mapping[str, Any]
    check: Callable[[Mapping[str, Any]], Failure | None]

    def run(self) -> Failure | None:
        """None if the planners decide as expected. Raises ScenarioError for a value that makes no sense."""
        try:
            return self.check(self.body)
        except ScenarioError as error:
            raise ScenarioError(f"{error} in {self.comment!r}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ScenarioError(f"{type(error).__name__}: {error} in {self.comment!r}") from error


@dataclass(frozen=True, slots=True)
class Failure:
    """What was expected and what was decided, as text."""

    expected: str
    actual: str


def load(path: str | Path) -> list[Any]:
    """The raw scenarios of a file. Raises ScenarioError when it cannot be read or is no non-empty array."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, list) or not found:
        raise ScenarioError(f"{path} holds no scenarios: it must be a JSON array of objects")
    return found


def parse(raw: Any) -> Scenario:
    """One scenario. Raises ScenarioError for an unknown key, no comment, or not exactly one expectation."""
    if not isinstance(raw, dict):
        raise ScenarioError(f"a scenario must be an object, not {raw!r:.80}")
    comment = raw.get("comment")
    if not isinstance(comment, str) or not comment:
        raise ScenarioError(f"a scenario without a comment: {json.dumps(raw)[:200]}")
    kinds = [kind for kind in _KINDS if kind in raw]
    if len(kinds) != 1:
        raise ScenarioError(
            f"exactly one of {', '.join(_KINDS)} is needed, {kinds or 'none'} given in {comment!r}"
        )
    keys, check = _KINDS[kinds[0]]
    try:
        refuse_unknown(raw, keys, "scenario")
    except ScenarioError as error:
        raise ScenarioError(f"{error} in {comment!r}") from error
    return Scenario(comment, raw, check)


def main(arguments: Sequence[str]) -> int:
    """Run the files; print failures and the count. Returns 0, 1 when something failed, 2 without files."""
    if not arguments:
        print("usage: python -m tests.planning.scenarios FILE...", file=sys.stderr)
        return 2
    passed = failed = 0
    for path in arguments:
        try:
            scenarios = load(path)
        except ScenarioError as error:
            failed += 1
            print(f"ERROR {_plain(error)}")
            continue
        for raw in scenarios:
            report = _report(raw)
            passed += report is None
            failed += report is not None
            if report is not None:
                print(f"{path}: {report}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _report(raw: Any) -> str | None:
    try:
        scenario = parse(raw)
        failure = scenario.run()
    except ScenarioError as error:
        return f"ERROR {_plain(error)}"
    if failure is None:
        return None
    return f"FAILED {_plain(scenario.comment)}\n  expected: {failure.expected}\n  actual:   {failure.actual}"


def _plain(text: object) -> str:
    """One line that any terminal can print: a file may hold anything."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(text))


# --- the four kinds -----------------------------------------------------------------------------------------


def _check_create(body: Mapping[str, Any]) -> Failure | None:
    start = start_of(body.get("strategy") or "TRIM_HORIZON")
    plans = create_new_leases(
        start, shards_of(body), leases_of(body.get("leases")), frozenset(body.get("unreadable") or ())
    )
    expected = [normal(row) for row in body["to_create"]]
    actual = [described(plan.lease, start) for plan in plans]
    if not body.get("ordered"):
        expected.sort(key=_lease_key)
        actual.sort(key=_lease_key)
    same = len(expected) == len(actual) and all(
        wanted.items() <= found.items() for wanted, found in zip(expected, actual, strict=True)
    )
    return None if same else Failure(_text(expected), _text(actual))


def _check_acquire(body: Mapping[str, Any]) -> Failure | None:
    leases = leases_of(body.get("leases"))
    ages = body.get("heartbeats") or {}
    unreadable = {key: UnreadableRow(key, "scenario") for key in body.get("unreadable") or ()}
    view = LeaseView(leases, {key: -float(age) for key, age in ages.items()}, unreadable, observed_at=0.0)
    max_leases = or_default(body, "max_leases", sys.maxsize)
    fleet = Fleet.seen_by(
        or_default(body, "worker", "worker"),
        view,
        failover_time=or_default(body, "failover_time", 10),
        **{name: frozenset(body.get(name) or ()) for name in ("in_hand", "left_alone")},
    )
    if "fair_share" in body and (share := fleet.share(max_leases)) != body["fair_share"]:
        return Failure(f"fair share {body['fair_share']}", f"fair share {share}")
    allowed = set(or_default(body, "available", leases))
    reason = body.get("reason")
    wanted = f"{body['expected']} of {sorted(allowed)}" + (f" because {reason}" if reason else "")
    for seed in SEEDS:
        plans = fleet.choose(
            or_default(body, "leases_to_acquire", sys.maxsize),
            Random(seed),
            max_leases=max_leases,
            max_steal=or_default(body, "max_steal", 1),
            recently_ended_by_us=frozenset(body.get("recently_ended_by_us") or ()),
            segment_keys=frozenset(body.get("segment_keys") or ()),
            segment_grace=or_default(body, "segment_grace", 0.0),
        )
        chosen = {plan.lease_key for plan in plans}
        reasons = {plan.reason for plan in plans}
        if len(plans) != body["expected"] or not chosen <= allowed or (reason and reasons - {reason}):
            because = f" because {', '.join(sorted(reasons))}" if reasons else ""
            return Failure(wanted, f"{len(plans)}: {sorted(chosen)}{because} (seed {seed})")
    return None


def _check_cleanup(body: Mapping[str, Any]) -> Failure | None:
    leases = leases_of(body.get("leases"))
    listing = ShardListing(shards_of(body), or_default(body, "complete", True))
    deletions = plan_deletions(
        leases,
        listing=listing,
        gone=frozenset(body.get("gone") or ()),
        unreadable=frozenset(body.get("unreadable") or ()),
    )
    keys = [deletion.seen.key for deletion in deletions]
    if keys != sorted(body["to_delete"]):
        return Failure(f"delete {sorted(body['to_delete'])}", f"delete {keys}")
    candidates = garbage_candidates(leases, listing)
    if "to_ask" in body and candidates != sorted(body["to_ask"]):
        return Failure(f"ask about {sorted(body['to_ask'])}", f"ask about {candidates}")
    return None


def _check_audit(body: Mapping[str, Any]) -> Failure | None:
    shards = {shard.shard_id: shard for shard in shards_of(body)}
    unreadable = frozenset(body.get("unreadable") or ())
    repeated = or_default(body, "audits", 1)
    if not isinstance(repeated, int) or not 0 < repeated < 100:
        raise ScenarioError(f"{repeated!r} audits")
    audit, findings = Audit(), Findings()
    for leases in [*(body.get("earlier") or ()), *[body.get("leases")] * repeated]:
        audit, findings = audit.next(leases_of(leases), shards, unreadable)
    actual = {
        "holes": [_ends(hole) for hole in findings.holes],
        "confirmed": [_ends(found.hole) for found in findings.confirmed],
        "closed": [_ends(hole) for hole in findings.closed],
        "must_sync": findings.must_sync,
        "fills": {
            fill.seen.key: [str(fill.hash_range.first), str(fill.hash_range.last)] for fill in findings.fills
        },
        "unplaced": list(findings.unplaced),
    }
    nothing: dict[str, Any] = {key: type(value)() for key, value in actual.items()}
    expected = {key: or_default(body, key, default) for key, default in nothing.items()}
    return None if actual == expected else Failure(json.dumps(expected), json.dumps(actual))


class _LongestPauses(Random):
    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


class _Attempts:
    """One batch, worked off as the worker does it, with calls that end as a scenario says."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        age = body.get("max_record_age")
        self._policy = Policy(
            max_attempts=body.get("max_attempts"),
            bisect=or_default(body, "bisect", False),
            max_age=None if age is None else age * 1000,
            retry_timeout=or_default(body, "retry_timeout", 300.0),
        )
        self._work = WorkList(body["records"], self._policy)
        self._in_a_row = InARow(or_default(body, "in_a_row", 0))
        self._ends = list(or_default(body, "ends", ()))
        self._poison = frozenset(or_default(body, "poison", ()))
        self._arrived = [10**9 - ago * 1000 for ago in or_default(body, "arrived", ())]
        self._seconds = or_default(body, "seconds", 0)
        self._now = 0.0
        self.steps: list[str] = []

    def run(self) -> None:
        while (part := self._work.next()) is not None:
            if part.condition is not None:
                self.steps.append(f"letter {part.start}-{part.stop} {part.condition.value} {part.attempts}")
                self._work.returned()
                if part.condition is Condition.RETRY_ATTEMPTS_EXHAUSTED and self._in_a_row.exhausted(
                    len(part)
                ):
                    self.steps.append("hand back")
                    return
                continue
            arrived = self._arrived[part.start : part.stop]
            if arrived and self._work.expire(10**9 + self._now * 1000, arrived):
                continue
            self.steps.append(f"call {part.start}-{part.stop}")
            if self._call(part):
                return

    def _call(self, part: Part) -> bool:
        began = self._now
        self._now += self._seconds
        end = self._ends.pop(0) if self._ends else "error" if self._has_poison(part) else "returned"
        if end == "returned":
            self._work.returned()
            self._in_a_row.worked()
            return False
        before, _, end = end.rpartition(", ")
        if before:
            self._work.settled(int(before.removeprefix("checkpointed ")))
        words, _, last = end.rpartition(" ")
        kind, at = (words, int(last)) if last.isdigit() else (end, None)
        failure = {"temporary": Failed.NOT_COUNTED}.get(kind) or Failed(kind)
        decision = self._work.failed(
            failure,
            began=began,
            now=self._now,
            rng=_LongestPauses(0),
            at=at,
            now_millis=int(self._now * 1000),
        )
        if decision.verdict is not Verdict.GIVE_UP_RECORDS:
            self.steps.append(decision.verdict.value)
        self._now += decision.pause
        return decision.verdict is Verdict.HAND_BACK

    def _has_poison(self, part: Part) -> bool:
        return not self._poison.isdisjoint(range(part.start, part.stop))


def _check_attempts(body: Mapping[str, Any]) -> Failure | None:
    attempts = _Attempts(body)
    attempts.run()
    if attempts.steps == body["steps"]:
        return None
    return Failure(json.dumps(body["steps"]), json.dumps(attempts.steps))


def _ends(hole: HashRange) -> list[str]:
    return [str(hole.first), str(hole.last)]


_Kind = tuple[Collection[str], Callable[[Mapping[str, Any]], Failure | None]]
_KINDS: Mapping[str, _Kind] = {
    "to_create": (_CREATE_KEYS, _check_create),
    "expected": (_ACQUIRE_KEYS, _check_acquire),
    "to_delete": (_CLEANUP_KEYS, _check_cleanup),
    "holes": (_AUDIT_KEYS, _check_audit),
    "steps": (_ATTEMPT_KEYS, _check_attempts),
}


def _lease_key(row: Mapping[str, Any]) -> str:
    return str(row["lease_key"])


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps([{key: value for key, value in row.items() if value is not None} for row in rows])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
