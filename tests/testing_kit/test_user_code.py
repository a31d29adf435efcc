"""User code that hangs, waits, uses threads or raises what is not an Exception; a failure names the call."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit_processors import Orders

from pykcl.testing import RunFailed, UserCodeFailed, records, run_processor, simulate
from pykcl.testing.runtime import Simulation, watchdog

ONE = records("a")
CALL = "process_records for shardId-000000000000"


def processor(work, method="process_records"):
    """A class one method of which does `work`."""
    return type("Of", (Orders,), {method: lambda self, *_: work()})


@pytest.fixture
def impatient(monkeypatch):
    """A call that takes a second has hung, and may not wait for a tenth of it."""
    monkeypatch.setattr(watchdog, "HANG_SECONDS", 1.0)


def sim_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pykcl-s")]


def assert_no_simulation_is_left():
    assert Simulation.running == []
    assert threading.Thread.start.__module__ == "threading"
    assert time.sleep.__module__ != "pykcl.testing.runtime.determinism"
    # Another run is as good as any.
    assert run_processor(Orders, ONE).lost == 0


def test_a_real_hang_is_reported_well_before_twenty_seconds():
    assert watchdog.HANG_SECONDS + watchdog._POLL_SECONDS + watchdog._END_SECONDS < 20


def spin():
    while True:
        time.time()


def test_a_loop_without_end_is_reported_and_ended(impatient):
    with pytest.raises(UserCodeFailed) as caught:
        run_processor(processor(spin), ONE)
    text = str(caught.value)
    assert text.startswith(f"{CALL} has not returned for 1 s of real time. It stands at test_user_code.py:")
    assert " in spin. Do: give the processor a stand-in" in text
    deadline = time.monotonic() + 300
    while sim_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sim_threads() == []
    assert_no_simulation_is_left()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_deadlock_is_reported_and_its_thread_ends_when_it_can(impatient, shards):
    lock = threading.Lock()
    lock.acquire()

    def wait_for_the_lock():
        with lock:
            pass

    with pytest.raises(UserCodeFailed, match=rf"^{CALL[:-1]}\d has not returned.* in wait_for_the_lock"):
        run_processor(processor(wait_for_the_lock), records(*range(20)), shards=shards)
    assert_no_simulation_is_left()
    lock.release()
    deadline = time.monotonic() + 300
    while sim_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sim_threads() == []


@pytest.mark.parametrize("method", ["initialize", "shard_ended", "__init__"])
def test_the_call_that_hangs_is_named(impatient, method):
    named = {"__init__": "initialize"}.get(method, method)
    with pytest.raises(UserCodeFailed, match=f"^{named} for shardId-000000000000 has not returned"):
        run_processor(processor(spin, method), ONE)
    assert_no_simulation_is_left()


def test_a_call_that_hangs_is_found_while_several_threads_wait_for_a_core(impatient, monkeypatch):
    monkeypatch.setattr(watchdog, "HANG_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "run_delays", lambda: {1: 3 * time.monotonic()})
    with pytest.raises(UserCodeFailed, match="has not returned"):
        run_processor(processor(spin), ONE)
    assert_no_simulation_is_left()


def test_a_call_that_sleeps_is_reported(monkeypatch):
    monkeypatch.setattr(watchdog, "WAIT_SECONDS", 0.2)
    with pytest.raises(
        UserCodeFailed, match=rf"^{CALL} waited for 0\.\d s of real time, which a simulation cannot"
    ):
        run_processor(processor(lambda: time.sleep(0.3)), ONE)
    assert_no_simulation_is_left()


def test_the_time_for_which_a_call_gets_no_core_is_no_wait(monkeypatch):
    monkeypatch.setattr(watchdog, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(watchdog, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "run_delays", lambda: {1: time.monotonic()})
    assert run_processor(processor(lambda: time.sleep(0.3)), ONE).lost == 0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux says who waited for a core")
def test_a_thread_that_shares_a_core_is_known_to_have_waited_for_it():
    def compute():
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            sum(range(1000))
        delays.append(watchdog.run_delays()[threading.get_native_id()])

    delays: list[float] = []
    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(delays) == 3
    assert all(0 <= delay < 60 for delay in delays)


def test_after_a_failure_no_other_call_is_made(monkeypatch):
    monkeypatch.setattr(watchdog, "WAIT_SECONDS", 0.2)
    calls = []

    def sleeps():
        calls.append(1)
        time.sleep(0.3)

    with pytest.raises(UserCodeFailed):
        run_processor(processor(sleeps), records(*range(9)), shards=3)
    assert len(calls) == 1


def test_a_call_that_computes_may_take_its_time(monkeypatch):
    monkeypatch.setattr(watchdog, "WAIT_SECONDS", 0.05)

    def compute():
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            sum(range(1000))

    assert run_processor(processor(compute), ONE).lost == 0


class Pooled(Orders):
    """Does its work in threads of its own, and waits for them."""

    def initialize(self, init):
        self.pool = ThreadPoolExecutor(2)

    def process_records(self, batch):
        self.done.extend(self.pool.map(lambda record: record.text(), batch))

    def shard_ended(self, end):
        self.pool.shutdown()


def test_threads_that_a_call_waits_for_are_a_part_of_it():
    Orders.done.clear()
    runs = [run_processor(Pooled, records(*range(20)), shards=2, seed=7) for _ in range(2)]
    assert sorted(Orders.done) == sorted(map(str, [*range(20), *range(20)]))
    first, second = ([(call.shard, call.method) for call in run.calls] for run in runs)
    assert first == second
    assert_no_simulation_is_left()


class Background(Orders):
    """Hands its work to a thread that a library might have started, and waits for none of it."""

    def initialize(self, init):
        self.queue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while (text := self.queue.get()) is not None:
            self.done.append(text)

    def process_records(self, batch):
        for record in batch:
            self.queue.put(record.text())

    def shard_ended(self, end):
        self.queue.put(None)


@pytest.mark.parametrize("end", ["shard_end", "crash"])
def test_a_thread_that_nobody_waits_for_harms_no_run(end):
    Orders.done.clear()
    made = []

    def create():
        made.append(Background())
        return made[-1]

    assert run_processor(create, records(*range(20)), shards=2, end=end).lost == 0
    for each in made:
        each.queue.put(None)
        each.thread.join(300)
    assert set(Orders.done) == {str(number) for number in range(20)}
    assert_no_simulation_is_left()


def test_threads_that_compute_may_take_their_time(monkeypatch):
    monkeypatch.setattr(watchdog, "WAIT_SECONDS", 0.05)

    def compute():
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            sum(range(1000))

    def in_a_thread():
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()

    assert run_processor(processor(in_a_thread), ONE).lost == 0


def test_a_thread_that_hangs_is_a_call_that_hangs(impatient):
    release = threading.Event()

    def wait_for_a_thread():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(release.wait).result()

    with pytest.raises(UserCodeFailed, match=f"^{CALL} has not returned .* in wait_for_a_thread"):
        run_processor(processor(wait_for_a_thread), ONE)
    release.set()
    assert_no_simulation_is_left()


def test_acks_are_recorded_in_the_thread_that_pykcl_calls_and_refused_in_another(tmp_path):
    class Acks(Orders):
        def process_records(self, batch):
            for record in batch:
                assert batch.ack(record) if record.text() != "3" else batch.reject(record, "no order")

    destination = f"file:{tmp_path}"
    result = run_processor(Acks, records(*range(8)), checkpoint_mode="ack", dead_letters=destination)
    assert (result.lost, len(result.delivered)) == (0, 8)

    class AcksLater(Orders):
        def process_records(self, batch):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(batch.ack, batch[0]).exception()

    with pytest.raises(UserCodeFailed, match=f"^{CALL} acks in the thread"):
        run_processor(AcksLater, ONE, checkpoint_mode="ack")
    assert_no_simulation_is_left()


def checkpoints_in(method):
    """A class one method of which checkpoints in a thread of its own, and waits for that."""

    def call(self, argument):
        def checkpoint():
            try:
                argument.checkpointer.checkpoint()
            except BaseException:  # noqa: BLE001 - a processor may go on after any error
                return

        thread = threading.Thread(target=checkpoint, name="mine")
        thread.start()
        thread.join()

    return type("Of", (Orders,), {method: call})


@pytest.mark.parametrize("method", ["process_records", "shard_ended"])
def test_a_checkpoint_in_a_thread_of_its_own_is_refused_though_the_processor_goes_on(method):
    with pytest.raises(
        UserCodeFailed,
        match=f"^{method} for shardId-000000000000 uses its checkpointer in the thread 'mine'.*fixture `worker`",
    ):
        run_processor(checkpoints_in(method), ONE, checkpoint_mode="manual")
    assert_no_simulation_is_left()


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), ValueError("no")])
def test_what_a_processor_raises_stays_its_own(error):
    with pytest.raises(
        RunFailed, match=rf"process_records raised \d+ times, last {type(error).__name__} at"
    ) as caught:
        run_processor(processor(raising(error)), ONE)
    assert caught.value.__cause__ is error
    assert_no_simulation_is_left()


def test_what_a_constructor_raises_is_a_failure_of_initialize():
    with pytest.raises(RunFailed, match=r"initialize raised \d+ times, last OSError at test_user_code.py"):
        run_processor(processor(raising(OSError("no database")), "__init__"), ONE)


def test_a_coroutine_is_no_work_done():
    async def nothing():
        return None

    with pytest.raises(RunFailed, match="NeverRan: process_records returned coroutine"):
        run_processor(processor(nothing), ONE)


def test_ctrl_c_ends_the_simulation(monkeypatch):
    """As pytest's own: it comes in the thread that waits for the run."""

    def interrupted(self, done):
        done.wait(0.2)
        raise KeyboardInterrupt

    slow = processor(lambda: time.sleep(0.5))
    monkeypatch.setattr(watchdog.Watchdog, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_processor(slow, ONE)
    monkeypatch.undo()
    assert_no_simulation_is_left()


def test_a_whole_simulation_watches_user_code_too(impatient):
    with pytest.raises(UserCodeFailed, match=r"^process_records for shardId-.* has not returned"):
        simulate(processor(spin), seeds=1)
    with pytest.raises(UserCodeFailed, match="uses its checkpointer in the thread 'mine'"):
        simulate(checkpoints_in("process_records"), seeds=1)
    assert_no_simulation_is_left()


def test_a_run_needs_no_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(run_processor(Orders, ONE)))
    thread.start()
    thread.join(300)
    assert results[0].lost == 0
