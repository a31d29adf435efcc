"""Rows of KCL 3.x beside the leases, and what a member of its fleet writes: beside rows and requests of Java 3.5.1."""

import json
import re
from pathlib import Path

import pytest

from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.fleet_rows import (
    LeaderLock,
    WorkerMetrics,
    decimal_text,
    keep_lock,
    lock_of,
    metrics_of,
    release_lock,
    report,
    take_lock,
    withdraw,
)
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.lease_writes import parse_row

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROWS = [
    entry["item"]
    for entry in map(json.loads, (FIXTURES / "java-3.5.1-3x-mode.jsonl").read_text().splitlines())
]
REQUESTS = [
    json.loads(line) for line in (FIXTURES / "requests-java-3.5.1-3x-mode.jsonl").read_text().splitlines()
]
METRICS, LOCK = {"S": "WORKER_METRIC_STATS"}, {"S": "LEADER"}


def of_kind(kind):
    return [row for row in ROWS if row.get("entityType") == kind]


def java_updates(operation="UpdateItem", **wanted):
    """The attributes that Java's requests of that kind touch, with what it does to each."""
    found = []
    for request in REQUESTS:
        updates = request["parameters"].get("AttributeUpdates", {})
        if request["operation"] == operation and updates.keys() >= wanted.keys():
            found.append({name: update["Action"] for name, update in updates.items()})
    return found


def touched(write):
    """The attributes that one of our updates sets, removes and adds to."""
    text = write.request()[1]["UpdateExpression"]
    found = dict.fromkeys(re.findall(r"(\w+) = :", text), "PUT")
    for part, action in (("REMOVE", "DELETE"), ("ADD", "ADD")):
        listed = re.search(rf"{part} ([\w, :]+?)(?= SET| ADD| REMOVE|$)", text)
        found |= dict.fromkeys(
            re.findall(r"[a-z]\w+", re.sub(r":\w+", "", listed[1])) if listed else [], action
        )
    return found


# -- C-1: rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [row for row in of_kind(METRICS) if row["leaseKey"]["S"].startswith("w")])
def test_c1_metrics_of_java_are_understood_and_written_alike(item):
    found = metrics_of(parse_row(item))
    assert found.worker == item["leaseKey"]["S"]
    assert found.reported_at == int(item["lut"]["N"])
    request = report(found).request
    values = request["ExpressionAttributeValues"]
    assert request["Key"] == {"leaseKey": item["leaseKey"]}
    assert values[":kind"] == item["entityType"]
    assert (values[":at"], values[":values"], values[":limits"]) == (item["lut"], item["sts"], item["opr"])
    assert values[":supports"] == item["sup"]
    named = set(re.findall(r"(\w+) = :", request["UpdateExpression"]))
    assert named == item.keys() - {"leaseKey"}


@pytest.mark.parametrize("item", of_kind(LOCK))
def test_c1_the_lock_of_java_is_understood(item):
    found = lock_of(parse_row(item))
    assert found == LeaderLock(
        item["ownerName"]["S"], item["recordVersionNumber"]["S"], 120.0, "isReleased" in item
    )


def test_metrics_of_a_host_are_series_of_numbers():
    metrics = WorkerMetrics("w1", 1_795_411_858, {"C": (12.5, -1.0, 95.123457)}, {"C": (100.0,)})
    values = report(metrics).request["ExpressionAttributeValues"]
    assert values[":values"] == {"M": {"C": {"L": [{"N": "12.5"}, {"N": "-1"}, {"N": "95.123457"}]}}}
    item = {
        "leaseKey": {"S": "w1"},
        "entityType": METRICS,
        "lut": values[":at"],
        "sts": values[":values"],
        "opr": values[":limits"],
        "sup": {"N": "1"},
    }
    assert metrics_of(parse_row(item)) == metrics


@pytest.mark.parametrize(
    "changes",
    [
        {"lut": {"S": "1795411858"}},
        {"lut": {"N": "1.5"}},
        {"lut": None},
        {"sts": {"L": []}},
        {"sts": {"M": {"C": {"N": "1"}}}},
        {"sts": {"M": {"C": {"L": [{"S": "1"}]}}}},
        {"opr": None},
        {"sts": {"M": {"C": {"L": [{"N": "1"}] * 1000}}}},
    ],
)
def test_half_written_metrics_are_no_metrics(changes):
    item = {name: value for name, value in {**of_kind(METRICS)[0], **changes}.items() if value is not None}
    assert metrics_of(parse_row(item)) is None


@pytest.mark.parametrize("name", ["ownerName", "recordVersionNumber", "leaseDuration"])
def test_a_half_written_lock_is_no_lock(name):
    item = {key: value for key, value in of_kind(LOCK)[0].items() if key != name}
    assert lock_of(parse_row(item)) is None
    assert lock_of(parse_row({**item, name: {"B": b"1"}})) is None


def test_a_report_may_replace_no_other_row_and_a_withdrawal_deletes_no_later_report():
    metrics = WorkerMetrics("shardId-000000000000", 7)
    assert report(metrics).request["ConditionExpression"] == (
        "attribute_not_exists(leaseKey) OR entityType = :kind"
    )
    gone = withdraw(metrics)
    assert (gone.method, gone.request["ConditionExpression"]) == (
        "delete_item",
        "lut <= :at AND entityType = :kind",
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (76.173065, "76.173065"),
        (0.0, "0"),
        (100.0, "100"),
        (0.0000005, "0.000001"),
        (1.25, "1.25"),
        (-1.0, "-1"),
    ],
)
def test_numbers_have_six_decimals_rounded_half_up(number, text):
    assert decimal_text(number) == text


# -- C-1: writes of the lock -------------------------------------------------------------------------------------


def java_lock_requests(operation):
    """What Java sends for its lock, its names and values put into the expressions."""
    found = []
    for request in REQUESTS:
        params = request["parameters"]
        key = params.get("Item", params.get("Key", {})).get("leaseKey")
        if request["operation"] == operation and key == {"S": "Leader"}:
            found.append(params)
    return found


def plain(request):
    """A request whose expressions name attributes and values themselves."""
    names, values = request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {})

    def text(expression):
        for short, name in names.items():
            expression = re.sub(rf"{short}\b", name, expression)
        for short, value in values.items():
            expression = re.sub(rf"{short}\b", repr(value["S"]), expression)
        return expression

    parts = {
        part: text(request[part]) for part in ("ConditionExpression", "UpdateExpression") if part in request
    }
    return {**{part: request[part] for part in ("Item", "Key") if part in request}, **parts}


def test_c1_the_lock_is_taken_as_by_java():
    fresh, expired = (plain(params) for params in java_lock_requests("PutItem"))
    for java in (fresh, expired):
        mine = lock_of(parse_row(java["Item"]))
        seen = None
        if java is expired:
            version = re.search(r"= '(.*)'", java["ConditionExpression"])[1]
            seen = LeaderLock("w1", version, 120.0)
        assert plain(take_lock(seen, mine).request) == java


def test_c1_a_released_lock_is_taken_only_as_it_was_seen():
    mine = LeaderLock("me", "new", 120.0)
    request = plain(take_lock(LeaderLock("w1", "old", 120.0, is_released=True), mine).request)
    assert request["ConditionExpression"] == (
        "attribute_exists(leaseKey) AND recordVersionNumber = 'old' AND isReleased = '1'"
    )
    assert "isReleased" not in request["Item"]


def test_c1_a_heartbeat_of_the_lock_is_java_s():
    (java,) = (plain(params) for params in java_lock_requests("UpdateItem"))
    seen, new = (
        re.search(r"recordVersionNumber = '([^']*)'", java[part])[1]
        for part in ("ConditionExpression", "UpdateExpression")
    )
    mine = keep_lock(LeaderLock("w1", seen, 120.0), LeaderLock("w1", new, 120.0))
    assert plain(mine.request) == java


def test_c1_a_release_leaves_the_row_and_asks_for_owner_and_version():
    request = plain(release_lock(LeaderLock("me", "v", 30.0)).request)
    assert request == {
        "Key": {"leaseKey": {"S": "Leader"}},
        "UpdateExpression": "SET isReleased = '1'",
        "ConditionExpression": "attribute_exists(leaseKey) AND recordVersionNumber = 'v' AND ownerName = 'me'",
    }


# -- C-1: writes of leases ---------------------------------------------------------------------------------------

HELD = Lease("shardId-000000000004", Checkpoint("10"), counter=11, owner="me")
METADATA = PykclMetadata(owner="me")


def test_c1_a_heartbeat_with_throughput_touches_what_java_s_does():
    assert touched(lease_writes.renew(HELD, "76.173065")) in java_updates(
        throughputKBps=True, leaseCounter=True
    )
    assert touched(lease_writes.renew(HELD)) in java_updates(leaseCounter=True)


def test_c1_adoption_is_a_heartbeat_and_our_own_attribute():
    found = touched(lease_writes.adopt(HELD, METADATA))
    assert found.pop("pykcl") == "PUT"
    assert found in java_updates(leaseCounter=True)
    condition = lease_writes.adopt(HELD, METADATA).request()[1]["ConditionExpression"]
    assert condition == (
        "leaseCounter = :seenCounter AND leaseOwner = :seenOwner AND attribute_not_exists(checkpointOwner)"
    )


def test_c1_a_hand_over_touches_what_java_s_assignment_does():
    asked = HELD.with_(owner="next", checkpoint_owner="me")
    found = touched(lease_writes.hand_over(asked))
    # Java puts the next owner once more, and adds where we set: the condition names both.
    (java,) = [
        one
        for one in java_updates(ownerSwitchesSinceCheckpoint=True, checkpointOwner=True)
        if one["checkpointOwner"] == "DELETE"
    ]
    assert found == {
        name: "PUT" if kind == "ADD" else kind for name, kind in java.items() if name != "leaseOwner"
    }


def test_a_lease_that_another_still_works_on_is_not_adopted():
    with pytest.raises(ValueError, match="still works on"):
        lease_writes.adopt(HELD.with_(checkpoint_owner="other"), METADATA)
    with pytest.raises(ValueError, match="no owner"):
        lease_writes.adopt(HELD.with_(owner=None), METADATA)


@pytest.mark.parametrize(
    ("asked", "keeps", "owner", "checkpoint_owner"),
    [
        (None, False, None, None),
        (None, True, "me", None),
        ("next", True, "next", None),
        ("next", False, None, None),
    ],
)
def test_an_ended_lease_keeps_its_owner_or_goes_to_the_next_one(asked, keeps, owner, checkpoint_owner):
    held = HELD if asked is None else HELD.with_(owner=asked, checkpoint_owner="me")
    after = lease_writes.end_shard(held, (), keeps_owner=keeps).after
    assert (after.owner, after.checkpoint_owner, after.checkpoint) == (owner, checkpoint_owner, AT_SHARD_END)
    assert after.counter == held.counter + 1


# -- C-1: writes of the leader -----------------------------------------------------------------------------------


def java_requests(*names):
    """The recorded updates of exactly these attributes."""
    return [
        line["parameters"]
        for line in REQUESTS
        if line["operation"] == "UpdateItem"
        and set(line["parameters"].get("AttributeUpdates", ())) == set(names)
    ]


def same_as_java(write, request):
    """Return whether the write does to each attribute what the request of Java does, with the same values."""
    _, ours = write.request()
    values = ours["ExpressionAttributeValues"]
    java = request["AttributeUpdates"]
    assert touched(write) == {name: how["Action"] for name, how in java.items()}
    words = re.split(r"[ ,]+", ours["UpdateExpression"].replace("=", " "))
    for name, how in java.items():
        if "Value" in how:
            assert values[words[words.index(name) + 1]] == how["Value"]
    assert ours["Key"] == request["Key"]


def test_c1_an_unowned_lease_is_assigned_as_java_does_it():
    (java,) = java_requests("checkpointOwner", "leaseCounter", "leaseOwner")
    lease = Lease("shardId-000000000004", Checkpoint("10"))
    write = lease_writes.assign(lease, "w1", stands_still=True)
    same_as_java(write, java)
    assert write.request()[1]["ConditionExpression"] == (
        "leaseCounter = :seenCounter AND attribute_not_exists(leaseOwner) AND attribute_not_exists(checkpointOwner)"
    )
    assert (write.after.owner, write.after.counter, write.after.owner_switches) == ("w1", 1, 0)


@pytest.mark.parametrize(
    ("stands_still", "first"),
    [(True, "leaseCounter = :seenCounter"), (False, "attribute_exists(leaseCounter)")],
)
def test_c1_an_owned_lease_is_assigned_as_java_does_it(stands_still, first):
    java = java_requests("checkpointOwner", "leaseCounter", "leaseOwner", "ownerSwitchesSinceCheckpoint")[0]
    lease = HELD.with_(key="shardId-000000000001", owner="py1")
    write = lease_writes.assign(lease, "w2", stands_still=stands_still)
    same_as_java(write, java)
    _, ours = write.request()
    assert ours["ConditionExpression"] == (
        f"{first} AND leaseOwner = :seenOwner AND attribute_not_exists(checkpointOwner)"
    )
    assert ours["ExpressionAttributeValues"][":seenOwner"] == java["Expected"]["leaseOwner"]["Value"]
    assert (write.after.counter, write.after.owner_switches) == (12, 1)


@pytest.mark.parametrize(("new_owner", "switches"), [("old", 1), ("next", 0), ("third", 1)])
def test_c1_a_lease_in_a_hand_over_is_assigned_to_anybody(new_owner, switches):
    """Source: DynamoDBLeaseSerializer, getDynamoTakeLeaseUpdate."""
    write = lease_writes.assign(
        HELD.with_(owner="next", checkpoint_owner="old"), new_owner, stands_still=False
    )
    _, ours = write.request()
    assert ours["ConditionExpression"] == (
        "attribute_exists(leaseCounter) AND leaseOwner = :seenOwner AND checkpointOwner = :seenCheckpointOwner"
    )
    assert "REMOVE checkpointOwner" in ours["UpdateExpression"]
    assert write.after.owner_switches == switches
    assert ("ownerSwitchesSinceCheckpoint :one" in ours["UpdateExpression"]) == bool(switches)


def test_c1_a_hand_over_begins_as_java_s_does():
    (java,) = java_requests("checkpointOwner", "leaseOwner")
    lease = HELD.with_(key="shardId-000000000003", owner="w1")
    write = lease_writes.begin_hand_over(lease, "w2")
    same_as_java(write, java)
    assert write.request()[1]["ConditionExpression"] == (
        "attribute_exists(leaseCounter) AND leaseOwner = :seenOwner AND attribute_not_exists(checkpointOwner)"
    )
    assert write.after == lease.with_(owner="w2", checkpoint_owner="w1")


LEADERS_WRITES = [
    lease_writes.assign(HELD, "next", stands_still=True),
    lease_writes.assign(HELD.with_(owner=None), "next", stands_still=True),
    lease_writes.assign(HELD, "next", stands_still=False),
    lease_writes.begin_hand_over(HELD, "next"),
]


@pytest.mark.parametrize("write", LEADERS_WRITES)
def test_a_write_of_the_leader_is_applied_if_the_owners_are_as_it_wants_them(write):
    assert lease_writes.resolve_conflict(write, write.after) == "applied"
    assert lease_writes.resolve_conflict(write, write.after.with_(counter=99)) == "applied"
    for row in (None, write.seen, write.seen.with_(counter=12), write.after.with_(owner="third")):
        assert lease_writes.resolve_conflict(write, row) == "rejected"
    assert write.writer is None
    with pytest.raises(ValueError, match="cannot be rebased"):
        write.rebased(write.after)


def test_an_old_owner_that_gets_its_lease_back_from_nobody_counts_as_a_switch():
    lease = HELD.with_(owner=None, checkpoint_owner="old")
    assert lease_writes.assign(lease, "old", stands_still=True).after.owner_switches == 1
    assert lease_writes.assign(lease, "third", stands_still=True).after.owner_switches == 0


def test_a_hand_over_that_another_leader_has_begun_is_none_of_ours():
    theirs = lease_writes.begin_hand_over(HELD, "next").after.with_(checkpoint_owner="third")
    assert lease_writes.resolve_conflict(LEADERS_WRITES[-1], theirs) == "rejected"
    assert lease_writes.resolve_conflict(LEADERS_WRITES[0], theirs) == "rejected"


def test_a_leader_assigns_to_nobody_without_a_name_and_hands_over_only_what_somebody_holds():
    for name in ("", "x" * 257):
        with pytest.raises(ValueError, match="1 to 256"):
            lease_writes.assign(HELD, name, stands_still=False)
        with pytest.raises(ValueError, match="1 to 256"):
            lease_writes.begin_hand_over(HELD, name)
    with pytest.raises(ValueError, match="no owner"):
        lease_writes.begin_hand_over(HELD.with_(owner=None), "next")
    for lease in (HELD.with_(owner="next", checkpoint_owner="me"), HELD.with_(owner="next")):
        with pytest.raises(ValueError, match="goes to"):
            lease_writes.begin_hand_over(lease, "next")
