"""What is told between two looks at a table whose rows are written by hand."""

import pytest
from fleet_table import at, ended, lease, shard

from pykcl.model.lease import PykclMetadata
from pykcl.operate.hints import MAX_PER_KIND, changes_between
from pykcl.operate.states import NO_MARKS, LeaseState, LeaseStatus
from pykcl.ui.view import ViewBuilder, event_of


def status(one, state=LeaseState.ACTIVE, unmoved_for=0.0):
    return LeaseStatus(one.key, state, one, 0, unmoved_for)


def told(before, after):
    found = changes_between({one.key: one for one in before}, {one.key: one for one in after})
    return [(edge.kind, edge.before, edge.after, edge.text, edge.tone) for edge in found]


def kinds(before, after):
    return [one[0] for one in told(before, after)]


def test_nothing_is_told_of_what_only_goes_on():
    before, after = lease(1, "a", at(1)), lease(1, "a", at(2), counter=6)
    assert told([status(before)], [status(after)]) == []


def test_an_owner_that_stood_still_and_was_replaced_is_told_with_both_and_why():
    before = status(lease(1, "a"), LeaseState.STALE, unmoved_for=12)
    ((kind, old, new, text, _),) = told([before], [status(lease(1, "b", counter=6))])
    assert (kind, old, new) == ("taken over", "a", "b")
    assert "12 s" in text


def test_a_lease_taken_from_a_living_owner_is_not_said_to_have_stood_still():
    ((kind, _, _, text, _),) = told([status(lease(1, "a"))], [status(lease(1, "b", counter=6))])
    assert (kind, text) == ("taken over", "changed hands")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (status(lease(1, "a")), status(lease(1, None)), "released"),
        (status(lease(1, None)), status(lease(1, "a")), "taken"),
        (status(lease(1, "a")), status(ended(1, 2)), "ended"),
        (status(lease(1, "a")), status(lease(1, "a"), LeaseState.STALE, 9), "stale"),
        (status(lease(1, "a"), LeaseState.STALE, 9), status(lease(1, "a", counter=6)), "alive"),
        (status(lease(1, "a", at(5))), status(lease(1, "a", at(4))), "moved"),
        (status(ended(1, 2)), status(lease(1, None, at(4))), "moved"),
        (status(lease(1, "a")), LeaseStatus(shard(1), LeaseState.UNREADABLE), "unreadable"),
    ],
)
def test_each_change_is_told_once(before, after, kind):
    assert kinds([before], [after]) == [kind]


def test_new_rows_and_deleted_ones_are_told():
    child = lease(2, None, parents=(shard(1),))
    ((kind, _, _, text, _),) = told([], [status(child)])
    assert (kind, text) == ("new", "new lease, from 001")
    assert told([status(ended(1))], [])[0][0] == "cleaned up"
    assert told([status(lease(1, "a"))], [])[0][::4] == ("deleted", "bad")


def test_the_row_of_a_shard_that_is_read_by_enhanced_fan_out_has_its_consumer():
    note = PykclMetadata(owner="a", consumer="my\x1bconsumer")
    states = {
        shard(1): status(lease(1, "a").with_(metadata=note)),
        shard(2): status(lease(2, "b").with_(metadata=note)),
    }
    rows = ViewBuilder().view(states, {}, {}, NO_MARKS, 0).rows
    assert rows[shard(1)]["consumer"] == "my\\x1bconsumer"
    assert "consumer" not in rows[shard(2)], "the note is of another owner"


def test_a_thousand_of_a_kind_are_a_few_lines_and_a_count():
    before = [status(lease(number, "a")) for number in range(1000)]
    after = [status(lease(number, "a"), LeaseState.STALE, 9) for number in range(1000)]
    found = told(before, after)
    assert len(found) == MAX_PER_KIND + 1
    assert str(1000 - MAX_PER_KIND) in found[-1][3]
    assert found[-1][4] == "bad"


def test_names_in_events_are_inert():
    evil = "\x1b]0;x\x07<script>"
    (edge,) = changes_between({shard(1): status(lease(1, evil))}, {shard(1): status(lease(1, "b"))})
    shown = event_of(edge, NO_MARKS, 5)["before"]["name"]
    assert shown.isprintable()
    assert "<script>" in shown
