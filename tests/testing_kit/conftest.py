import os
import sys
import threading
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

# By name: the entry point is there only where the package was installed since it got one.
from pykcl.testing.plugin import kcl_clock, kinesis, pykcl_local_aws, worker  # noqa: F401


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


@pytest.fixture
def leaves_nothing():
    """No thread and no file or socket is left by the test."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files
