"""What the page is told over HTTP: whole once, then changes that lead to the very same."""

import asyncio
import json

import pytest
from fleet_table import JAVA, at, ended, lease, metrics_item, note, shard
from ui_page import Page

from pykcl.errors import SetupError, TemporaryError
from pykcl.model.shard import Shard
from pykcl.operate.lag import ShardLag
from pykcl.operate.snapshot import MAX_SHOWN, TableSnapshot
from pykcl.operate.states import COLOURS, SHAPES, mark_of
from pykcl.ui.poller import QUIET_PAUSE, Fleet, FleetPoller, LagPoller
from pykcl.ui.state_store import MAX_WAITING, VISIT_SECONDS, Broadcast, Rates, StateStore

EVIL = [
    "<script>document.title='owned'</script>",
    "\x1b]0;owned\x07\x1b[31m",
    "[bold red]markup[/]\u202egnp.exe",
    "=cmd|' /C calc'!A0",
    "line\nevent: whole\ndata: {}\n\n",
    "x" * 5000,
]


def watching(table, clock, **more):
    frames = []
    memory = StateStore(clock)
    made = FleetPoller(
        Fleet(application="orders-app", failover=10.0), table.scanner, clock, memory,
        rates=Rates(asks_workers=False), publish=lambda number, frame: frames.append((number, frame)), **more,
    )  # fmt: skip
    return made, frames


async def _next(frames):
    return await frames.__anext__()


def told(frames):
    return [json.loads(frame.decode().split("data: ", 1)[1]) for _, frame in frames]


def test_a_lease_is_told_with_owner_state_family_and_mark(table, clock):
    table.put(
        ended(0, 2),
        lease(1, "py-1", at(7), metadata=note("py-1")),
        lease(2, JAVA, parents=(shard(0),)),
        lease(3, None, parents=(shard(1),)),
    )
    made, _ = watching(table, clock)
    made.step()
    clock.now += 2
    table.renew(1, 2)
    made.step()
    whole = made.memory.whole()[1]
    rows = {row["name"]: row for row in whole["rows"].values()}
    assert {name: row["state"] for name, row in rows.items()} == {
        "000": "ENDED",
        "001": "ACTIVE",
        "002": "ACTIVE",
        "003": "WAITING",
    }
    assert rows["003"]["waits"] == [shard(1)]
    owner = whole["owners"]["py-1"]
    assert (COLOURS[owner["colour"]], SHAPES[owner["shape"]]) == (
        mark_of("py-1").colour,
        mark_of("py-1").shape,
    )
    assert (owner["kind"], owner["version"], owner["leases"]) == ("pykcl", "0.1.0", 1)
    assert whole["owners"][JAVA]["kind"] == "unknown"
    assert whole["facts"]["counts"] == {"ENDED": 1, "ACTIVE": 2, "WAITING": 1}


def test_a_stale_owner_is_told_and_makes_an_event(table, clock):
    table.put(lease(1, "w"), lease(2, "v"))
    made, frames = watching(table, clock)
    made.step()
    for _ in range(6):
        clock.now += 2
        table.renew(2)
        made.step()
    whole = made.memory.whole()[1]
    assert whole["rows"][shard(1)]["state"] == "STALE"
    assert whole["rows"][shard(2)]["state"] == "ACTIVE"
    (event,) = [event for event in whole["events"] if event["kind"] == "stale"]
    assert (event["shard"], event["before"]["name"], event["tone"]) == (shard(1), "w", "bad")
    assert sum("stale" in str(one.get("events")) for one in told(frames)) == 1


def test_changes_add_up_to_the_whole(table, clock):
    table.put(lease(1, "w"), lease(2, "v"), lease(3, None))
    made, frames = watching(table, clock)
    made.step()
    for change in (
        lambda: table.renew(1),
        lambda: table.put(lease(3, "u", counter=6)),
        lambda: table.put(ended(2, 4), lease(4, None, parents=(shard(2),))),
    ):
        clock.now += 1
        change()
        made.step()
    rows, owners, spans, events = {}, {}, {}, []
    for change in told(frames):
        rows |= change.get("rows", {})
        owners |= change.get("owners", {})
        events += change.get("events", [])
        for key in change.get("gone", ()):
            del rows[key]
        for key, span in change.get("spans", {}).items():
            spans.setdefault(key, []).append(span)
    whole = json.loads(json.dumps(made.memory.whole()[1]))
    assert (rows, owners, spans, events) == (whole["rows"], whole["owners"], whole["spans"], whole["events"])
    assert [number for number, _ in frames] == list(range(1, len(frames) + 1))


def test_a_row_that_has_not_changed_is_not_told_again(table, clock):
    table.put(lease(1, "w"), lease(2, "v"))
    made, frames = watching(table, clock)
    made.step()
    clock.now += 1
    table.renew(2)
    made.step()
    assert list(told(frames)[-1]["rows"]) == [shard(2)]


def test_a_fleet_of_3x_is_told_with_leader_and_members_and_again_only_when_it_changes(table, clock):
    begun, at_first = clock.utcnow_millis(), clock.now
    clock.utcnow_millis = lambda: begun + round((clock.now - at_first) * 1000)
    table.lead("j1")
    table.put(lease(1, "j1", throughput="12.5"), lease(2, "j1", checkpoint_owner="guest"))
    table.report("j1", ago=5, sts={"C": [12.4]}, opr={"C": [100]})
    made, frames = watching(table, clock)
    made.step()
    whole = made.memory.whole()[1]
    fleet = whole["facts"]["fleet"]
    assert (fleet["native"], fleet["leader"], fleet["lacksLeader"], fleet["skew"]) == (True, "j1", False, 0)
    assert fleet["lockSince"] == begun
    guest, j1 = fleet["members"]
    assert (guest["name"], guest["standing"], guest["reported"], guest["metrics"]) == (
        "guest",
        "no report",
        None,
        None,
    )
    assert (j1["leads"], j1["leases"], j1["metrics"]) == (True, 1, "CPU 12 %")
    assert j1["reported"] == pytest.approx(begun / 1000 - 5, abs=1)
    assert whole["rows"][shard(1)]["kib"] == 12.5
    assert (whole["rows"][shard(2)]["owner"], whole["rows"][shard(2)]["nextName"]) == ("guest", "j1")
    for _ in range(3):
        clock.now += 3
        made.step()
        assert made.memory.whole()[1]["facts"]["fleet"] == fleet
    table.lead("j1", "v2")
    clock.now += 1
    made.step()
    assert told(frames)[-1]["facts"]["fleet"]["lockSince"] == begun + 10_000
    clock.now += 61
    made.step()
    fleet = told(frames)[-1]["facts"]["fleet"]
    assert fleet["lacksLeader"]
    assert [one["standing"] for one in fleet["members"]] == ["no report", "silent"]


def test_any_other_fleet_has_none_and_hostile_rows_of_3x_are_inert(table, clock):
    table.put(lease(1, "w"))
    made, _ = watching(table, clock)
    made.step()
    assert made.memory.whole()[1]["facts"]["fleet"] is None
    table.lead(EVIL[1])
    for name in EVIL[:5]:
        table.put_item(**metrics_item(name, 10**11, {name: [1]}, {name: [100]}))
    made.step()
    fleet = made.memory.whole()[1]["facts"]["fleet"]
    texts = [
        fleet["leader"],
        *(member[key] for member in fleet["members"] for key in ("name", "why", "metrics")),
    ]
    assert len(texts) == 1 + 3 * 6
    assert all(text is None or text.isprintable() for text in texts)


def test_trouble_with_the_table_is_told_once_and_what_was_known_stays(table, clock):
    table.put(lease(1, "w"))
    made, _ = watching(table, clock)
    made.step()
    scan, made._sampler._scan = (
        made._sampler._scan,
        lambda: (_ for _ in ()).throw(TemporaryError("AWS is away")),
    )
    made.step()
    made.step()
    whole = made.memory.whole()[1]
    assert "AWS is away" in whole["facts"]["problem"]
    assert shard(1) in whole["rows"]
    assert [event["kind"] for event in whole["events"]] == ["trouble"]
    made._sampler._scan = scan
    made.step()
    whole = made.memory.whole()[1]
    assert whole["facts"]["problem"] == ""
    assert [event["tone"] for event in whole["events"]] == ["bad", "good"]


def test_a_table_that_is_not_there_is_told_and_looked_for_again(table, clock):
    made, _ = watching(table, clock)
    made._sampler._scan = lambda: (_ for _ in ()).throw(SetupError("There is no lease table"))
    made.step()
    assert "no lease table" in made.memory.whole()[1]["facts"]["problem"]


def test_every_name_out_of_the_table_is_shown_inert(live_table):
    live_table.put(*[lease(number, evil) for number, evil in enumerate(EVIL)])
    for number, evil in enumerate(EVIL[:5]):
        live_table.put_item(
            leaseKey={"S": evil},
            leaseCounter={"N": "1"},
            checkpoint={"S": "TRIM_HORIZON"},
            checkpointSubSequenceNumber={"N": "0"},
            ownerSwitchesSinceCheckpoint={"N": str(number)},
        )
    with Page(live_table) as page:
        browser = page.browser()
        whole = browser.state(lambda told: len(told["rows"]) >= 11)
        for row in whole["rows"].values():
            assert row["name"].isprintable()
        for owner in whole["owners"].values():
            assert owner["name"].isprintable()
            assert len(owner["name"]) <= MAX_SHOWN
        for hint in whole["facts"]["hints"]:
            assert hint.isprintable()
        text = browser.get("/api/state").body
        assert text.isascii()
        assert b"\x1b" not in text
        # A name with lines in it makes no event of its own.
        live_table.renew(4)
        found = browser.events(lambda events: len(events) >= 3)
        assert [kind for kind, _ in found] == ["whole", *["change"] * (len(found) - 1)]
        assert all(told for _, told in found)


def test_a_viewer_is_told_the_whole_and_then_changes_only(live_table):
    live_table.put(lease(1, "w"))
    with Page(live_table) as page:
        browser = page.browser()
        browser.state(lambda told: told["rows"])

        def taken(events):
            if len(events) == 1:
                live_table.put(live_table.row(1).with_(owner="v", counter=20))
            return any(
                event["kind"] == "taken over" for _, told in events for event in told.get("events", ())
            )

        found = browser.events(taken)
        assert found[0][0] == "whole"
        assert found[0][1]["rows"][shard(1)]["owner"] == "w"
        assert found[-1][0] == "change"
        assert found[-1][1]["rows"][shard(1)]["owner"] == "v"


def test_lag_is_asked_of_what_can_be_read_and_told_with_its_source(live_table):
    live_table.put(lease(1, "w"), ended(0, 1), lease(2, None, parents=(shard(1),)))
    with Page(live_table) as page:
        page.lags.behind[shard(1)] = 42.0
        browser = page.browser()
        whole = browser.state(lambda told: told["rows"].get(shard(1), {}).get("lag"))
        assert whole["rows"][shard(1)]["lag"]["behind"] == 42.0
        assert whole["rows"][shard(1)]["lag"]["source"] == "Kinesis"
        assert "lag" not in whole["rows"][shard(0)]
        assert "lag" not in whole["rows"][shard(2)]
        assert list(whole["lag"]) == [shard(1)]
        assert "5 reads a second" in whole["facts"]["lagSource"]


def test_a_shard_without_a_lease_is_shown_with_its_lag_and_what_it_waits_for(live_table):
    live_table.put(lease(1, "w"))
    with Page(live_table) as page:
        page.lags.shards = [Shard(shard(1), ending_sequence_number="9"), Shard(shard(2), (shard(1),))]
        page.lags.behind[shard(2)] = 40.0
        browser = page.browser()
        whole = browser.state(lambda told: told["rows"].get(shard(2), {}).get("lag"))
        row = whole["rows"][shard(2)]
        assert (row["state"], row["what"]) == ("NO LEASE", f"waits for the end of {shard(1)}")
        assert (row["lag"]["behind"], row["waits"]) == (40.0, [shard(1)])
        assert whole["facts"]["counts"]["NO LEASE"] == 1
        assert any("002 has no lease" in hint for hint in whole["facts"]["hints"])
        live_table.put(ended(1, 2), lease(2, "w", parents=(shard(1),)))
        whole = browser.state(lambda told: told["rows"][shard(2)].get("owner"))
        assert "NO LEASE" not in whole["facts"]["counts"]


def test_shards_that_cannot_be_listed_leave_the_lag_of_the_leases(clock):
    class Source:
        cost = ""

        def lags(self, leases):
            return {one.key: ShardLag(3.0) for one in leases}

        def unleased(self, leases, unreadable):
            raise SetupError("listing the shards is not permitted")

    poller = LagPoller(Source, 1.0, clock)
    seen = lease(1, "py-1", at(7))
    poller.watch([seen], TableSnapshot({seen.key: seen}))
    poller._problem = poller._round([seen])
    assert poller.latest()[seen.key].behind == 3.0
    assert "Shards without a lease are not shown" in poller.problem


def test_without_a_source_lag_is_not_made_up(live_table):
    live_table.put(lease(1, "w"))
    with Page(live_table, lags=None) as page:
        whole = page.browser().state(lambda told: told["rows"])
        assert "lag" not in whole["rows"][shard(1)]
        assert "not measured" in whole["facts"]["lagSource"]


def test_looks_are_seldom_while_nobody_looks(table, clock):
    made, _ = watching(table, clock, is_watched=lambda: len(pauses) % 2 == 0)
    pauses = []

    class Waits:
        def clear(self):
            return

        def is_set(self):
            return len(pauses) == 4

        def wait(self, seconds):
            pauses.append(round(seconds))

    made._over = made._hurry = Waits()
    table.put(lease(1, "w"))
    made._run()
    assert pauses == [1, QUIET_PAUSE, 1, QUIET_PAUSE]


def test_who_has_the_page_open_or_asks_for_the_state_is_looked_for():
    now = [100.0]
    hub = Broadcast(lambda: (0, {}), now=lambda: now[0])
    assert not hub.is_watched
    assert hub.visit()
    assert not hub.visit()
    assert hub.is_watched
    now[0] += VISIT_SECONDS
    assert not hub.is_watched


def test_a_viewer_that_takes_nothing_is_cut_off_and_the_others_go_on():
    async def scene():
        hub = Broadcast(lambda: (0, {"rows": {}}))
        hub.start(asyncio.get_running_loop())
        slow, quick = hub.frames(), hub.frames()
        for one in (slow, quick):
            await _next(one)
            await _next(one)
        for number in range(1, MAX_WAITING + 5):
            hub._spread(number, b"x%d" % number)
            assert await _next(quick) == b"x%d" % number
        rest = [frame async for frame in slow]
        assert rest == []
        assert hub.viewers == 1
        await quick.aclose()

    asyncio.run(scene())


def test_the_look_that_a_newcomer_asks_for_knows_of_the_newcomer(page):
    """Else the next pause would be the long one of a page that nobody has open."""
    hub, watching = page.server._hub, page.server._watching
    seen = []
    hurry = watching.hurry
    watching.hurry = lambda: (seen.append(hub.is_watched), hurry())
    page.browser().events(lambda events: events)
    assert seen == [True]


def test_a_change_that_is_in_the_whole_already_is_not_told_again():
    async def scene():
        def whole():
            # While it is made, two changes are published; one is in it already.
            for number in (7, 8):
                hub.publish(number, b"%d" % number)
            return 7, {}

        hub = Broadcast(whole)
        hub.start(asyncio.get_running_loop())
        frames = hub.frames()
        found = [await _next(frames) for _ in range(3)]
        await frames.aclose()
        return found

    retry, whole, change = asyncio.run(scene())
    assert retry.startswith(b"retry")
    assert whole.startswith(b"event: whole\nid: 7\n")
    assert change == b"8"


def test_the_history_goes_on_for_a_page_that_comes_later(live_table):
    live_table.put(lease(1, "w"))
    with Page(live_table) as page:
        browser = page.browser()
        browser.events(lambda events: len(events) >= 2)
        live_table.put(live_table.row(1).with_(owner="v", counter=30))
        browser.state(lambda told: told["rows"][shard(1)]["owner"] == "v")
        whole = page.browser().state()
        assert [span[1] for span in whole["spans"][shard(1)]][-1] == "v"
        assert "w" in [span[1] for span in whole["spans"][shard(1)]]


def test_a_defect_in_the_source_of_the_lag_is_shown_and_the_next_round_comes(clock, caplog):
    problems = []

    class Enough(Exception):
        pass

    class Source:
        def lags(self, leases):
            raise KeyError("a defect")

        def unleased(self, leases, unreadable):
            return []

    def after_a_round():
        problems.append(poller.problem)
        if len(problems) == 2:
            raise Enough

    clock.meanwhile = after_a_round
    poller = LagPoller(Source, 1.0, clock)
    seen = lease(1, "py-1", at(7))
    poller.watch([seen], TableSnapshot({seen.key: seen}))
    with pytest.raises(Enough):
        poller._run()
    assert problems == ["the lag could not be measured (KeyError, see the log)"] * 2
    assert "a defect" in caplog.text
