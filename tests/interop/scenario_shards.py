"""Scenarios 16 to 40 with real Java workers: what shows each, as functions from what a story left to problems in words.

A function that found nothing to look at says so: a scenario that did not happen is not passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet_rows import sender, shown
from scenario_log import Sent, Told, is_pykcl

_SETS_OWNER = re.compile(r"\bleaseOwner = (:\w+)")


# -- 16 and 17: where the other one left off --------------------------------------------------------------------------


def resumed_inside(told: Told, shard: str, left: str, heir: str, sub: int) -> list[str]:
    """A worker's last checkpoint in a shard has this sub-sequence number, and its heir's first record there is the next
    of the same aggregate."""
    ends = [
        one.write.after.checkpoint for one in told.applied(shard)
        if one.sender == left and one.write.kind == "checkpoint" and one.write.after
    ]  # fmt: skip
    if not ends or ends[-1][1] != sub:
        return [f"{left} left {shard} at {shown(ends[-1]) if ends else 'nothing'}"]
    lives = told.lives_of(heir, shard)
    if not lives or lives[0].start != ends[-1]:
        return [
            f"{heir} began {shard} at {shown(lives[0].start) if lives else 'nothing'}, not at {shown(ends[-1])}"
        ]
    first = next((item for _, batch in lives[0].given for item in batch), None)
    wanted = (ends[-1][0], sub + 1)
    return (
        [] if first is not None and first.at == wanted else [f"{heir} got {first} first, not {shown(wanted)}"]
    )


def overwrote_greater_sub(told: Told, shard: str, java: str, pykcl: str) -> list[str]:
    """pykcl's first checkpoint replaced one of Java's with a greater sub-sequence number."""
    first = next(
        one.write for one in told.applied(shard) if (one.sender, one.write.kind) == (pykcl, "checkpoint")
    )
    before, after = first.before, first.after
    by = [
        one.sender
        for one in told.applied(shard)
        if one.write.kind == "checkpoint" and one.write.index < first.index
    ]
    if before is None or after is None or by[-1:] != [java]:
        return [f"the checkpoint before {pykcl}'s was not {java}'s"]
    return [] if before.checkpoint[1] > after.checkpoint[1] else [
        f"from {shown(before.checkpoint)} to {shown(after.checkpoint)}"
    ]  # fmt: skip


def both_given_odd(told: Told, shard: str, left: str, heir: str) -> list[str]:
    """Of a broken aggregate both were given the plain record it is, and of one with a part that belongs elsewhere nothing:
    what they were given behind the last checkpoint is the same, and all that was counted as put."""
    lives = {worker: told.lives_of(worker, shard) for worker in (left, heir)}
    if not all(lives.values()):
        return [f"not both {left} and {heir} read {shard}"]
    at = lives[heir][0].start
    due = [item for item in told.evidence.records[shard] if item.at > at]
    problems = [] if any(item.number < 0 for item in due) else ["no broken aggregate was put"]
    for worker, (life, *_) in lives.items():
        given = [item for _, batch in life.given for item in batch if item.at > at]
        problems += [] if given == due else [f"{worker} was given {[item.number for item in given]}"]
    return problems


# -- 19 to 21: splits and merges -------------------------------------------------------------------------------------


def ended_as_java_wants(told: Told, parent: str, pykcl: str, java: str) -> list[str]:
    """When pykcl's SHARD_END became visible the rows of both children stood complete; Java has begun them since."""
    writes = told.applied(parent)
    end = next((one for one in writes if one.write.kind == "end"), None)
    if end is None or end.sender != pykcl:
        return [f"{parent} was ended by {end.sender if end else 'nobody'}"]
    problems = (
        []
        if end.write.after is not None and _sub_of(end) == "0"
        else ["SHARD_END without sub-sequence number 0"]
    )
    children = {shard: parents for shard, parents in told.evidence.parents.items() if parent in parents}
    problems += [] if len(children) == 2 else [f"{parent} has {len(children)} children"]
    named = {name for one in writes if one.write.index <= end.write.index for name in _children_named(one)}
    problems += [] if named == set(children) else [f"childShardIds are {sorted(named)}"]
    for child, parents in children.items():
        row = next((one for one in told.applied(child) if one.write.kind == "create"), None)
        if row is None or row.write.index > end.write.index:
            problems.append(f"{child} had no row when {parent} ended")
            continue
        problems += _row_of_child(row.params["Item"], parents, told.notes["ranges"][child])
        problems += [] if told.lives_of(java, child) else [f"{java} never began {child}"]
    return problems


def _sub_of(end: Sent) -> str | None:
    values, text = end.params["ExpressionAttributeValues"], end.params["UpdateExpression"]
    match = re.search(r"checkpointSubSequenceNumber = (:\w+)", text)
    return str(values[match[1]]["N"]) if match else None


def _children_named(one: Sent) -> set[str]:
    match = re.search(r"childShardIds = (:\w+)", one.params.get("UpdateExpression", ""))
    return set(one.params["ExpressionAttributeValues"][match[1]]["SS"]) if match else set()


def _row_of_child(item: Mapping[str, Any], parents: Sequence[str], hash_range: Sequence[str]) -> list[str]:
    key = item["leaseKey"]["S"]
    wanted = {
        "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"},
        "startingHashKey": {"S": hash_range[0]}, "endingHashKey": {"S": hash_range[1]},
    }  # fmt: skip
    problems = [
        f"{key} was made with {name} {item.get(name)}"
        for name, value in wanted.items()
        if item.get(name) != value
    ]
    found = sorted(item.get("parentShardId", {}).get("SS", []))
    return problems + ([] if found == sorted(parents) else [f"{key} was made with parents {found}"])


def finished_for_the_dead(told: Told, parent: str, dead: str, heir: str) -> list[str]:
    """pykcl died after it had made the children's rows, and before its SHARD_END: Java ends the parent, and makes none."""
    tried = [
        one for one in told.sent if one.write.key == parent and one.write.kind == "end" and one.sender == dead
    ]
    problems = (
        []
        if tried and not any(one.write.applied for one in tried)
        else [f"{dead} died before or after its SHARD_END"]
    )
    ended = [one.sender for one in told.applied(parent) if one.write.kind == "end"]
    problems += [] if ended == [heir] else [f"{parent} was ended by {ended}"]
    children = [shard for shard, parents in told.evidence.parents.items() if parent in parents]
    for child in children:
        makers = [one.sender for one in told.applied(child) if one.write.kind == "create"]
        problems += [] if makers == [dead] else [f"{child} was made by {makers}"]
        problems += (
            [] if told.lives_of(heir, child) or _was_read(told, child) else [f"{child} was never begun"]
        )
    return problems if children else [*problems, f"{parent} has no children"]


def _was_read(told: Told, shard: str) -> bool:
    return any(life.shard == shard for life in told.evidence.lives)


def waited_for_both(told: Told, first: str, second: str) -> list[str]:
    """A child of a merge: one parent was ended by each kind, in the order given, and nobody began the child before.

    first, second: the parents, of which one is Java's. notes["early"]: children that had begun between the two ends.
    """
    child = next(
        (shard for shard, parents in told.evidence.parents.items() if set(parents) == {first, second}), None
    )
    if child is None:
        return [f"{first} and {second} were not merged"]
    ends = {
        key: next((one for one in told.applied(key) if one.write.kind == "end"), None)
        for key in (first, second)
    }
    if None in ends.values():
        return [f"{key} was not ended" for key, end in ends.items() if end is None]
    one, other = (ends[key] for key in (first, second))
    problems = [] if one.write.index < other.write.index else [f"{second} was ended before {first}"]
    if is_pykcl(one.sender) == is_pykcl(other.sender):
        problems.append(f"both were ended by one kind: {one.sender} and {other.sender}")
    lives = [life for life in told.evidence.lives if life.shard == child]
    problems += [f"{life} began before {second} was ended" for life in lives if life.t < other.write.t]
    makers = [sent.sender for sent in told.applied(child) if sent.write.kind == "create"]
    problems += [] if len(makers) == 1 else [f"{child} was made by {makers}"]
    return problems if lives else [*problems, f"nobody began {child}"]


# -- 26, 30, 31: rows --------------------------------------------------------------------------------------------------


def put_back_once(told: Told, key: str, leads: str, leader: str) -> list[str]:
    """The row of an open shard was deleted by an operator, made again once, and is read again. leader: as elected then."""
    problems = [] if leader == leads else [f"{leader} leads, not {leads}"]
    writes = told.applied(key)
    cut = next(
        (n for n, one in enumerate(writes) if one.write.kind == "delete" and one.sender not in told.said),
        None,
    )
    if cut is None:
        return [*problems, f"the row of {key} was not deleted"]
    makers = [one.sender for one in writes[cut:] if one.write.kind == "create"]
    problems += [] if len(makers) == 1 else [f"{key} was made again by {makers}"]
    lives = [life for life in told.evidence.lives if life.shard == key and life.t >= writes[cut].write.t]
    return problems if lives else [*problems, f"{key} was not read again"]


def left_alone(
    told: Told, planted: Iterable[str], foreign: Mapping[str, Any], after: Mapping[str, Any]
) -> list[str]:
    """Rows that are no leases: pykcl wrote to none of them. All are there still, those that nobody else writes, too, and
    these byte for byte.

    planted: keys of those. foreign: all such rows, before pykcl came; after: all rows, at the end. notes["cycles"]: scans
    by pykcl in between.
    """
    problems = [f"{key} has gone" for key in foreign if key not in after]
    problems += [f"{key} is not what it was" for key in planted if after.get(key) != foreign[key]]
    kinds = {row.get("entityType", {}).get("S") for row in foreign.values()}
    wanted = {"LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "WORKER_METRIC_STATS", "STREAM"}
    problems += [f"there was no {kind} row" for kind in sorted(wanted - kinds)]
    for line in told.lines:
        keyed = line["parameters"].get("Key") or line["parameters"].get("Item") or {}
        key = keyed.get("leaseKey", {}).get("S")
        if line["operation"].endswith("Item") and line["operation"] != "GetItem" and is_pykcl(sender(line)):
            problems += (
                [] if key in told.evidence.parents else [f"{sender(line)} sent {line['operation']} of {key}"]
            )
    if told.notes["cycles"] < 10:
        problems.append(f"pykcl looked only {told.notes['cycles']} times")
    return problems


def owners_are_text(told: Told) -> list[str]:
    """No write by pykcl gives leaseOwner anything but text that is not empty, or removes it; each kind of write was seen."""
    problems, kinds = [], set()
    for one in told.sent:
        if not is_pykcl(one.sender):
            continue
        kinds.add(one.write.kind)
        given = [one.params["Item"]["leaseOwner"]] if "leaseOwner" in one.params.get("Item", {}) else []
        values = one.params.get("ExpressionAttributeValues", {})
        given += [
            values.get(name) for name in _SETS_OWNER.findall(_changes(one.params.get("UpdateExpression", "")))
        ]
        problems += [
            f"{one.sender} gave {one.write.key} the owner {value}" for value in given
            if not (isinstance(value, dict) and value.keys() == {"S"} and value["S"])
        ]  # fmt: skip
        if "leaseOwner" in one.params.get("AttributeUpdates", {}):
            problems.append(f"{one.sender} wrote the owner of {one.write.key} in the older form")
    missing = {"create", "take", "renew", "checkpoint", "release"} - kinds
    return problems + [f"pykcl sent no {kind}" for kind in sorted(missing)]


def _changes(expression: str) -> str:
    """The expression without what it removes."""
    return re.sub(r"\bREMOVE [\w, ]+?(?= (?:SET|ADD|DELETE) |$)", "", expression)


# -- 40 --------------------------------------------------------------------------------------------------------------------


def rows_are_sound(told: Told) -> list[str]:
    """Counters grow: by one with each word of an owner that pykcl says, and never fall. pykcl's updates make no row that
    was not put."""
    problems, seen = [], set()
    for one in told.sent:
        write, before, after = one.write, one.write.before, one.write.after
        if not write.applied or write.kind in ("create", "delete", "other") or after is None:
            continue
        seen.add(is_pykcl(one.sender))
        if before is None:
            problems.append(f"{one.sender} made a row {write.key} by {write.kind}")
        elif after.counter <= before.counter or (
            is_pykcl(one.sender) and after.counter != before.counter + 1
        ):
            problems.append(
                f"{write.kind} by {one.sender} took {write.key} from {before.counter} to {after.counter}"
            )
    return problems if seen == {True, False} else [*problems, "not both kinds wrote"]


def was_a_soak(told: Told) -> list[str]:
    """Three workers of each kind that all read something, one of each killed, two splits and two merges."""
    processes, lives = told.evidence.processes, {life.worker for life in told.evidence.lives}
    problems = [f"{worker} read nothing" for worker in processes if worker not in lives]
    for kind in (True, False):
        workers = [process for name, process in processes.items() if is_pykcl(name) == kind]
        killed = sum(process.killed is not None for process in workers)
        if (len(workers), killed) != (3, 1):
            problems.append(f"{killed} of {len(workers)} {'pykcl' if kind else 'Java'} workers were killed")
    counts = sorted(map(len, told.evidence.parents.values()))
    splits, merges = counts.count(1) / 2, counts.count(2)
    return problems + ([] if splits >= 2 and merges >= 2 else [f"{splits:g} splits, {merges} merges"])
