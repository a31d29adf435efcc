"""A loop that tells when it began its work, and who finds it overdue."""

import pytest

from pykcl.errors import InternalError
from pykcl.runtime import SystemRuntime
from pykcl.testing.runtime import Simulation
from pykcl.worker.threads import ThreadHeartbeat


def test_a_loop_is_overdue_from_when_it_meant_to_begin_again():
    with Simulation() as simulation:
        runtime = simulation.runtime("w")
        pulse = ThreadHeartbeat("loop", runtime, patience=3.0)
        pulse.beat()
        simulation.sleep(2.0)
        assert pulse.status(runtime.monotonic()).overdue == pytest.approx(2.0), (
            "a piece of work that takes 2 s by now"
        )
        pulse.beat()
        pulse.rest(20.0)
        simulation.sleep(15.0)
        resting = pulse.status(runtime.monotonic())
        assert (resting.overdue, resting.attempted_ago) == (0.0, pytest.approx(15.0))
        simulation.sleep(15.0)
        assert pulse.status(runtime.monotonic()).overdue == pytest.approx(10.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("body", "state", "died_of"), [(lambda: None, "ended", None), (lambda: {}["x"], "died", "KeyError")]
)
def test_how_a_loop_ended_is_told(body, state, died_of):
    told, runtime = [], SystemRuntime()
    pulse = ThreadHeartbeat("loop", runtime, patience=0.0)
    pulse.spawn(body, told.append).join(300)
    found = pulse.status(runtime.monotonic())
    assert (found.state, found.died_of) == (state, died_of)
    assert [type(error) for error in told] == ([InternalError] if died_of else [])
