"""Testing kit: run a record processor in simulated time, under many seeds, or over a local AWS.

    def test_orders():
        result = run_processor(Orders, records({"id": 1}, {"id": 2}), end="crash")
        assert_at_least_once(result)

Below it: `runtime`, threads and time under a seed; `memory`, a DynamoDB that evaluates real requests; `simulation`,
whole fleets over both, with faults and checkers. It may import everything but `cli`; nothing in pykcl may import it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykcl.local.faults import FaultRule
    from pykcl.local.server import LocalAws
    from pykcl.testing.clock import SimulatedClock
    from pykcl.testing.consumer_run import run_consumer
    from pykcl.testing.fleet_runs import SimulationFailed, SimulationResult, simulate
    from pykcl.testing.input_records import InputRecord, records
    from pykcl.testing.local_aws import LocalStreams, RunningWorker
    from pykcl.testing.processor_run import run_processor
    from pykcl.testing.recorder import Call
    from pykcl.testing.result import Result, RunFailed, assert_at_least_once, assert_in_order, assert_no_loss
    from pykcl.testing.runtime.watchdog import UserCodeFailed

__all__ = [
    "Call",
    "FaultRule",
    "InputRecord",
    "LocalAws",
    "LocalStreams",
    "Result",
    "RunFailed",
    "RunningWorker",
    "SimulatedClock",
    "SimulationFailed",
    "SimulationResult",
    "UserCodeFailed",
    "assert_at_least_once",
    "assert_in_order",
    "assert_no_loss",
    "records",
    "run_consumer",
    "run_processor",
    "simulate",
]

# Fetched on first use: a plugin that pytest loads for every project must cost nothing, and only LocalAws needs moto.
_HOMES = {
    "Call": "pykcl.testing.recorder",
    "FaultRule": "pykcl.local.faults",
    "InputRecord": "pykcl.testing.input_records",
    "LocalAws": "pykcl.local.server",
    "LocalStreams": "pykcl.testing.local_aws",
    "Result": "pykcl.testing.result",
    "RunFailed": "pykcl.testing.result",
    "RunningWorker": "pykcl.testing.local_aws",
    "SimulatedClock": "pykcl.testing.clock",
    "SimulationFailed": "pykcl.testing.fleet_runs",
    "SimulationResult": "pykcl.testing.fleet_runs",
    "UserCodeFailed": "pykcl.testing.runtime.watchdog",
    "assert_at_least_once": "pykcl.testing.result",
    "assert_in_order": "pykcl.testing.result",
    "assert_no_loss": "pykcl.testing.result",
    "records": "pykcl.testing.input_records",
    "run_consumer": "pykcl.testing.consumer_run",
    "run_processor": "pykcl.testing.processor_run",
    "simulate": "pykcl.testing.fleet_runs",
}
_OF_THE_EXTRA = ("moto", "py_partiql_parser", "hypercorn", "cbor2")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pykcl.testing' has no attribute {name!r}")
    if name == "LocalAws":
        _refuse_missing_extra()
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _refuse_missing_extra() -> None:
    missing = [name for name in _OF_THE_EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"pykcl.testing.LocalAws needs the extra `local`, of which {', '.join(missing)} cannot be imported. "
            "Do: pip install 'pykcl[local]'."
        )
