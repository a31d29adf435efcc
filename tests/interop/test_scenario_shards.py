"""Each proof of scenarios 16 to 40 is content with the story told rightly, and says so when one thing in it is changed."""

from pathlib import Path

import pytest
import scenario_shards as proofs
from fleet_evidence import Item
from fleet_rows import START
from told_by_hand import ByHand, each_change, untried

LOW, HIGH = ("0", "9"), ("10", "19")


def inside(wrong):
    """p1 checkpoints sub-sequence number 2 where Java had 99, j1 goes on with the next."""
    hand = ByHand("j0", "j1", "p1", A=())
    hand.create(1, "j0", "A")
    hand.write(2, "j0", "A", "take")
    if wrong != "no java":
        hand.write(3, "j0", "A", "checkpoint", at=(5, 1 if wrong == "no greater" else 99))
    hand.write(4, "p1", "A", "take")
    hand.write(5, "p1", "A", "checkpoint", at=(6, 3 if wrong == "elsewhere" else 2))
    hand.write(6, "j1", "A", "take")
    start, first = (6, 0) if wrong == "start" else (6, 2), Item((6, 4 if wrong == "first" else 3), 1)
    hand.life(7, "j1", "A", start, [first])
    told = hand.told()
    return proofs.overwrote_greater_sub(told, "A", "j0", "p1") + proofs.resumed_inside(
        told, "A", "p1", "j1", 2
    )


def odd(wrong):
    """Behind a checkpoint lie a broken aggregate and a sound one, and one that nobody is given anything of."""
    hand = ByHand("j2", "p1", A=())
    hand.create(1, "p1", "A")
    broken, sound = Item((7, 0), -5 if wrong != "none broken" else 5), Item((9, 0), 1)
    hand.records["A"] = [Item((6, 2), 0), broken, sound]
    given = {"misplaced": [broken, Item((8, 0), 9), sound], "dropped": [sound]}.get(wrong, [broken, sound])
    hand.life(2, "p1", "A", START, [Item((6, 2), 0), broken, sound])
    if wrong != "one reads":
        hand.life(3, "j2", "A", (6, 2), given)
    return proofs.both_given_odd(hand.told(), "A", "p1", "j2")


def child_row(parents, keys):
    return {
        "parentShardId": {"SS": list(parents)},
        "startingHashKey": {"S": keys[0]},
        "endingHashKey": {"S": keys[1]},
    }


def split(wrong):
    """p1 puts the rows of B and C and then ends A; j1 reads both."""
    hand = ByHand("j1", "p1", A=(), B=("A",), C=("A",))
    hand.notes["ranges"] = {"B": LOW, "C": HIGH}
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take")
    hand.create(3, "p1", "B", **child_row(["A"], LOW))
    more = {"checkpoint": {"S": "LATEST"}} if wrong == "checkpoint" else {}
    high = child_row(["X"] if wrong == "parents" else ["A"], LOW if wrong == "range" else HIGH)
    if wrong != "late row":
        hand.create(3, "p1", "C", **high, **more)
    named = {"SS": ["B"] if wrong == "not named" else ["B", "C"]}
    sub = {"checkpointSubSequenceNumber": {"N": "3"}} if wrong == "sub" else {}
    hand.write(4, "j1" if wrong == "by java" else "p1", "A", "end", childShardIds=named, **sub)
    if wrong == "late row":
        hand.create(5, "p1", "C", **high)
    for key in "B" if wrong == "java stays" else "BC":
        hand.life(6, "j1", key, START, [])
    return proofs.ended_as_java_wants(hand.told(), "A", "p1", "j1")


def crashed(wrong):
    """p1 has put the rows of B and C, its end of A is refused, it dies; j1 ends A."""
    hand = ByHand("j1", "p1", A=(), B=("A",), C=("A",))
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take")
    for key in "BC":
        hand.create(3, "j1" if (wrong, key) == ("made by java", "C") else "p1", key)
    if wrong != "no end":
        hand.write(4, "p1", "A", "end", refused=wrong != "ended")
    if wrong == "twice":
        hand.create(5, "j1", "B")
    if wrong != "stuck":
        hand.write(6, "j1", "A", "end")
    for key in "B" if wrong == "a child waits" else "BC":
        hand.life(7, "j1", key, START, [])
    return proofs.finished_for_the_dead(hand.told(), "A", "p1", "j1")


def merged(wrong):
    """j1 ends A, p1 ends B, then C is begun."""
    hand = ByHand("j1", "p1", A=(), B=(), C=("A", "B") if wrong != "no merge" else ("A",))
    for key in "ABC":
        hand.create(1, "p1", key)
    if wrong == "child twice":
        hand.create(2, "j1", "C")
    first, second = ("B", "A") if wrong == "other order" else ("A", "B")
    hand.write(3, "j1", first, "end")
    if wrong != "one parent":
        hand.write(5, "j1" if wrong == "one kind" else "p1", second, "end")
    if wrong != "not begun":
        hand.life(4 if wrong == "early" else 6, "j1", "C", START, [])
    return proofs.waited_for_both(hand.told(), "A", "B")


def lost_row(wrong):
    """An operator deletes A, p1 makes it again, and it is read."""
    hand = ByHand("j1", "p1", A=())
    hand.create(1, "p1", "A")
    if wrong != "not deleted":
        hand.delete(2, "p1" if wrong == "by pykcl" else "", "A")
    for _ in range({"never": 0, "twice": 2}.get(wrong, 1)):
        hand.create(3, "p1", "A")
    if wrong != "not read":
        hand.life(4, "p1", "A", START, []) if wrong != "never" else None
    return proofs.put_back_once(hand.told(), "A", "j1" if wrong != "leader" else "p1", "j1")


def foreign(wrong):
    """Rows of all kinds that are no leases; Java changes its own."""
    kinds = ("LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "WORKER_METRIC_STATS", "STREAM")
    rows = {kind: {"entityType": {"S": kind}} for kind in kinds if (wrong, kind) != ("kind", "STREAM")}
    hand = ByHand("j1", "p1", A=())
    hand.notes["cycles"] = 9 if wrong == "few" else 10
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take")
    hand.ask(3, "j1", "PutItem", Item={"leaseKey": {"S": "WORKER_METRIC_STATS"}, "entityType": {"S": "x"}})
    if wrong == "write":
        hand.ask(4, "p1", "UpdateItem", Key={"leaseKey": {"S": "LEADER"}})
    if wrong == "delete":
        hand.ask(4, "p1", "DeleteItem", Key={"leaseKey": {"S": "LEADER"}})
    after = {**rows, "WORKER_METRIC_STATS": {"changed": {"S": "by Java"}}}
    if wrong == "changed":
        after["LEADER"] = {"entityType": {"S": "x"}}
    if wrong == "gone":
        del after["CLIENT_VERSION_MIGRATION"]
    return proofs.left_alone(hand.told(), ["LEADER"], rows, after)


def owners(wrong):
    """Every kind of write by p1."""
    hand = ByHand("j1", "p1", A=())
    given = {"empty": {"S": ""}, "null": {"NULL": True}, "number": {"N": "1"}}
    if wrong == "put":
        hand.create(1, "p1", "A", leaseOwner={"S": ""})
    else:
        hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take", **({"leaseOwner": given[wrong]} if wrong in ("empty",) else {}))
    hand.write(3, "p1", "A", "renew")
    hand.write(4, "p1", "A", "checkpoint", at=(5, 0))
    if wrong in ("null", "number"):
        hand.ask(5, "p1", "UpdateItem", "ValidationException", Key={"leaseKey": {"S": "A"}},
                 UpdateExpression="SET leaseOwner = :o", ExpressionAttributeValues={":o": {**given[wrong], "S": "x"}})  # fmt: skip
    if wrong == "older form":
        put = {"leaseOwner": {"Action": "PUT", "Value": {"S": "p1"}}}
        hand.ask(5, "p1", "UpdateItem", Key={"leaseKey": {"S": "A"}}, AttributeUpdates=put)
    if wrong != "no release":
        hand.write(6, "p1", "A", "release")
    return proofs.owners_are_text(hand.told())


def sound(wrong):
    """Counters of both kinds grow."""
    hand = ByHand("j1", "p1", A=())
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take", step=2 if wrong == "jumps" else 1)
    hand.write(3, "j1", "A", "take")
    if wrong == "java alone":
        hand = ByHand("j1", A=())
        hand.create(1, "j1", "A")
    hand.write(4, "j1", "A", "renew", step=0 if wrong == "stands" else 1)
    if wrong == "stub":
        hand.delete(5, "", "A")
        hand.ask(6, "p1", "UpdateItem", Key={"leaseKey": {"S": "A"}}, UpdateExpression="SET leaseCounter = :c",
                 ExpressionAttributeValues={":c": {"N": "9"}})  # fmt: skip
    return proofs.rows_are_sound(hand.told())


def soak(wrong):
    """Three of each kind, one of each killed, two splits and two merges."""
    workers = ["j1", "j2", "j3", "p1", "p2", "p3"][1 if wrong == "two java" else 0 :]
    merges = {"G": ("C", "D"), "H": ("E", "F")} if wrong != "one merge" else {"G": ("C", "D")}
    splits = (
        {key: (parent,) for key, parent in zip("CDEF", "AABB", strict=True)} if wrong != "no split" else {}
    )
    hand = ByHand(*workers, A=(), B=(), **splits, **merges)
    hand.create(1, "p1", "A")
    for worker in workers[: -1 if wrong == "one idle" else None]:
        hand.life(2, worker, "A", START, [])
    for worker in ("j2", "p2") if wrong != "nobody killed" else ():
        hand.processes[worker].killed = 5
    return proofs.was_a_soak(hand.told())


WRONG = {
    inside: {"no java": "was not j0's", "no greater": "from 5:1 to 6:2", "elsewhere": "p1 left A at 6:3",
             "start": "j1 began A at 6:0", "first": "not 6:3"},
    odd: {"none broken": "no broken aggregate", "misplaced": "j2 was given [-5, 9, 1]", "dropped": "j2 was given [1]",
          "one reads": "not both p1 and j2"},
    split: {"checkpoint": "C was made with checkpoint {'S': 'LATEST'}", "parents": "C was made with parents ['X']",
            "range": "C was made with startingHashKey", "late row": "C had no row when A ended",
            "not named": "childShardIds are ['B']", "sub": "without sub-sequence number 0", "by java": "ended by j1",
            "java stays": "j1 never began C"},
    crashed: {"made by java": "C was made by ['j1']", "no end": "before or after", "ended": "before or after",
              "twice": "B was made by ['p1', 'j1']", "stuck": "A was ended by []", "a child waits": "C was never begun"},
    merged: {"no merge": "A and B were not merged", "child twice": "C was made by", "other order": "B was ended before A",
             "one parent": "B was not ended", "one kind": "both were ended by one kind", "not begun": "nobody began C",
             "early": "began before B was ended"},
    lost_row: {"not deleted": "was not deleted", "by pykcl": "was not deleted", "never": "was made again by []",
               "twice": "made again by ['p1', 'p1']", "not read": "was not read again", "leader": "j1 leads, not p1"},
    foreign: {"kind": "there was no STREAM row", "few": "looked only 9 times", "write": "p1 sent UpdateItem of LEADER",
              "delete": "p1 sent DeleteItem of LEADER", "changed": "LEADER is not what it was",
              "gone": "CLIENT_VERSION_MIGRATION has gone"},
    owners: {"empty": "the owner {'S': ''}", "put": "the owner {'S': ''}", "null": "'NULL': True",
             "number": "'N': '1'", "older form": "in the older form", "no release": "pykcl sent no release"},
    sound: {"jumps": "take by p1 took A from 0 to 2", "java alone": "not both kinds", "stands": "from 2 to 2",
            "stub": "made a row A by renew"},
    soak: {"one merge": "1 merges", "no split": "0 splits", "two java": "of 2 Java workers", "one idle": "p3 read nothing",
           "nobody killed": "0 of 3 pykcl workers"},
}  # fmt: skip


@pytest.mark.parametrize("story", WRONG, ids=lambda story: story.__name__)
def test_the_story_told_rightly_has_no_problem(story):
    assert story("") == []


@each_change(WRONG)
def test_one_thing_changed_is_noticed(story, wrong):
    assert any(WRONG[story][wrong] in problem for problem in story(wrong)), story(wrong)


def test_each_proof_is_tried():
    """By name, in the stories above: one that is added must be tried, too."""
    assert untried(proofs, Path(__file__)) == []
