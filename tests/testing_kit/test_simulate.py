"""simulate: a processor in whole fleets; what fails can be run again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit_processors import Orders

from pykcl import ConfigError, RecordProcessor
from pykcl.testing import SimulationFailed, simulate

ROOT = Path(__file__).parents[2]


class Stuck(RecordProcessor):
    """Never gets past its first record."""

    def process_records(self, batch):
        raise ValueError("never")


def test_a_good_processor_keeps_every_guarantee():
    Orders.done.clear()
    result = simulate(Orders, seeds=2, first=3)
    assert result.seeds == range(3, 5)
    assert result.deliveries >= result.records - result.expired > 0
    assert len(Orders.done) >= result.records - result.expired
    assert re.fullmatch(
        r"<SimulationResult of seeds 3 to 4: every guarantee kept for \d+ records in \d+ deliveries, \d+ faults in "
        r"0\.\d simulated hours>",
        repr(result),
    )


def test_a_processor_that_never_gets_on_fails_with_the_command_that_runs_it_again(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SimulationFailed) as caught:
        simulate(Stuck, seeds=3, first=5, off=["F1", "F13"])
    replay = caught.value.replay
    assert f"  replay: {replay}\n" in str(caught.value)
    assert "Seed 5 failed: " in str(caught.value)
    assert caught.value.seed == 5
    assert replay.startswith("python -m pykcl.testing.simulation --seed 5 --off F1")
    assert replay.endswith("--processor tests.testing_kit.test_simulate:Stuck")


@pytest.mark.slow
def test_the_command_does_run_it_again(tmp_path, monkeypatch):
    (tmp_path / "stuck.py").write_text(
        "from pykcl import RecordProcessor\n\nclass Stuck(RecordProcessor):\n"
        "    def process_records(self, batch):\n        raise ValueError\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from stuck import Stuck as FromFile

    with pytest.raises(SimulationFailed) as caught:
        simulate(FromFile, seeds=1)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = caught.value.replay.replace("python", sys.executable, 1).split()
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    verdict = str(caught.value).splitlines()[0].removeprefix("Seed 0 failed: ")
    assert verdict in done.stdout
    assert re.search(
        r"The processor raised \d+ times, last ValueError at stuck.py:5: \(no text\)", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.slow
def test_what_no_command_can_name_is_run_again_by_a_call():
    def make_stuck():
        return Stuck()

    with pytest.raises(SimulationFailed) as caught:
        simulate(make_stuck, seeds=1, first=5, off=["F2"])
    assert caught.value.replay == "simulate(make_stuck, seeds=1, first=5, off=('F2',))"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seeds": 0}, "seeds=0 is not a whole number from 1"),
        ({"first": -1}, "first=-1 is not a whole number from 0"),
        ({"off": "F1"}, r"Do: write off=\('F1',\)"),
        ({"off": ["F99"]}, "no kind of fault called 'F99'"),
        ({"what": Orders()}, "one instance per shard"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        simulate(**{"what": Orders, **arguments})
