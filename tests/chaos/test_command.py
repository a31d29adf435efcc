"""`python tests/chaos`: exit codes and what is said."""

import subprocess
import sys
from pathlib import Path

from chaos_checks import ACTIONS
from chaos_story import good_story

HERE = Path(__file__).parent


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(HERE), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )  # fmt: skip


def test_the_files_of_a_run_that_kept_every_promise_pass(tmp_path):
    good_story(lambda: ACTIONS).evidence(tmp_path)
    done = run("--judge", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")
    assert "duplicates D3, after a freeze" in done.stdout


def test_those_of_one_that_lost_a_record_fail_and_name_it(tmp_path):
    story = good_story(lambda: ACTIONS)
    story.drop("w2", story.lines("w2", "done", "A")[-1])
    story.evidence(tmp_path)
    done = run("--judge", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1][:20]) == (1, "FAIL: nothing lost, ")
    assert (
        "record 8 (108:0) of A was put and never finished; w2 checkpointed 108:0; given to w2" in done.stdout
    )


def test_a_long_run_in_which_something_was_not_exercised_fails(tmp_path):
    good_story(lambda: ACTIONS[1:]).evidence(tmp_path)
    done = run("--judge", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAIL: done to the fleet")
    assert "NOT EXERCISED" in done.stdout


def test_an_unknown_wrong_build_is_refused():
    done = run("--break", "everything")
    assert done.returncode == 2
    assert "checkpoint-before-delivery" in done.stderr
