"""The simulation itself: its locks and events are as threading's, and what goes wrong in it is said clearly."""

import random
import re
import sys
import threading
import time
import types

import pytest

from pykcl.testing.runtime import EPOCH_MILLIS, Deadlock, Simulation, ThreadStruck
from pykcl.testing.runtime.determinism import RuntimeBypassed


def _module_of(name, source):
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    return module


# -- determinism -----------------------------------------------------------------------------------------------

_CALLS = {
    "time.time": "import time\ndef call(): return time.time()",
    "time.sleep": "import time\ndef call(): return time.sleep(0)",
    "time.monotonic": "import time\ndef call(): return time.monotonic()",
    "threading.Lock": "import threading\ndef call(): return threading.Lock()",
    "threading.Event": "import threading\ndef call(): return threading.Event()",
    "threading.Thread": "import threading\ndef call(): return threading.Thread()",
    "random.random": "import random\ndef call(): return random.random()",
    "random.shuffle": "import random\ndef call(): return random.shuffle([])",
    "random.seed": "import random\ndef call(): return random.seed(1)",
    "random.Random() without a seed": "import random\ndef call(): return random.Random()",
    "os.urandom": "import os\ndef call(): return os.urandom(1)",
    "uuid.uuid4": "import uuid\ndef call(): return uuid.uuid4()",
    "uuid.uuid1": "import uuid\ndef call(): return uuid.uuid1()",
    "secrets.token_hex": "import secrets\ndef call(): return secrets.token_hex()",
    "secrets.choice": "import secrets\ndef call(): return secrets.choice('a')",
    "time.process_time": "import time\ndef call(): return time.process_time()",
    "threading.get_ident": "import threading\ndef call(): return threading.get_ident()",
}
_BOUND_EARLY = {
    "time.monotonic": "from time import monotonic\ndef call(): return monotonic()",
    "uuid.uuid4": "from uuid import uuid4 as new\ndef call(): return new()",
    "os.urandom": "from os import urandom\ndef call(): return urandom(1)",
    "random.choice": "from random import choice\ndef call(): return choice('a')",
    "threading.Lock": "from threading import Lock\ndef call(): return Lock()",
    "secrets.token_bytes": "from secrets import token_bytes\ndef call(): return token_bytes()",
}


@pytest.mark.parametrize("shown", _CALLS)
def test_a_module_of_pykcl_that_goes_past_the_runtime_is_refused_inside_and_not_outside(shown):
    module = _module_of("pykcl.worker.careless", _CALLS[shown])
    with (
        pytest.raises(RuntimeBypassed, match=rf"pykcl.worker.careless called {re.escape(shown)} "),
        Simulation(),
    ):
        module.call()
    module.call()


@pytest.mark.parametrize("shown", _BOUND_EARLY)
def test_what_a_module_of_pykcl_took_by_name_before_is_refused_inside_and_given_back(shown, monkeypatch):
    module = _module_of("pykcl.worker.careless", _BOUND_EARLY[shown])
    monkeypatch.setitem(sys.modules, "pykcl.worker.careless", module)
    before = dict(vars(module))
    with pytest.raises(RuntimeBypassed, match=rf"pykcl.worker.careless called {shown} "), Simulation():
        module.call()
    assert dict(vars(module)) == before
    module.call()


def test_a_module_that_is_imported_in_a_simulation_may_look_at_the_clock_after_it():
    with Simulation():
        module = _module_of("pykcl.cli.late", _BOUND_EARLY["time.monotonic"])
    assert module.call() > 0


def test_who_catches_what_the_seam_raises_does_not_hide_it():
    module = _module_of("pykcl.worker.careless", _CALLS["uuid.uuid4"])

    def tolerant():
        try:
            module.call()
        except Exception:  # noqa: BLE001 - as a worker takes it for an error of its processor
            caught.append(True)

    caught = []
    with pytest.raises(RuntimeBypassed, match=r"uuid.uuid4"), Simulation() as simulation:
        simulation.spawn("tolerant", "w1", tolerant)
        simulation.sleep(1.0)
        assert caught
        raise AssertionError("what came of it")
    with Simulation():
        assert caught


@pytest.mark.parametrize("name", ["pykcl.runtime", "shop.orders", "pykcl_tools.x"])
@pytest.mark.parametrize("shown", ["time.time", "uuid.uuid4", "random.Random() without a seed"])
def test_the_runtime_and_modules_of_others_may(name, shown):
    module = _module_of(name, _CALLS[shown])
    with Simulation():
        assert module.call() is not None


def test_a_generator_with_a_seed_is_for_everybody():
    module = _module_of("pykcl.worker.careful", "import random\ndef call(): return random.Random(7).random()")
    with Simulation():
        assert module.call() == random.Random(7).random()


def test_the_seam_opens_again_even_when_simulations_are_nested_or_fail():
    before = (time.time, threading.Lock, threading.Event.__init__, random.random, random.Random.__init__)
    with Simulation(), Simulation():
        assert time.time is not before[0]
    with pytest.raises(KeyError), Simulation():
        raise KeyError
    after = (time.time, threading.Lock, threading.Event.__init__, random.random, random.Random.__init__)
    assert after == before


# -- reports ---------------------------------------------------------------------------------------------------


def test_a_deadlock_names_the_threads():
    with (
        pytest.raises(Deadlock, match=r"no task can continue: .*w1/left, w1/right"),
        Simulation() as simulation,
    ):
        runtime = simulation.runtime("w1")
        one, other = runtime.lock(), runtime.lock()

        def take(first, second):
            with first:
                runtime.event().wait(1.0)
                with second:
                    pass

        simulation.spawn("left", "w1", lambda: take(one, other))
        simulation.spawn("right", "w1", lambda: take(other, one)).join()


def test_time_that_stands_still_is_reported():
    with (
        pytest.raises(Deadlock, match=r"time stands still at 1000.000: w1/spins"),
        Simulation() as simulation,
    ):

        def spin():
            while True:
                simulation.switch()

        simulation.spawn("spins", "w1", spin)
        simulation.sleep(1.0)


def test_what_a_thread_dies_of_is_raised_at_the_end():
    def die():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Simulation() as simulation:
        simulation.spawn("dies", "w1", die)
        simulation.sleep(1.0)


def _tolerant(simulation, call):
    """A worker that carries on whatever it is reported."""
    runtime = simulation.runtime("w1")

    def live():
        while True:
            try:
                call()
            except Exception:  # noqa: BLE001 - this is how an error of a checker gets lost
                caught.append(True)
            runtime.event().wait(1.0)

    caught = []
    simulation.spawn("tolerant", "w1", live)
    return caught


def test_what_is_insisted_on_ends_the_simulation_although_the_thread_it_came_up_in_caught_it():
    def check():
        raise KeyError("in a checker")

    for wrapped, ends in ((True, True), (False, False)):
        simulation = Simulation()
        try:
            with simulation:
                caught = _tolerant(simulation, simulation.insist(check) if wrapped else check)
                for _ in range(100):
                    simulation.sleep(1.0)
        except KeyError:
            assert ends
            assert len(caught) < 5
        else:
            assert not ends
            assert len(caught) > 50


def test_a_watcher_of_the_switches_that_fails_ends_the_simulation_in_whatever_thread_it_was_called():
    def watch():
        if simulation.current_group == "w1":
            raise KeyError("in a checker")

    simulation = Simulation()
    simulation.on_switch = watch
    with pytest.raises(KeyError, match="in a checker"), simulation:
        runtime = simulation.runtime("w1")
        _tolerant(simulation, lambda: runtime.event().wait(1.0))
        simulation.sleep(100.0)


def test_what_is_insisted_on_returns_what_it_returns():
    assert Simulation().insist(lambda one, *, two: one + two)(1, two=2) == 3


def test_a_condition_that_never_comes_fails_by_its_name():
    with pytest.raises(AssertionError, match="the tide did not come within 5"), Simulation() as simulation:
        simulation.run_until(lambda: False, 5, "the tide")


# -- events and locks, as threading's --------------------------------------------------------------------------


def test_an_event_wakes_all_who_wait_and_stays_set():
    with Simulation(seed=3) as simulation:
        event, woken = simulation.runtime("w").event(), []
        for number in range(3):
            simulation.spawn(
                f"t{number}", "w", lambda number=number: woken.append((number, event.wait(60.0)))
            )
        simulation.sleep(1.0)
        assert woken == []
        event.set()
        assert event.is_set()
        assert event.wait(0.0) is True
        simulation.sleep(1.0)
        assert sorted(woken) == [(0, True), (1, True), (2, True)]


def test_a_wait_that_times_out_says_so_and_takes_its_time():
    with Simulation() as simulation:
        event, before = simulation.runtime("w").event(), simulation.now
        assert event.wait(2.5) is False
        assert simulation.now == before + 2.5
        assert event.wait(-1) is False
        assert simulation.now == before + 2.5


def test_who_was_woken_returns_true_even_if_the_event_is_cleared_at_once():
    with Simulation() as simulation:
        event, answers = simulation.runtime("w").event(), []
        simulation.spawn("waits", "w", lambda: answers.append(event.wait(60.0)))
        simulation.sleep(1.0)
        event.set()
        event.clear()
        simulation.sleep(1.0)
        assert answers == [True]
        assert not event.is_set()


def test_a_lock_lets_one_in_at_a_time_and_is_free_again_after_an_exception():
    for seed in range(10):
        with Simulation(seed=seed) as simulation:
            runtime = simulation.runtime("w")
            lock, inside, most = runtime.lock(), [], []

            def work(runtime=runtime, lock=lock, inside=inside, most=most):
                with lock:
                    inside.append(1)
                    most.append(len(inside))
                    runtime.event().wait(1.0)
                    inside.pop()

            for number in range(4):
                simulation.spawn(f"t{number}", "w", work)
            with pytest.raises(KeyError), lock:
                raise KeyError
            simulation.sleep(10.0)
            assert most == [1, 1, 1, 1]


def test_a_join_waits_for_the_end_or_for_its_time():
    with Simulation() as simulation:
        runtime = simulation.runtime("w")
        task = runtime.spawn("works", lambda: runtime.event().wait(5.0))
        before = simulation.now
        task.join(2.0)
        assert task.is_alive()
        assert simulation.now == before + 2.0
        task.join()
        assert not task.is_alive()
        assert simulation.now == before + 5.0


# -- what is done to threads -----------------------------------------------------------------------------------


def _beats(simulation, group):
    """The moments at which a thread of this group came by, once a second of its clock."""
    beats, runtime = [], simulation.runtime(group)

    def beat():
        while True:
            beats.append((simulation.now, runtime.monotonic(), runtime.utcnow_millis()))
            runtime.event().wait(1.0)

    runtime.spawn("beats", beat)
    return beats


def test_a_killed_group_never_runs_again_and_the_others_do():
    with Simulation() as simulation:
        killed, other = _beats(simulation, "w1"), _beats(simulation, "w2")
        simulation.sleep(5.5)
        simulation.kill("w1")
        count = len(killed)
        simulation.sleep(5.0)
        assert len(killed) == count > 4
        assert len(other) > 9


def test_a_frozen_group_stands_still_and_then_goes_on_with_a_clock_that_ran():
    with Simulation() as simulation:
        beats = _beats(simulation, "w1")
        simulation.sleep(2.5)
        simulation.freeze("w1", 30.0)
        assert simulation.is_frozen("w1")
        until = simulation.now + 30.0
        simulation.sleep(29.9)
        assert [at for at, _, _ in beats if until - 29.5 < at < until] == []
        simulation.sleep(2.0)
        assert not simulation.is_frozen("w1")
        assert until in [at for at, _, _ in beats]
        assert beats[-1][1] == pytest.approx(beats[-1][0])


def test_who_is_killed_while_frozen_does_not_wake():
    with Simulation() as simulation:
        beats = _beats(simulation, "w1")
        simulation.freeze("w1", 5.0)
        simulation.kill("w1")
        count = len(beats)
        simulation.sleep(20.0)
        assert len(beats) == count


def test_a_struck_thread_dies_where_it_stands_whatever_it_catches():
    with Simulation() as simulation:
        runtime, seen = simulation.runtime("w1"), []

        def stubborn():
            try:
                while True:
                    try:
                        runtime.event().wait(100.0)
                    except Exception:  # noqa: BLE001 - as broad as a careless program
                        seen.append("caught")
            except ThreadStruck:
                seen.append("struck")
                raise

        task = runtime.spawn("stubborn", stubborn)
        simulation.sleep(1.0)
        simulation.strike(task)
        before = simulation.now
        task.join()
        assert seen == ["struck"]
        assert simulation.now == before


def test_a_clock_that_runs_fast_shows_more_time_and_waits_less():
    with Simulation() as simulation:
        simulation.clock("w1").run_at(1.25, simulation.now)
        beats = _beats(simulation, "w1")
        simulation.sleep(8.1)
        assert len(beats) == 11
        (first, shown, _), (last, later, _) = beats[0], beats[-1]
        assert last - first == pytest.approx(8.0)
        assert later - shown == pytest.approx(10.0)


def test_a_wall_clock_that_jumps_shows_another_time_and_nothing_else():
    with Simulation() as simulation:
        beats = _beats(simulation, "w1")
        simulation.sleep(3.5)
        simulation.clock("w1").wall_offset -= 7_200_000
        simulation.sleep(3.0)
        assert [shown - int(at * 1000) - EPOCH_MILLIS for at, _, shown in beats] == [0] * 4 + [-7_200_000] * 3
        assert [mono for _, mono, _ in beats] == [at for at, _, _ in beats]


def test_unfinished_threads_are_told_by_group_in_the_order_of_their_start():
    with Simulation() as simulation:
        runtime = simulation.runtime("w1")
        runtime.spawn("first", lambda: runtime.event().wait(5.0))
        runtime.spawn("second", lambda: None)
        runtime.spawn("third", lambda: runtime.event().wait(50.0))
        simulation.sleep(1.0)
        assert [task.name for task in simulation.unfinished("w1")] == ["first", "third"]
        simulation.sleep(5.0)
        assert [task.name for task in simulation.unfinished("w1")] == ["third"]
        assert simulation.unfinished("nobody") == []
