"""What `pykcl leases watch` makes of looks at a table, and how often it looks."""

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "operate"))

from fleet_table import FleetTable, SteppingClock, at, ended, lease, shard

from pykcl.cli.watch_app.columns import COLUMNS, matching, ordered
from pykcl.cli.watch_app.looks import LEAST_PAUSE, Looker, Looking
from pykcl.errors import SetupError, TemporaryError

TARGET = SimpleNamespace(table="orders-app", stream_name="orders", failover=3.0)


@pytest.fixture
def clock():
    return SteppingClock()


@pytest.fixture
def table(clock):
    return FleetTable(clock)


class Moody:
    """A table that can be told to fail."""

    def __init__(self, scanner):
        self._scanner, self.error, self.pace = scanner, None, ""

    def scan(self):
        if self.error is not None:
            raise self.error
        return self._scanner.scan()


def kinds(frame):
    return [(event.edge.kind, event.edge.shard) for event in reversed(frame.events)]


def test_the_first_look_tells_of_no_events_and_the_next_of_what_changed(table, clock):
    table.put(lease(0, "first"), lease(1, "first"), lease(2, "first"))
    looker = Looker(TARGET, table.scanner, clock)
    assert looker.look().events == ()
    clock.now += 2
    table.put(ended(0, 3), lease(3, "second", parents=(shard(0),)), lease(1, "second", counter=6))
    found = kinds(looker.look())
    assert found == [("ended", shard(0)), ("taken over", shard(1)), ("new", shard(3))]
    clock.now += 1.5
    table.renew(1, 3)
    assert kinds(looker.look())[3:] == [("stale", shard(2))]


def test_the_looks_of_a_snapshot_tell_of_events_too(table, clock):
    table.put(lease(0, "first"))
    clock.meanwhile = lambda: table.put(lease(0, "second", counter=9))
    assert kinds(Looker(TARGET, table.scanner, clock).look_well()) == [("taken over", shard(0))]


def test_a_failure_keeps_what_was_seen_and_is_told_once(table, clock):
    table.put(lease(0, "first"))
    moody = Moody(table.scanner)
    looker = Looker(TARGET, moody, clock)
    seen = looker.look()
    for error in (TemporaryError("no answer"), SetupError("the token has expired")):
        clock.now += 5
        moody.error = error
        frame = looker.step()
        assert looker.failed
        assert (frame.rows, frame.seen_at) == (seen.rows, seen.seen_at)
        assert frame.trouble == str(error)
    assert frame.trouble_since == seen.seen_at + 5
    moody.error = None
    frame = looker.step()
    assert (frame.trouble, looker.failed) == ("", False)
    assert kinds(frame) == [("trouble", ""), ("trouble", ""), ("stale", shard(0))]
    assert "after 5 s" in frame.events[1].edge.text


def test_a_first_look_that_fails_is_the_callers_to_judge(table, clock):
    moody = Moody(table.scanner)
    moody.error = SetupError("no such table")
    with pytest.raises(SetupError):
        Looker(TARGET, moody, clock).look()


# -- how often ---------------------------------------------------------------------------------------------------


class Stepping(SteppingClock):
    """Runs the thread at once; `during` is called at each wait, and ends it by `over` at `until`."""

    def __init__(self):
        super().__init__()
        self.during = lambda: None
        self.until, self.stop = 110.0, None

    def spawn(self, name, body):
        body()

    def event(self):
        return Flag(self)


class Flag:
    def __init__(self, clock):
        self._clock, self._is_set = clock, False

    def is_set(self):
        return self._is_set

    def set(self):
        self._is_set = True

    def clear(self):
        self._is_set = False

    def wait(self, timeout=None):
        clock = self._clock
        if clock.now >= clock.until:
            clock.stop()
        while not self._is_set and timeout != 0:
            clock.now += 0.25
            clock.during()
            if clock.now >= clock.until:
                clock.stop()
            if timeout is not None:
                timeout = max(0, timeout - 0.25)
        return self._is_set


class Counted:
    """A looker that takes its time."""

    def __init__(self, clock, takes=0.0, failed=False):
        self.clock, self.takes, self.failed = clock, takes, failed
        self.looks = []

    def step(self):
        self.looks.append(self.clock.now)
        self.clock.now += self.takes
        return "a frame"


def looks(every=2.0, **more):
    """The moments of the looks within ten seconds, and the thread."""
    clock = Stepping()
    during = more.pop("during", lambda looking: None)
    counted = Counted(clock, **more)
    frames = []
    looking = Looking(counted, clock, every, frames.append)
    clock.stop, clock.during = looking.stop, lambda: during(looking)
    looking.start()
    assert set(frames) <= {"a frame"}
    return counted.looks


def test_it_looks_every_so_often_and_no_oftener():
    assert looks() == [102.0, 104.0, 106.0, 108.0]


def test_a_key_held_down_does_not_become_a_scan_each_time():
    found = looks(during=lambda looking: looking.hurry())
    assert 8 <= len(found) <= 10
    assert min(b - a for a, b in pairwise(found)) >= LEAST_PAUSE


def test_a_slow_table_is_scanned_half_of_the_time_at_most():
    assert looks(takes=3.0) == [102.0, 108.0]


def test_failures_make_the_pauses_longer():
    found = looks(every=1.0, failed=True)
    pauses = [b - a for a, b in pairwise(found)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 3.0


def test_nothing_is_scanned_while_it_is_paused_but_when_asked():
    def pause(looking):
        if not looking.paused:
            looking.pause(True)

    assert looks(during=pause) == []

    def pause_and_ask_once(looking):
        pause(looking)
        if 105.0 <= looking._runtime.now < 105.25:
            looking.hurry()

    assert len(looks(during=pause_and_ask_once)) == 1


def test_a_defect_of_ours_ends_it_and_is_told():
    clock = Stepping()
    told = []

    class Broken(Counted):
        def step(self):
            raise ZeroDivisionError

    looking = Looking(Broken(clock), clock, 2.0, told.append)
    clock.stop = looking.stop
    looking.start()
    assert [type(one) for one in told] == [ZeroDivisionError]


# -- order and filter --------------------------------------------------------------------------------------------


def rows(table, clock):
    table.put(
        lease(0, "b", at(9)),
        lease(1, "A", at(10)),
        lease(2, None),
        ended(3),
        lease(4, "b", at(9, 2), owner_switches=3),
    )
    table.put_item(leaseKey={"S": "shardId-000000000009"})
    looker = Looker(TARGET, table.scanner, clock)
    looker.look()
    clock.now += 4
    table.renew(1, 4)
    return looker.look().rows


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ("shard", [0, 1, 2, 3, 4, 9]),
        ("state", [0, 9, 2, 1, 4, 3]),
        ("owner", [1, 0, 4, 2, 3, 9]),
        ("checkpoint", [3, 2, 0, 4, 1, 9]),
        ("unmoved_seconds", [0, 2, 3, 1, 4, 9]),
        ("switches", [4, 0, 1, 2, 3, 9]),
    ],
)
def test_every_column_has_an_order_that_makes_sense(table, clock, column, wanted):
    index = [one.key for one in COLUMNS].index(column)
    assert [int(row.key[-2:]) for row in ordered(rows(table, clock), index)] == wanted


def test_every_column_can_be_sorted_both_ways(table, clock):
    found = rows(table, clock)
    for index in range(len(COLUMNS)):
        for backwards in (True, False):
            assert len(ordered(found, index, backwards=backwards)) == len(found)


def test_a_filter_finds_all_its_words_in_any_letters(table, clock):
    found = rows(table, clock)
    assert [row.key for row in matching(found, "ACTIVE a")] == [shard(1), shard(4)]
    assert [row.key for row in matching(found, "stale 000000")] == [shard(0)]
    assert matching(found, "[red]") == []
