"""Each proof of scenarios 1 to 12 is content with the story told rightly, and says so when one thing in it is changed."""

from pathlib import Path

import pytest
import scenario_owners as proofs
from fleet_rows import START
from told_by_hand import ByHand, each_change, untried


def joined(wrong):
    """j1 makes four leases and takes them, p1 joins and steals two."""
    hand = ByHand("j1", "p1", A=(), B=(), C=(), D=())
    for key in "ABCD":
        hand.create(1, "j1", key)
        hand.write(2, "j1", key, "take")
    for key in {"few": "", "all": "ABCD"}.get(wrong, "AB"):
        hand.write(3, "p1", key, "take")
    if wrong == "back and forth":
        hand.write(4, "j1", "A", "take")
    hand.processes["j1"].terminated = 9_000
    return proofs.moved_once(hand.told(), "p1", "j1")


def made(wrong):
    """Both ask for the table and for the row of A, which an operator deletes later."""
    hand = ByHand("j1", "p1", A=())
    exists = "ResourceInUseException"
    hand.ask(1, "p1", "CreateTable", None if wrong != "table" else exists)
    if wrong != "one asks":
        hand.ask(1, "j1", "CreateTable", exists)
    hand.create(2, "p1", "A")
    hand.ask(2, "j1", "PutItem", None if wrong == "overwritten" else "ConditionalCheckFailedException",
             Item={"leaseKey": {"S": "A"}, "leaseCounter": {"N": "0"}})  # fmt: skip
    hand.delete(3, "", "A")
    if wrong != "gone":
        hand.create(4, "p1", "A")
    return proofs.made_once(hand.told())


def fenced(wrong):
    """p1 steals A and B; of A j1 sends a renewal, of B a checkpoint."""
    hand = ByHand("j1", "p1", A=(), B=())
    for key, what in (("A", "renew"), ("B", "checkpoint")):
        hand.create(1, "j1", key)
        hand.write(2, "j1", key, "take")
        hand.write(3, "p1", key, "take")
        if wrong != f"no {what}":
            hand.write(4, "j1", key, what, at=(5, 0), refused=wrong != f"{what} lands")
    return proofs.fenced_off(hand.told(), "j1")


def gave_up(wrong):
    """j1 steals A from p1, which is in the middle of a batch."""
    hand = ByHand("j1", "p1", A=())
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take")
    words = {
        "delivered": "init given refused given lost", "no checkpoint": "init given lost", "not told": "init given refused",
    }.get(wrong, "init given refused refused lost")  # fmt: skip
    hand.life(2, "p1", "A", START, [], words)
    hand.said["p1"].insert(1, {**hand.said["p1"][0], "what": "refused", "error": "TemporaryError"})
    if wrong != "no steal":
        hand.write(3, "j1", "A", "take")
    if wrong != "nothing refused":
        hand.write(3.1, "p1", "A", "checkpoint", at=(5, 0), refused=wrong != "lands")
    for _ in range(2 if wrong == "two heartbeats" else 1):
        hand.write(4, "p1", "A", "renew", refused=True)
    return proofs.gave_up(hand.told(), "p1")


def frozen(wrong):
    """p1 freezes, j1 takes A, p1 wakes and learns that, and takes A again later."""
    hand = ByHand("j1", "p1", A=())
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "take")
    hand.life(2, "p1", "A", START, [], "init given")
    hand.processes["p1"].freezes = [(10_000, 30_000)]  # noted when it had said something already
    if wrong != "not taken":
        hand.write(20, "j1", "A", "take")
    if wrong == "write":
        hand.write(31, "p1", "A", "renew")
    words = {"delivered": "given lost", "checkpoint": "done checkpoint lost", "not told": "done"}
    hand.say(30, "p1", "A", 1, words.get(wrong, "done refused lost"))
    if wrong == "":
        hand.delete(35, "", "A")
        hand.create(36, "p1", "A")
    hand.write(40, "p1", "A", "take")
    return proofs.wrote_nothing_frozen(hand.told(), "p1")


def killed(wrong):
    """p1 is killed at a checkpoint; j1 takes A at its second look. Its other scan is for another purpose."""
    hand = with_checkpoint(wrong)
    hand.processes["p1"].killed = 5_000
    for t in (10, 13, 20) if wrong != "late" else (10, 20, 30):
        hand.ask(t, "j1", "Scan")
    heir = "j2" if wrong == "other heir" else "j1"
    hand.write(31, heir, "A", "take")
    if wrong != "not begun":
        hand.life(32, heir, "A", (4, 0) if wrong == "earlier" else (5, 1), [])
    return proofs.taken_over(hand.told(), "p1", "j1", rounds=2, apart_seconds=10)


def stopped(wrong):
    """p1 is stopped and releases A; j1 takes it at its next look."""
    hand = with_checkpoint(wrong)
    hand.processes["p1"].terminated = 5_000
    if wrong != "not released":
        hand.write(6, "p1", "A", "release", step=2 if wrong == "counter" else 1)
    for t in (7, 17) if wrong == "late" else (7,):
        hand.ask(t, "j1", "Scan")
    hand.write(18, "j1", "A", "take")
    hand.life(19, "j1", "A", (5, 1), [])
    return proofs.taken_over(hand.told(), "p1", "j1", rounds=1, apart_seconds=10)


def with_checkpoint(wrong):
    hand = ByHand("j1", "j2", "p1", A=())
    hand.create(1, "p1", "A")
    if wrong != "no leases":
        hand.write(2, "p1", "A", "take")
    hand.write(4, "p1", "A", "checkpoint", at=(5, 1))
    return hand


def expired(wrong):
    """j1 is stopped and says its last word for A; p1 takes A the failover time later."""
    hand = ByHand("j1", "p1", A=())
    hand.create(1, "j1", "A")
    hand.write(2, "j1", "A", "take")
    hand.processes["j1"].terminated = 5_000
    hand.write(6, "j1", "A", "release" if wrong == "given back" else "renew")
    if wrong != "nobody":
        hand.write(10.9 if wrong == "early" else 11.1, "p1", "A", "take")
    return proofs.waited_for_expiry(hand.told(), "j1", 5.0)


WRONG = {
    joined: {"few": "took 0 of 4", "all": "took 4 of 4", "back and forth": "A went to j1 and then p1 and then j1"},
    made: {"table": "tables made: []", "one asks": "not both kinds sent CreateTable", "overwritten": "A was put 3 times",
           "gone": "A was put 1 times"},
    fenced: {"no renew": "no renew was refused", "no checkpoint": "no checkpoint was refused",
             "renew lands": "j1 wrote to A", "checkpoint lands": "j1 wrote to B"},
    gave_up: {"no steal": "nothing was stolen", "lands": "p1 wrote to A", "two heartbeats": "2 heartbeats",
              "delivered": "A was delivered", "no checkpoint": "no checkpoint of A", "not told": "was not told"},
    frozen: {"not taken": "Java took nothing", "write": "p1 wrote (renew) to A", "delivered": "said ['given'] of A",
             "checkpoint": "said ['done', 'checkpoint'] of A", "not told": "said ['nothing'] of A"},
    killed: {"late": "j1 looked 3 times", "other heir": "A went to j2", "not begun": "j1 never began A",
             "earlier": "began at 4:0", "no leases": "p1 had no leases"},
    stopped: {"not released": "p1 left A by checkpoint", "counter": "p1 left A by release", "late": "j1 looked 2 times"},
    expired: {"early": "took A after 4.9 s", "nobody": "nobody took over", "given back": "j1 gave A back"},
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


def test_what_java_was_refused_is_known_while_it_runs():
    hand = ByHand("j1", "p1", A=())
    hand.create(1, "p1", "A")
    hand.write(2, "p1", "A", "renew", refused=True)
    hand.write(3, "j1", "A", "take", refused=True)
    assert proofs.fenced_refusals(hand.rows.writes) == set()
    hand.write(4, "j1", "A", "renew", refused=True)
    assert proofs.fenced_refusals(hand.rows.writes) == {"renew"}
