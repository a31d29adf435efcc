import sys
from pathlib import Path

import pytest

# Loaded here, not in tests/conformance: where tests run in several processes, only this conftest is in the first one.
sys.path.insert(0, str(Path(__file__).parent / "conformance"))
sys.path.insert(0, str(Path(__file__).parent / "storm"))

from conformance_report import pytest_report_teststatus, pytest_terminal_summary  # noqa: F401
from storm_seeds import COMMIT, SEEDS


def pytest_report_header() -> str:
    return f"storms: commit {COMMIT}, seeds {SEEDS.start} to {SEEDS.stop - 1}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--npm",
        action="store_true",
        help="tests/conformance: run also over dynalite and kinesis-local, installed from npm into .cache",
    )
