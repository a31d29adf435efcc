"""Verdict of the demo: a pass, and every reason for a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pykcl.demo.record_log import Delivery
from pykcl.demo.verdict import Evidence, Kill, Letter, Poison, evaluate

PARENTS = {"s0": (), "s1": (), "s2": ("s0",), "s3": ("s0",), "s4": ("s1", "s1b"), "s1b": ()}


def delivery(
    number: int, shard: str, sequence: int, *, sub: int = 0, at: int = 0, **others: object
) -> Delivery:
    fields = {"worker": "py-1", "run": 1, "id": number, **others}
    return Delivery(shard=shard, sequence=str(sequence), sub=sub, at=at or number, **fields)  # type: ignore[arg-type]


DELIVERIES = [
    delivery(1, "s0", 101),
    delivery(2, "s0", 102),
    delivery(3, "s0", 102, sub=1),
    delivery(4, "s1", 103),
    delivery(5, "s1b", 104),
    delivery(6, "s2", 105),
    delivery(7, "s3", 106),
    delivery(8, "s4", 107),
]
GOOD = Evidence(
    produced={delivery.id: delivery.shard for delivery in DELIVERIES if delivery.id is not None},
    acknowledged=7,
    put_counts={"s0": 2, "s1": 1, "s1b": 1, "s2": 1, "s3": 1, "s4": 1},
    deliveries=DELIVERIES,
    parents=PARENTS,
    kills=(Kill("py-3", ("s0",), undelivered=2, in_progress=1),),
    split_children=("s2", "s3"),
    merge_children=("s4",),
    terminated="py-2",
)


def reasons(**changes: object) -> str:
    verdict = evaluate(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert verdict.passed == (not verdict.reasons)
    return "\n".join(verdict.reasons)


def test_passes_when_everything_was_delivered_in_order_and_the_script_did_what_it_should():
    verdict = evaluate(GOOD)
    assert verdict.reasons == ()
    assert verdict.passed
    assert (verdict.produced, verdict.kinesis_records, verdict.processed) == (8, 7, 8)
    assert (verdict.duplicates, verdict.lost, verdict.out_of_order) == (0, 0, 0)


def test_a_record_delivered_twice_is_a_duplicate_but_not_a_failure():
    again = replace(DELIVERIES[0], worker="py-2", run=2, at=9)
    verdict = evaluate(replace(GOOD, deliveries=[*DELIVERIES, again]))
    assert verdict.passed
    assert verdict.duplicates == 1
    assert verdict.processed == 8


def test_a_user_record_that_was_not_delivered_is_lost_and_its_shard_is_named():
    verdict = evaluate(replace(GOOD, deliveries=[one for one in DELIVERIES if one.id != 3]))
    assert verdict.lost == 1
    assert verdict.reasons == ("1 user records were lost: 1 of s0",)


def test_a_kinesis_record_only_the_server_knows_of_fails():
    assert "s1: the server counted 2 Kinesis records, 1 were delivered" in reasons(
        put_counts={**GOOD.put_counts, "s1": 2}
    )
    assert "the server counted 8 Kinesis records, the producer put 7" in reasons(
        put_counts={**GOOD.put_counts, "s1": 2}
    )


def test_a_record_nobody_produced_fails():
    assert "1 delivered records were never produced" in reasons(
        deliveries=[*DELIVERIES, delivery(99, "s0", 102, sub=2, worker="py-2")]
    )


def test_nothing_produced_fails():
    assert "nothing was produced" in reasons(produced={}, deliveries=[])


def test_a_step_back_within_one_ownership_is_out_of_order():
    late = [delivery(2, "s0", 102), delivery(1, "s0", 101), *DELIVERIES[2:]]
    # Record 1 comes after record 2; record 3 then goes forward again.
    verdict = evaluate(replace(GOOD, deliveries=late))
    assert verdict.out_of_order == 1
    assert "1 deliveries were out of order" in verdict.reasons


def test_the_same_position_twice_within_one_ownership_is_out_of_order():
    assert evaluate(replace(GOOD, deliveries=[DELIVERIES[0], *DELIVERIES])).out_of_order == 1


def test_sub_sequence_numbers_count_for_the_order():
    swapped = [DELIVERIES[0], DELIVERIES[2], DELIVERIES[1], *DELIVERIES[3:]]
    assert evaluate(replace(GOOD, deliveries=swapped)).out_of_order == 1


def test_sequence_numbers_are_compared_as_numbers():
    deliveries = [delivery(1, "s0", 99), *DELIVERIES[1:]]
    assert evaluate(replace(GOOD, deliveries=deliveries)).out_of_order == 0


def test_a_new_owner_may_begin_before_the_place_where_the_old_one_ended():
    again = [replace(one, worker="py-2", run=2, at=20) for one in DELIVERIES[:3]]
    assert evaluate(replace(GOOD, deliveries=[*DELIVERIES, *again])).out_of_order == 0


def test_a_child_delivered_before_its_parents_end_is_out_of_order():
    early = [replace(one, at=1) if one.shard == "s2" else one for one in DELIVERIES]
    assert evaluate(replace(GOOD, deliveries=early)).out_of_order == 1


def test_both_parents_of_a_merge_must_have_ended():
    early = [replace(one, at=4) if one.shard == "s4" else one for one in DELIVERIES]
    assert evaluate(replace(GOOD, deliveries=early)).out_of_order == 1


def test_a_parents_record_delivered_again_after_its_children_is_no_disorder():
    again = replace(DELIVERIES[2], worker="py-2", run=2, at=50)
    assert evaluate(replace(GOOD, deliveries=[*DELIVERIES, again])).out_of_order == 0


def test_a_kill_that_proves_nothing_fails():
    assert "no Python worker was killed" in reasons(kills=())
    assert "py-3 owned no lease when it was killed" in reasons(kills=[Kill("py-3", (), 2, 1)])
    assert "py-3 had no undelivered records" in reasons(kills=[Kill("py-3", ("s0",), 0, 1)])


def test_a_java_worker_counts_only_when_it_delivered_and_was_killed_beside_a_python_worker():
    both = [*GOOD.kills, Kill("java", ("s1",), undelivered=2, in_progress=1)]
    delivered = [replace(one, worker="java") if one.shard == "s1" else one for one in DELIVERIES]
    assert reasons(java="java", kills=both, deliveries=delivered) == ""
    assert "java was not killed" in reasons(java="java", deliveries=delivered)
    assert "no Python worker was killed" in reasons(java="java", kills=both[1:], deliveries=delivered)
    assert "java delivered nothing" in reasons(java="java", kills=both)
    assert "java owned no lease" in reasons(java="java", kills=[*GOOD.kills, Kill("java", (), 2, 1)])


def test_no_sigterm_fails():
    assert "no worker was stopped by SIGTERM" in reasons(terminated=None)


def test_children_that_delivered_nothing_fail():
    silent = [one for one in DELIVERIES if one.shard not in ("s3", "s4")]
    text = reasons(deliveries=silent)
    assert "s3, child of the split, delivered nothing" in text
    assert "s4, child of the merge, delivered nothing" in text


def test_a_reshard_without_its_children_fails():
    assert "the split created 1 shards instead of 2" in reasons(split_children=("s2",))
    assert "the merge created 0 shards instead of 1" in reasons(merge_children=())


def test_another_problem_fails_even_when_nothing_was_lost():
    assert reasons(problems=("waited 30 s in vain",)) == "waited 30 s in vain"


# -- the poison record -----------------------------------------------------------------------------------------

REDRIVEN = replace(DELIVERIES[0], worker="redrive", run=0, at=90)
POISON = Poison(frozenset([1]), [Letter("a", (1,))], [REDRIVEN])
BY_WORKERS = DELIVERIES[1:]


def poison_reasons(deliveries: Sequence[Delivery] = BY_WORKERS, **changes: object) -> str:
    return reasons(deliveries=deliveries, poison=replace(POISON, **changes))  # type: ignore[arg-type]


def test_a_poison_record_that_was_kept_and_redriven_counts_as_processed_and_keeps_no_child_waiting():
    verdict = evaluate(replace(GOOD, deliveries=BY_WORKERS, poison=POISON))
    assert verdict.passed
    assert (verdict.processed, verdict.lost, verdict.duplicates, verdict.out_of_order) == (8, 0, 0, 0)
    assert (verdict.dead_letters, verdict.redriven) == (1, 1)


def test_a_lost_poison_record_fails():
    text = poison_reasons(letters=[], redriven=[])
    assert "1 user records were lost: 1 of s0" in text
    assert "poison record 1 is in 0 dead letters instead of 1" in text


def test_a_poison_record_that_was_kept_but_not_redriven_fails():
    assert "poison record 1 was not redriven" in poison_reasons(redriven=[])


def test_a_poison_record_in_two_letters_fails_but_a_copy_of_the_same_letter_does_not():
    twice = [Letter("a", (1,)), Letter("b", (1,))]
    assert poison_reasons(letters=twice) == "poison record 1 is in 2 dead letters instead of 1"
    assert poison_reasons(letters=[Letter("a", (1,)), Letter("a", (1,))]) == ""


def test_another_record_in_the_letters_fails():
    assert poison_reasons(letters=[Letter("a", (1, 2))]) == "1 records in the dead letters are not poison"
    both = [*POISON.letters, Letter("b", (None,))]
    assert poison_reasons(letters=both) == "1 records in the dead letters are not poison"


def test_a_redriven_record_that_was_in_no_letter_fails():
    assert "1 redriven records were in no dead letter" in poison_reasons(redriven=[REDRIVEN, DELIVERIES[3]])


def test_a_poison_record_that_a_worker_processed_fails():
    assert poison_reasons(DELIVERIES) == "the workers processed poison records 1 times"


def test_a_run_in_which_no_poison_was_put_fails():
    assert "no poison record was put" in reasons(poison=Poison(frozenset(), [], []))
