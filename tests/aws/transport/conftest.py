"""The direct transport against servers that answer whatever a test says, byte for byte."""

import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

from raw_server import RawServer


@pytest.fixture
def server():
    with RawServer() as found:
        yield found


@pytest.fixture(scope="session")
def certificate(make_certificate):
    """A file with a certificate of 127.0.0.1, self-signed, and its key."""
    return str(make_certificate())
