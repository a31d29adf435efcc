"""The terminal program itself, driven by textual's pilot: what is on the screen after which keys."""

import asyncio
import contextlib
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.widgets import Static

sys.path.insert(0, str(Path(__file__).parents[1] / "operate"))

from fleet_table import FleetTable, SteppingClock, at, ended, lease, note, shard

from pykcl.cli.watch_app.app import WatchApp
from pykcl.cli.watch_app.looks import Frame, Looker
from pykcl.cli.watch_app.sheets import Sheet
from pykcl.cli.watch_app.snapshot import picture, snapshot
from pykcl.cli.watch_app.words import LeaseLines
from pykcl.errors import TemporaryError
from pykcl.operate.owner_marks import mark_of

EVIL = "\x1b]0;owned\x07[red]x[/red][@click=app.quit]y[/]\n\u202eforged"


class Fleet:
    """A table, and looks at it."""

    def __init__(self, *leases, app="orders-app"):
        self.clock = SteppingClock()
        self.table = FleetTable(self.clock)
        self.table.put(*leases)
        target = SimpleNamespace(table=app, stream_name="orders", failover=3.0)
        self.looker = Looker(target, self.table.scanner, self.clock)
        self.looker.look()

    def look(self, seconds=2.0):
        self.clock.now += seconds
        return self.looker.look()

    @contextlib.asynccontextmanager
    async def shown(self, size=(80, 24), **more):
        app = WatchApp(self.looker.frame, self.clock.monotonic, **more)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            yield app, pilot


def two_workers():
    return Fleet(
        lease(0, "first", at(5), note=note("first")), lease(1, "second", at(7)), lease(2, None), ended(3, 4),
        lease(4, "second", parents=(shard(3),)), lease(5, "first", parents=(shard(4),)),
    )  # fmt: skip


def drive(scenario):
    asyncio.run(scenario)


def lines(app):
    return picture(app).split("\n")


def column(app):
    """What stands below SHARD."""
    found = lines(app)
    top = next(at for at, line in enumerate(found) if line.startswith(" SHARD"))
    body = [line for line in found[top + 1 :] if line[1:4].isdigit()]
    return [line[1:4] for line in body]


def selected(app):
    (line,) = [one for one in lines(app) if one.startswith("›")]  # noqa: RUF001
    return line[1:4]


async def press(pilot, *keys):
    for key in keys:
        await pilot.press(key)
    await pilot.pause()


def test_leases_owners_states_and_keys_fit_on_eighty_by_twenty_four():
    async def scenario():
        fleet = two_workers()
        fleet.table.renew(0, 1, 4, 5)
        fleet.look()
        async with fleet.shown() as (app, _):
            told = picture(app)
            assert len(told.split("\n")) == 24
            assert "orders-app · stream orders · KCL 2.x" in lines(app)[0]
            assert "1 UNOWNED, 1 WAITING, 3 ACTIVE, 1 ENDED" in told
            assert column(app) == ["000", "001", "002", "003", "004", "005"]
            for owner in ("first", "second"):
                assert f"{mark_of(owner).shape} {owner}" in told
            assert "q quit  ? help  / filter" in lines(app)[-1]
            assert f"lease key    {shard(0)}" in told

    drive(scenario())


def test_s_sorts_by_the_next_column_and_a_click_by_that_one():
    async def scenario():
        fleet = two_workers()
        fleet.table.renew(0, 1, 4, 5)
        fleet.look()
        async with fleet.shown() as (app, pilot):
            await press(pilot, "s")
            assert column(app) == ["002", "005", "000", "001", "004", "003"]
            assert "STATE↓" in picture(app)
            await press(pilot, "S")
            assert column(app) == ["003", "000", "001", "004", "005", "002"]
            heading = next(one for one in lines(app) if one.startswith(" SHARD"))
            await pilot.click("#columns", offset=(heading.index("OWNER") + 1, 0))
            await pilot.pause()
            assert column(app) == ["000", "005", "001", "004", "002", "003"]

    drive(scenario())


def test_the_selection_stays_with_its_lease():
    async def scenario():
        fleet = two_workers()
        async with fleet.shown() as (app, pilot):
            # At once: the second key must not act on what was selected before the first.
            app._rows.action_move(1)
            app.action_sort(1)
            await pilot.pause()
            assert selected(app) == "001"
            await press(pilot, "2")
            assert selected(app) == "001"
            await press(pilot, "1", "s", "S")
            assert selected(app) == "001"
            fleet.table.put(lease(9, "first"), ended(1))
            app.take(fleet.look())
            await pilot.pause()
            assert selected(app) == "001"

    drive(scenario())


def test_a_filter_narrows_every_tab_and_escape_widens_it():
    async def scenario():
        async with two_workers().shown() as (app, pilot):
            await press(pilot, "slash", *"second", "enter")
            assert column(app) == ["001", "004"]
            assert "/second" in picture(app)
            await press(pilot, "2")
            assert "000" not in column(app)
            await press(pilot, "1", "slash", *"xx", "enter")
            assert "Nothing matches 'xx'" in picture(app)
            await press(pilot, "escape")
            assert len(column(app)) == 6

    drive(scenario())


def test_enter_tells_everything_of_a_lease_and_goes_on_telling():
    async def scenario():
        fleet = two_workers()
        async with fleet.shown() as (app, pilot):
            await press(pilot, "down", "enter")
            told = picture(app)
            assert isinstance(app.screen, Sheet)
            assert "switches since then" in told
            assert "Nothing has happened to it." in told
            fleet.table.put(lease(1, "third", at(7), counter=9))
            app.take(fleet.look())
            await pilot.pause()
            told = picture(app)
            assert "third" in told
            assert "taken over" in told or "changed hands" in told
            await press(pilot, "tab", "q")
            assert not isinstance(app.screen, Sheet)
            assert app.tab == "leases"
            assert app.is_running

    drive(scenario())


def test_the_lineage_has_parents_above_children():
    async def scenario():
        async with two_workers().shown() as (app, pilot):
            await press(pilot, "2")
            found = lines(app)
            top = found.index(next(one for one in found if one[1:4] == "003"))
            assert found[top + 1][1:].startswith("└─ 004")
            assert found[top + 2][1:].lstrip().startswith("└─ 005")
            assert "waits for 004" in found[top + 2]

    drive(scenario())


def test_events_come_newest_first():
    async def scenario():
        fleet = two_workers()
        async with fleet.shown(tab="events") as (app, pilot):
            assert "Nothing has happened yet." in picture(app)
            fleet.table.put(lease(0, "second", at(5), counter=9))
            app.take(fleet.look(1.0))
            fleet.table.put(lease(2, "first", counter=9))
            app.take(fleet.look(1.0))
            await pilot.pause()
            found = [one for one in lines(app) if one[3:4] == ":" and one[6:7] == ":"]
            assert [one.split()[1] for one in found] == ["002", "000"]
            assert "first → " in found[1]
            assert selected_event(app) == found[0]

    def selected_event(app):
        return next(one for one in lines(app) if one.startswith("›"))  # noqa: RUF001

    drive(scenario())


def test_a_failing_aws_is_told_with_the_age_of_what_is_seen_and_then_forgotten():
    async def scenario():
        fleet = two_workers()
        async with fleet.shown() as (app, pilot):
            assert "No look" not in picture(app)
            fleet.clock.now += 10
            app.take(fleet.looker.failing(TemporaryError("AWS does not answer.")))
            fleet.clock.now += 20
            app.tick()
            await pilot.pause()
            told = picture(app)
            assert "! No look for 20s: what you see is 30s old; trying again." in told
            assert "AWS does not answer." in told
            assert len(column(app)) == 6
            app.take(fleet.look())
            await pilot.pause()
            assert "No look" not in picture(app)

    drive(scenario())


def test_before_anything_was_seen_it_says_so():
    async def scenario():
        fleet = Fleet()
        looker = Looker(fleet.looker._target, fleet.table.scanner, fleet.clock)
        looker.failing(TemporaryError("AWS does not answer."))
        app = WatchApp(looker.frame, fleet.clock.monotonic)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            assert "nothing was seen yet; trying again" in picture(app)
            app.take(fleet.looker.frame)
            await pilot.pause()
            assert "The table has no rows." in picture(app)

    drive(scenario())


class Thread:
    """Stands for the thread that looks."""

    def __init__(self, publish):
        self.publish, self.paused, self.asked_at = publish, False, None
        self.did = []

    def start(self):
        self.did.append("start")

    def stop(self):
        self.did.append("stop")

    def hurry(self):
        self.did.append("hurry")

    def pause(self, paused):
        self.paused = paused


def test_frames_come_from_another_thread_and_keys_reach_it():
    async def scenario():
        fleet, threads = two_workers(), []

        def attach(publish):
            threads.append(Thread(publish))
            return threads[0]

        async with fleet.shown(attach=attach) as (app, pilot):
            fleet.table.put(lease(7, "third"))
            frame = fleet.look()
            other = threading.Thread(target=threads[0].publish, args=(frame,))
            other.start()
            other.join()
            await pilot.pause()
            assert "007" in column(app)
            await press(pilot, "r", "p")
            assert threads[0].paused
            assert "paused" in lines(app)[0]
            threads[0].asked_at = fleet.clock.now
            fleet.clock.now += 12
            app.tick()
            await pilot.pause()
            assert "has not answered for 12s" in picture(app)
            await press(pilot, "ctrl+c")
            assert not app.is_running
        assert threads[0].did == ["start", "hurry", "stop"]

    drive(scenario())


def test_a_defect_in_the_thread_ends_the_program_and_is_raised():
    async def scenario():
        threads = []

        def attach(publish):
            threads.append(Thread(publish))
            return threads[0]

        async with two_workers().shown(attach=attach) as (app, pilot):
            threads[0].publish(ZeroDivisionError("ours"))
            await pilot.pause()
            assert isinstance(app.failure, ZeroDivisionError)

    drive(scenario())


def test_no_key_asks_aws_or_writes():
    async def scenario():
        fleet = two_workers()
        async with fleet.shown() as (_, pilot):
            before = len(fleet.table.client.requests)
            await press(
                pilot,
                "s",
                "S",
                "2",
                "3",
                "1",
                "slash",
                "x",
                "enter",
                "escape",
                "d",
                "enter",
                "escape",
                "h",
                "escape",
            )
            assert len(fleet.table.client.requests) == before

    drive(scenario())
    assert {operation for operation, _ in two_workers().table.client.requests} <= {"CreateTable", "DescribeTable", "Scan"}  # fmt: skip


def test_help_tells_the_keys_and_the_states():
    async def scenario():
        async with two_workers().shown(size=(80, 60)) as (app, pilot):
            await press(pilot, "question_mark")
            told = picture(app)
            for word in ("Nothing here writes", "look now", "UNOWNED", "STILL FOR"):
                assert word in told

    drive(scenario())


# -- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 24), (40, 10), (20, 8), (300, 60)])
@pytest.mark.parametrize("keys", ["", "2", "3", "?", "h", "enter"])
def test_any_size_shows_what_it_can_and_never_more(size, keys):
    async def scenario():
        fleet = two_workers()
        fleet.table.put(lease(7, "w" * 200))
        fleet.look(9)
        async with fleet.shown(size=size) as (app, pilot):
            await press(pilot, *([{"?": "question_mark"}.get(keys, keys)] if keys else []))
            found = lines(app)
            assert max(map(len, found)) <= size[0]
            assert len(found) <= size[1]

    drive(scenario())


def test_forty_columns_keep_shard_state_and_owner_and_the_urgent_comes_first():
    async def scenario():
        fleet = two_workers()
        fleet.look(9)
        async with fleet.shown(size=(40, 24)) as (app, _):
            told = picture(app)
            for word in ("SHARD", "STATE", "OWNER", "STALE", "first", "? help"):
                assert word in told
            assert "CHECKPOINT" not in told
            assert lines(app)[1].index("STALE") < lines(app)[1].index("UNOWNED")

    drive(scenario())


def test_of_a_thousand_leases_only_those_in_sight_are_drawn(monkeypatch):
    drawn = []
    draw = LeaseLines.__getitem__
    monkeypatch.setattr(LeaseLines, "__getitem__", lambda self, at: drawn.append(at) or draw(self, at))

    async def scenario():
        fleet = Fleet(*(lease(number, f"worker-{number % 40}") for number in range(1000)))
        async with fleet.shown() as (app, pilot):
            drawn.clear()
            app.take(fleet.look())
            await pilot.pause()
            assert 5 <= len(drawn) <= 100
            await press(pilot, "end")
            assert selected(app) == "999"
            assert "1000 of 1000" in picture(app)
            await press(pilot, "pageup", "home")
            assert selected(app) == "000"

    drive(scenario())


# -- what others wrote -------------------------------------------------------------------------------------------


def evil_fleet():
    fleet = Fleet(lease(0, EVIL), lease(1, "first"), app=EVIL)
    fleet.table.put_item(leaseKey={"S": EVIL}, checkpoint={"S": EVIL})
    fleet.look()
    fleet.table.put(lease(1, EVIL, counter=9))
    fleet.look(9)
    fleet.looker.failing(TemporaryError(f"no answer {EVIL}"))
    return fleet


@pytest.mark.parametrize("keys", [[], ["2"], ["3"], ["h"], ["enter"], ["end", "enter"], ["3", "enter"], ["slash", "[", "r", "e", "d", "]"]])  # fmt: skip
def test_hostile_names_are_plain_text_everywhere(keys):
    async def scenario():
        fleet = evil_fleet()
        async with fleet.shown(size=(160, 40)) as (app, pilot):
            await press(pilot, *keys)
            told = picture(app)
            assert "[red]x[/red]" in told
            assert not [one for one in told if not one.isprintable() and one != "\n"]
            for number, line in enumerate(told.split("\n")):
                if "[@click" in line:
                    await pilot.click(offset=(line.index("[@click") + 18, number))
            await pilot.pause()
            assert app.is_running
            assert not [one for one in app.screen.walk_children() if one.tooltip]

    drive(scenario())


@pytest.mark.parametrize("keys", [["enter"], ["3", "enter"], ["h"]])
def test_hostile_names_are_plain_text_on_sheets(keys):
    async def scenario():
        fleet = evil_fleet()
        async with fleet.shown(size=(160, 60)) as (app, pilot):
            await press(pilot, *keys)
            assert "[red]x[/red]" in str(app.screen.query_one(Static).render())

    drive(scenario())


def test_a_picture_without_a_terminal_is_the_same_and_inert():
    fleet = evil_fleet()
    told = snapshot(
        fleet.looker.frame, fleet.clock.monotonic, (80, 24), every=2.0, tab="leases", filter_text=""
    )
    assert "[red]x" in told
    assert not [one for one in told if not one.isprintable() and one != "\n"]
    assert "q quit" not in told
    assert max(map(len, told.split("\n"))) <= 80
    assert "nothing seen yet" in snapshot(Frame("a"), fleet.clock.monotonic, (80, 24), every=2.0, tab="events", filter_text="x")  # fmt: skip
