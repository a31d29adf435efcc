import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(HERE))

from pykcl.cli.local import local_environment  # noqa: E402
from pykcl.local.server import LocalAws  # noqa: E402


@pytest.fixture
def local_aws(monkeypatch):
    """An empty local AWS that this process and its children talk to."""
    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE"):
            monkeypatch.delenv(name, raising=False)
        yield aws
