"""Real processes, for seconds instead of minutes: killed, frozen, stopped and forced under faults, and one wrong build."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from threading import Event

import pytest
from chaos_checks import all_checks
from chaos_processes import Settings
from chaos_report import figure_lines, table
from chaos_run import Run
from chaos_schedule import RESHARDS, TROUBLES, WINDOWS, Step, rules_of, schedule
from fleet_evidence import load
from fleet_processes import processes

from pykcl.local.faults import KINDS, FaultRule
from pykcl.local.pushing import PUSH_FAULTS

HERE = Path(__file__).parent
FAILOVER = 2.5
EXPECTED = {"kill", "freeze", "terminate", "force", "split", "merge"}


def judged(folder):
    evidence = load(folder)
    checks = all_checks(evidence)
    print(figure_lines(evidence), table(checks), sep="\n")
    return evidence, {check.name: check for check in checks}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_of_processes_under_fire_keeps_every_promise(tmp_path):
    """Green where it was examined. What a starved machine had no time for is not examined; nothing turns red of it."""
    steps = ["split", "errors", "kill", "lost answers", "freeze", "resets", "merge", "force", "terminate"]
    with Run(Settings(tmp_path, FAILOVER, shards=2), seed=3, workers=2, rate=100, say=print) as run:
        run.wait_for_fleet()
        for number, what in enumerate(steps):
            run.do(Step(what, 0.1, draw=number))
        run.finish()
    evidence, checks = judged(tmp_path)
    assert [check.name for check in checks.values() if check.problems] == []
    unexercised = {check.name for check in checks.values() if not check.exercised}
    assert unexercised <= {"done to the fleet", "faults injected"}
    assert set(evidence.actions) == EXPECTED
    assert sum(evidence.faults.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_build_that_checkpoints_before_delivery_loses_records_and_is_found_out(tmp_path):
    settings = Settings(tmp_path, FAILOVER, shards=2, break_="checkpoint-before-delivery")
    with Run(settings, seed=3, workers=2, rate=300, say=print) as run:
        run.wait_for_fleet()
        run.do(Step("kill", 0.1, draw=1))
        run.finish()
    _, checks = judged(tmp_path)
    lost = checks["nothing lost"]
    assert lost.verdict == "FAILED"
    assert "was put and never finished; w0" in lost.problems[0]
    assert "checkpointed" in lost.problems[0]
    assert checks["checkpoints behind the work"].verdict == "FAILED"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)],
    ids=["INT", "TERM", "KILL"],
)
def test_an_interrupted_run_leaves_no_process_behind(tmp_path, number, code):
    """Not even a frozen one, not even when the harness itself is killed and can end nobody."""
    command = [sys.executable, str(HERE), "--minutes", "5", "--seed", "1", "--workers", "2", "--shards", "2"]
    children = []
    with subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as harness:  # fmt: skip
        try:
            frozen = wait_for(lambda: begun(tmp_path))
            children = children_of(harness.pid)
            assert frozen in children
            assert len(children) >= 3
            os.kill(frozen, signal.SIGSTOP)
            harness.send_signal(number)
            assert harness.wait(60) == code
            wait_for(lambda: not [pid for pid in children if is_alive(pid)])
        finally:
            harness.kill()
            for pid in children:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


def begun(folder):
    """The process id of a worker, when both have got so far that they write."""
    starts = [line for path in folder.glob("*/w0*.jsonl") for line in path.read_text().splitlines()[:1]]
    return json.loads(starts[0])["pid"] if len(starts) == 2 else None


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        Event().wait(0.05)
    return found


def children_of(pid):
    return [child for child, _, parent, _ in processes() if parent == pid]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- the schedule ----------------------------------------------------------------------------------------------


def test_every_kind_of_step_comes_once_before_any_comes_again():
    deck = {*TROUBLES, *RESHARDS, *WINDOWS}
    steps = schedule(7)
    for _ in range(3):
        assert {next(steps).what for _ in deck} == deck


def test_a_seed_is_one_schedule():
    def first(seed):
        steps = schedule(seed)
        return [next(steps) for _ in range(40)]

    assert first(1) == first(1) != first(2)


@pytest.mark.parametrize("seed", range(5))
def test_the_windows_together_have_every_kind_of_fault_and_spare_the_producer(seed):
    kinds = set()
    for window in WINDOWS:
        seconds, rules = rules_of(window, Random(seed), failover_time=4.0)
        assert 0 < seconds < 10
        for rule in rules:
            made = FaultRule(**rule)
            kinds.add(made.kind)
            assert not made.fits("kinesis", "PutRecords")
            assert not made.fits("kinesis", "DescribeStream")
    assert kinds == KINDS.keys() - PUSH_FAULTS.keys()
