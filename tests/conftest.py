import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# Loaded here, not in tests/conformance or tests/interop: where tests run in several processes, only this conftest is in the first one.
sys.path.insert(0, str(Path(__file__).parent / "conformance"))
sys.path.insert(0, str(Path(__file__).parent / "interop"))

import boto3
import botocore.session
import interop_report
from botocore.handlers import BUILTIN_HANDLERS
from botocore.loaders import Loader
from conformance_report import pytest_report_teststatus, pytest_terminal_summary  # noqa: F401
from hypothesis import HealthCheck, settings
from moto.core.models import botocore_stubber

from pykcl.aws.transport.get_records import PROBES
from pykcl.testing.fleet import Fleet
from pykcl.testing.runtime import Simulation
from tests.simulation.seeds import COMMIT, SEEDS

# No example fails for the time it took, nor for what a busy machine takes to make one; what fails tells how to repeat it.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("unhurried")

# Importing moto puts a handler of its own into every client made afterwards, and with a stranger's handler nothing is
# read over the direct transport. Of moto the suite uses what the local AWS does: its request handlers alone. Taken out
# before tests are collected, since modules of tests import moto, and boto3's default session keeps what it began with.
BUILTIN_HANDLERS.remove(("before-send", botocore_stubber))


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is for what a shell starts in the background; the programs of the tests would ignore their Ctrl-C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # xdist tells its processes how wide its own terminal is; commands under test would cut their tables to that.
    os.environ.pop("COLUMNS", None)
    config.pluginmanager.register(interop_report, "interop-report")
    # Ten thousand tests and boto3's models live to the end: walking them less often saves an eighth of the processor's time.
    gc.set_threshold(20_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More processes than cores: some of them wait for a program under test or for an interval of real time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


def pytest_report_header(config: pytest.Config) -> str:
    if not config.getoption("--slow"):
        return "slow tests are left out: --slow runs them, too"
    return f"slow tests: commit {COMMIT}, seeds {SEEDS.start} to {SEEDS.stop - 1} of its simulations"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        action="store_true",
        help="run also the tests marked slow, among them each simulated fleet under two more seeds",
    )
    parser.addoption(
        "--npm",
        action="store_true",
        help="tests/conformance: run also over dynalite and kinesis-local, installed from npm into .cache",
    )
    parser.addoption(
        "--java",
        action="store_true",
        help="tests/interop: run real Java workers, whose jars Maven puts into .cache",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="tests/interop: repetitions and full lengths of the fleets that a KCL 3.x leader runs; an hour and more",
    )
    parser.addoption(
        "--kinesis",
        choices=("local", "kinesis-local"),
        default="local",
        help="tests/interop: which Kinesis the workers read; kinesis-local comes from npm",
    )
    parser.addoption(
        "--aws-prefix",
        metavar="PREFIX",
        help="tests/conformance: run over the account of the environment alone; see tests/verify_aws, which removes what is made",
    )
    parser.addoption(
        "--worker-option",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="tests/interop: an option of Config for all pykcl workers of the fleets, such as http_transport=boto3",
    )
    parser.addoption(
        "--write-docs",
        action="store_true",
        help="tests/interop: write the figures of the fleets into docs/guides/mixed-fleet.md if all passed",
    )


class SharedModels(Loader):
    """The models of AWS's services for all sessions of a process.

    Each session would read them anew, which is most of what a client costs. Where boto3 keeps its own is set once, too.
    """

    @property
    def search_paths(self) -> list[str]:
        # Each session of boto3 appends its own folder, the same one.
        self._search_paths[:] = dict.fromkeys(self._search_paths)
        return self._search_paths


@pytest.fixture(autouse=True, scope="session")
def models_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        models = SharedModels()
        create_loader = botocore.session.create_loader
        patch.setattr(
            botocore.session, "create_loader", lambda paths=None: create_loader(paths) if paths else models
        )
        yield


@pytest.fixture(autouse=True)
def no_endpoint_has_proved_that_it_speaks_cbor() -> None:
    """The next server may have the port of the last one."""
    PROBES.clear()


@pytest.fixture(autouse=True)
def no_session_of_boto3_outlives_its_test() -> Iterator[None]:
    """It has the credentials and the region of the test that was the first to need it."""
    yield
    boto3.DEFAULT_SESSION = None


@pytest.fixture(
    params=[0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))],
    ids=lambda seed: f"seed{seed}",
)
def fleet_seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def new_fleet(fleet_seed: int) -> Iterator[Callable[..., Fleet]]:
    """new_fleet(shards=…): the unmodified worker in simulated time."""
    with ExitStack() as stack:

        def make(**options: object) -> Fleet:
            simulation = stack.enter_context(Simulation(seed=fleet_seed))
            return Fleet(simulation, **options)

        yield make
