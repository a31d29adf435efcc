"""One lease table over the in-memory DynamoDB. What every DynamoDB must do alike is in tests/conformance."""

import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

from lease_backend import Backend, SteppingRuntime, answered, timed_out

from pykcl.testing.memory.dynamodb import MemoryDynamoDB


@pytest.fixture
def memory():
    return MemoryDynamoDB()


@pytest.fixture
def memory_backend(memory):
    return Backend(memory, SteppingRuntime(), "leases")


@pytest.fixture
def errors():
    """timed_out() and answered(code, status): what a client raises."""
    return type("Errors", (), {"timed_out": staticmethod(timed_out), "answered": staticmethod(answered)})
