"""What may be done from the page: the plan first, then exactly that, once the name has been typed."""

import json

import pytest
from fleet_table import at, ended, lease, shard
from ui_page import Browser

from pykcl.errors import ConfigError
from pykcl.ui.actions import destination_of

NAME = "orders-app"


@pytest.fixture
def browser(acting_page) -> Browser:
    return acting_page.browser()


def test_a_plan_writes_nothing(browser, live_table):
    live_table.put(lease(1, "w", at(7)))
    told = browser.job(do="plan-release", key=shard(1))
    assert told["state"] == "done"
    assert told["result"] | {"plan": None} == {
        "plan": None,
        "name": "001",
        "owner": "w",
        "checkpoint": f"{at(7)}",
        "counter": 5,
        "after": 6,
    }
    assert live_table.writes() == []


def test_a_confirmed_plan_releases_the_lease(browser, live_table):
    live_table.put(lease(1, "w", at(7)))
    plan = browser.job(do="plan-release", key=shard(1))["result"]["plan"]
    told = browser.job(do="release", plan=plan, confirm=NAME)
    assert told["result"] == {"outcome": "released", "counter": 6, "owner": None}
    row = live_table.row(1)
    assert (row.owner, row.counter, row.checkpoint) == (None, 6, at(7))
    assert len(live_table.writes()) == 1


@pytest.mark.parametrize("typed", ["", "orders", "ORDERS-APP", "orders-app ", None, 1, ["orders-app"]])
def test_another_name_typed_writes_nothing_and_leaves_the_plan(browser, live_table, typed):
    live_table.put(lease(1, "w"))
    plan = browser.job(do="plan-release", key=shard(1))["result"]["plan"]
    told = browser.job(do="release", plan=plan, confirm=typed)
    assert told["state"] == "refused"
    assert live_table.writes() == []
    assert browser.job(do="release", plan=plan, confirm=NAME)["state"] == "done"


def test_a_plan_is_carried_out_once(browser, live_table):
    live_table.put(lease(1, "w"))
    plan = browser.job(do="plan-release", key=shard(1))["result"]["plan"]
    assert browser.job(do="release", plan=plan, confirm=NAME)["state"] == "done"
    live_table.put(live_table.row(1).with_(owner="w"))
    assert browser.job(do="release", plan=plan, confirm=NAME)["state"] == "refused"
    assert live_table.row(1).owner == "w"


def test_a_lease_that_changed_hands_since_the_plan_is_left_alone(browser, live_table):
    live_table.put(lease(1, "w"))
    plan = browser.job(do="plan-release", key=shard(1))["result"]["plan"]
    live_table.put(lease(1, "v", counter=9))
    told = browser.job(do="release", plan=plan, confirm=NAME)
    assert told["state"] == "refused"
    assert "'v'" in told["problem"]
    assert live_table.row(1).owner == "v"


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"do": 5},
        {"do": "drop-table"},
        {"do": "release"},
        {"do": "release", "plan": "x", "confirm": NAME},
        {"do": "reset", "plan": "x", "confirm": NAME},
        {"do": "plan-release"},
        {"do": "plan-release", "key": 5},
        {"do": "plan-release", "key": "shardId-000000000009"},
        {"do": "plan-release", "key": "shardId-000000000002"},
    ],
)
def test_what_cannot_be_done_is_refused(browser, live_table, asked):
    live_table.put(lease(1, "w"), ended(2))
    assert browser.job(**asked)["state"] == "refused"
    assert live_table.writes() == []


def test_a_plan_for_one_thing_does_not_do_another(browser, live_table):
    live_table.put(lease(1, "w"))
    plan = browser.job(do="plan-release", key=shard(1))["result"]["plan"]
    assert browser.job(do="reset", plan=plan, confirm=NAME)["state"] == "refused"
    assert live_table.writes() == []


def test_hostile_names_in_plans_are_inert(browser, live_table):
    live_table.put(lease(1, "\x1b[31m<script>"))
    told = browser.job(do="plan-release", key=shard(1))
    assert told["result"]["owner"].isprintable()


def test_what_is_no_json_object_is_refused(browser):
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 10_000):
        assert browser.post("/api/jobs", body).status == 400


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"to": "datetime"},
        {"to": "datetime", "value": "yesterday"},
        {"to": "datetime", "value": "2026-11-20T09:00"},
        {"to": "minutes"},
        {"to": "minutes", "value": 0},
        {"to": "minutes", "value": -5},
        {"to": "minutes", "value": True},
        {"to": "minutes", "value": 1e12},
        {"to": "minutes", "value": "90"},
        {"to": "AT_TIMESTAMP"},
    ],
)
def test_a_destination_that_is_none_is_refused(asked):
    with pytest.raises(ConfigError):
        destination_of(asked, 1_000_000_000_000)


def test_destinations_are_what_they_say():
    now = 1_790_000_000_000
    assert destination_of({"to": "earliest"}, now)[0].kind == "earliest"
    assert destination_of({"to": "minutes", "value": 1.5}, now)[0].at_millis == now - 90_000
    assert (
        destination_of({"to": "datetime", "value": "2026-11-20T09:00Z"}, now)[0].at_millis
        == 1_795_165_200_000
    )
    assert (
        json.dumps(destination_of({"to": "datetime", "value": "2026-11-20T09:00Z"}, now)[1])
        == '"to 2026-11-20T09:00Z"'
    )
