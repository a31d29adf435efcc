"""Every write of the protocol over every DynamoDB we have: kept, lost or unknown, alone and beside other writers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from lease_backend import answered, timed_out
from lease_writes import BARE, ENDED, FREE, HELD, KEY, NEW, NOTE, WRITES, plain, taken_over

from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import ForeignRow, Lease, PykclMetadata, UnreadableRow
from pykcl.model.lease_writes import parse_row, to_item
from pykcl.model.shard import HashRange

NEVER = float("inf")
FIXTURES = Path(__file__).parents[1] / "fixtures"
EVERY = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
FENCED = pytest.mark.parametrize(
    "write",
    [one for one in WRITES.values() if one.kind != "fill"],
    ids=[name for name, one in WRITES.items() if one.kind != "fill"],
)
UPDATES = pytest.mark.parametrize(
    "write",
    [one for one in WRITES.values() if one.kind not in ("create", "delete")],
    ids=[name for name, one in WRITES.items() if one.kind not in ("create", "delete")],
)
OF_A_HOLDER = pytest.mark.parametrize("name", ["checkpoint", "prepare", "end", "release"])


def seed(service, write):
    if write.kind != "create":
        service.put(write.seen)


def after(write):
    return None if write.after is None else plain(to_item(write.after))


def assert_kept(service, write, answer):
    assert isinstance(answer, Applied)
    assert plain(service.item(KEY)) == after(write)
    assert (None if answer.lease is None else plain(to_item(answer.lease))) == after(write)


@EVERY
def test_a_write_on_the_row_as_seen_is_kept_and_changes_exactly_what_it_says(service, write):
    seed(service, write)
    assert_kept(service, write, service.write(write))
    assert len(service.writes) == 1


@FENCED
def test_a_write_on_a_row_another_worker_changed_is_lost_and_changes_nothing(service, write):
    theirs = taken_over(write)
    service.put(theirs)
    answer = service.write(write)
    assert isinstance(answer, Rejected)
    assert plain(to_item(answer.row)) == plain(to_item(theirs))
    assert plain(service.item(KEY)) == plain(to_item(theirs))


@pytest.mark.parametrize("kind", ["renew", "checkpoint", "prepare", "end", "release"])
def test_who_is_asked_to_hand_over_goes_on_writing_and_a_release_is_the_hand_over(service, kind):
    """A leader of KCL 3.x names the next owner and moves no counter."""
    write = WRITES[kind]
    service.put(write.seen.with_(owner="next", checkpoint_owner="me"))
    answer = service.write(write)
    assert isinstance(answer, Applied)
    row = service.table.read(KEY)
    assert row == answer.lease
    assert row.counter == write.seen.counter + 1
    assert (row.owner, row.checkpoint_owner) == {
        "end": (None, None),
        "release": ("next", None),
    }.get(kind, ("next", "me"))
    assert row.checkpoint == write.after.checkpoint


@FENCED
def test_a_write_whose_owner_changed_without_the_counter_is_lost(service, write):
    handed_over = write.seen.with_(owner="next", checkpoint_owner="somebody else")
    service.put(handed_over)
    answer = service.write(write)
    assert isinstance(answer, Rejected)
    assert plain(service.item(KEY)) == plain(to_item(handed_over))


@UPDATES
def test_a_write_on_a_missing_row_is_lost_and_creates_nothing(service, write):
    assert service.write(write) == Rejected(None)
    assert service.items() == {}


def test_deleting_a_missing_row_is_kept(service):
    assert service.write(WRITES["delete-ended"]) == Applied(None, confirmed_by_read=True)
    assert service.items() == {}


@EVERY
def test_a_write_applied_with_its_answer_lost_is_settled_as_kept(service, write):
    seed(service, write)
    service.client.faults.append("lose")
    assert_kept(service, write, service.write(write))
    assert len(service.writes) == 2


@EVERY
def test_a_write_that_never_arrived_is_sent_again(service, write):
    seed(service, write)
    service.client.faults.append("drop")
    assert_kept(service, write, service.write(write))
    assert len(service.writes) == 2


@EVERY
def test_a_write_that_failed_at_the_server_or_was_throttled_is_sent_again(service, write):
    seed(service, write)
    service.client.faults.extend(
        [
            answered("InternalServerError", 500),
            answered("ProvisionedThroughputExceededException"),
        ]
    )
    assert_kept(service, write, service.write(write))


@EVERY
def test_a_write_that_is_never_answered_is_unknown_at_its_deadline(service, write):
    seed(service, write)
    before = service.items()
    service.client.always = "drop"
    began = service.runtime.now
    answer = service.write(write, seconds=3.0)
    assert isinstance(answer, Unknown)
    assert "ReadTimeoutError" in answer.cause
    assert service.items() == before
    assert began + 1.0 < service.runtime.now < began + 3.5


@EVERY
def test_an_unknown_write_that_was_applied_is_kept_when_sent_again_later(service, write):
    seed(service, write)
    service.client.faults.append("lose")
    service.client.always = "drop"
    assert isinstance(service.write(write, seconds=1.0), Unknown)
    service.client.always = "ok"
    assert_kept(service, write, service.write(write))


@FENCED
def test_an_applied_write_with_its_answer_lost_is_lost_once_another_worker_took_over(service, write):
    seed(service, write)
    theirs = (write.after or HELD).with_(owner="you", counter=99)
    service.client.faults.extend(["lose", lambda: service.put(theirs)])
    answer = service.write(write)
    assert isinstance(answer, Rejected)
    assert plain(service.item(KEY)) == plain(to_item(theirs))


@UPDATES
def test_an_applied_write_with_its_answer_lost_is_lost_once_its_row_was_deleted(service, write):
    seed(service, write)
    service.client.faults.extend(["lose", lambda: service.delete(KEY)])
    assert service.write(write) == Rejected(None)
    assert service.items() == {}


@OF_A_HOLDER
def test_a_renewal_of_ours_that_landed_late_is_adopted_and_the_write_sent_again(service, name):
    write = WRITES[name]
    service.put(lease_writes.renew(HELD).after)
    answer = service.write(write)
    assert isinstance(answer, Applied)
    assert answer.lease.counter == HELD.counter + 2
    assert plain(service.item(KEY)) == plain(
        {**to_item(write.after), "leaseCounter": {"N": str(HELD.counter + 2)}}
    )


def test_an_adopted_write_with_its_answer_lost_is_still_settled(service):
    service.put(lease_writes.renew(HELD).after)
    service.client.faults.extend(["ok", "lose", "drop"])
    answer = service.write(WRITES["checkpoint"])
    assert isinstance(answer, Applied)
    assert answer.lease.checkpoint == Checkpoint("12", 1)
    assert service.item(KEY)["leaseCounter"] == {"N": str(HELD.counter + 2)}


def test_an_adopted_write_that_stays_unknown_tells_the_row_to_go_on_from(service):
    landed = lease_writes.renew(HELD).after
    service.put(landed)

    def drop_all_but_the_first():
        if service.writes[1:]:
            raise timed_out()

    service.client.always = drop_all_but_the_first
    answer = service.write(WRITES["checkpoint"], seconds=1.0)
    assert isinstance(answer, Unknown)
    assert plain(to_item(answer.seen)) == plain(to_item(landed))


def test_a_checkpoint_never_undoes_an_own_later_one_that_landed_late(service):
    service.put(lease_writes.checkpoint(HELD, Checkpoint("20")).after)
    late = replace(WRITES["checkpoint"], unanswered=frozenset({Checkpoint("20")}))
    answer = service.write(late)
    assert isinstance(answer, Applied)
    assert answer.lease.checkpoint == Checkpoint("20")
    assert service.item(KEY)["checkpoint"] == {"S": "20"}


def test_an_identical_row_created_by_a_peer_counts_as_created(service):
    peer = lease_writes.create(NEW.with_(metadata=PykclMetadata(NOTE.stream_arn, owner="you", version="9")))
    assert isinstance(service.write(peer), Applied)
    answer = service.write(WRITES["create"])
    assert isinstance(answer, Applied)
    assert service.item(KEY) == service.item(KEY) | to_item(peer.after)


def test_a_take_starts_from_the_row_as_it_is_not_as_it_was_seen(service):
    service.put(FREE.with_(checkpoint=Checkpoint("15"), children=("c",)))
    answer = service.write(WRITES["take-unowned"])
    assert answer.lease.checkpoint == Checkpoint("15")
    assert answer.lease.children == ("c",)


@pytest.mark.parametrize("owner", [{"NULL": True}, {"S": ""}])
def test_a_row_whose_owner_is_null_typed_or_empty_can_be_taken(service, owner):
    service.put_item({**to_item(FREE), "leaseOwner": owner})
    seen = service.table.read(KEY)
    answer = service.write(lease_writes.take(seen, "me", NOTE))
    assert isinstance(answer, Applied)
    assert service.item(KEY)["leaseOwner"] == {"S": "me"}


def test_deleting_asks_again_whether_the_row_has_ended_and_is_a_lease(service):
    not_ended = {**to_item(ENDED), "checkpoint": {"S": "5"}}
    for item in (not_ended, {**to_item(ENDED), "entityType": {"S": "STREAM"}}):
        service.put_item(item)
        assert isinstance(service.write(WRITES["delete-ended"]), Rejected)
        assert plain(service.item(KEY)) == plain(item)


LACKING = {
    "neither": {},
    "null": {"startingHashKey": {"NULL": True}, "endingHashKey": {"NULL": True}},
    "half": {"startingHashKey": {"S": "0"}},
    "half-and-null": {"startingHashKey": {"NULL": True}, "endingHashKey": {"S": "7"}},
}


def bare_with(attributes):
    return {**to_item(BARE), **attributes}


@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING)
def test_a_hash_range_is_filled_into_a_row_that_lacks_it_in_whatever_way(service, lacking):
    service.put_item(bare_with(lacking))
    answer = service.write(lease_writes.fill_hash_range(service.table.read(KEY), HashRange(0, 9)))
    assert isinstance(answer, Applied)
    assert answer.lease.hash_range == HashRange(0, 9)
    filled = {"startingHashKey": {"S": "0"}, "endingHashKey": {"S": "9"}}
    assert plain(service.item(KEY)) == plain(bare_with(filled))


@pytest.mark.parametrize("now", LACKING.values(), ids=LACKING)
@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING)
def test_a_hash_range_is_not_filled_into_a_row_that_lacks_it_in_another_way_than_was_seen(
    service, lacking, now
):
    service.put_item(bare_with(lacking))
    write = lease_writes.fill_hash_range(service.table.read(KEY), HashRange(0, 9))
    service.put_item(bare_with(now))
    assert isinstance(service.write(write), Applied if now == lacking else Rejected)
    assert (plain(service.item(KEY)) == plain(bare_with(now))) == (now != lacking)


def test_a_hash_range_is_filled_in_whatever_the_owner_did_meanwhile_and_leaves_that_as_it_is(service):
    theirs = BARE.with_(counter=99, checkpoint=Checkpoint("77", 1), owner="they")
    service.put(theirs)
    assert isinstance(service.write(WRITES["fill"]), Applied)
    assert plain(service.item(KEY)) == plain(to_item(theirs.with_(hash_range=HashRange(0, 9))))


def test_after_a_hash_range_was_filled_in_its_owner_writes_on(service):
    held = BARE.with_(owner="me")
    service.put(held)
    assert isinstance(service.write(WRITES["fill"]), Applied)
    renewed = service.write(lease_writes.renew(held))
    assert isinstance(renewed, Applied)
    assert renewed.lease.hash_range == HashRange(0, 9)


def test_a_hash_range_that_a_peer_filled_in_first_is_kept_and_another_one_is_not_written_over(service):
    for theirs, expected in ((HashRange(0, 9), Applied), (HashRange(0, 8), Rejected)):
        service.put(BARE.with_(hash_range=theirs))
        assert isinstance(service.write(WRITES["fill"]), expected)
        assert service.table.read(KEY).hash_range == theirs


def test_a_hash_range_is_not_filled_into_a_row_of_that_key_that_is_no_lease(service):
    not_leases = (
        {"leaseKey": {"S": KEY}},
        {"leaseKey": {"S": KEY}, "checkpoint": {"S": "12"}},
        {**to_item(BARE), "entityType": {"S": "STREAM"}},
    )
    for item in not_leases:
        service.put_item(item)
        assert isinstance(service.write(WRITES["fill"]), Rejected)
        assert plain(service.item(KEY)) == plain(item)


def test_foreign_and_unreadable_rows_of_real_fleets_are_never_changed(service):
    path = FIXTURES / "java-3.5.1-compatible-with-2x.jsonl"
    items = {
        entry["item"]["leaseKey"]["S"]: entry["item"]
        for entry in map(json.loads, path.read_text().splitlines())
    }
    items["shardId-broken"] = {"leaseKey": {"S": "shardId-broken"}, "leaseOwner": {"S": "me"}}
    foreign = {key: item for key, item in items.items() if not isinstance(parse_row(item), Lease)}
    assert len(foreign) == 3
    for item in foreign.values():
        service.put_item(item)
    before = service.items()
    for key in foreign:
        for write in WRITES.values():
            forged = write.seen.with_(key=key)
            again = {
                "create": lease_writes.create,
                "delete": lambda lease: lease_writes.delete(lease, ended=False),
                "take": lambda lease: lease_writes.take(lease, "me"),
                "reset": lambda lease: lease_writes.reset(lease, lease.checkpoint),
                "fill": lambda lease: lease_writes.fill_hash_range(lease, HashRange(0, 9)),
            }.get(write.kind, lease_writes.renew)(forged)
            answer = service.write(again)
            assert isinstance(answer, Rejected)
            assert isinstance(answer.row, ForeignRow | UnreadableRow)
    assert service.items() == before
    assert not any(isinstance(row, Lease) for row in service.table.scan().rows)


def test_a_scan_reads_every_golden_row_and_what_it_cost(service):
    path = FIXTURES / "java-3.5.1-phase1-with-2.7.2.jsonl"
    items = {
        entry["item"]["leaseKey"]["S"]: entry["item"]
        for entry in map(json.loads, path.read_text().splitlines())
    }
    for item in items.values():
        service.put_item(item)
    service.put(HELD.with_(key="with-binary"))
    scan = service.table.scan()
    found = {row.key: row for row in scan.rows}
    assert found.keys() == items.keys() | {"with-binary"}
    assert found["with-binary"].pending == HELD.pending
    assert found["with-binary"].extra == HELD.extra
    assert scan.read_units > 0


def test_a_row_is_the_same_through_a_scan_and_through_a_read(service):
    service.put(HELD)
    assert service.table.scan().rows == (service.table.read(KEY),)


def test_a_read_of_a_missing_row_is_none(service):
    assert service.table.read("nothing") is None
