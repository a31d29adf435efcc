import signal
import sys
from pathlib import Path

import pytest

# Loaded here, not in tests/conformance or tests/interop: where tests run in several processes, only this conftest is in the first one.
sys.path.insert(0, str(Path(__file__).parent / "conformance"))
sys.path.insert(0, str(Path(__file__).parent / "storm"))
sys.path.insert(0, str(Path(__file__).parent / "interop"))

import interop_report
from conformance_report import pytest_report_teststatus, pytest_terminal_summary  # noqa: F401
from storm_seeds import COMMIT, SEEDS


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is for what a shell starts in the background; the programs of the tests would ignore their Ctrl-C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(interop_report, "interop-report")


def pytest_report_header() -> str:
    return f"storms: commit {COMMIT}, seeds {SEEDS.start} to {SEEDS.stop - 1}"


def pytest_addoption(parser: pytest.Parser) -> None:
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
        "--kinesis",
        choices=("local", "kinesis-local"),
        default="local",
        help="tests/interop: which Kinesis the workers read; kinesis-local comes from npm",
    )
    parser.addoption(
        "--write-docs",
        action="store_true",
        help="tests/interop: write the figures of the fleets into docs/mixed-fleet.md if all passed",
    )
