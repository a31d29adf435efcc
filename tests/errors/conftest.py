import os
import sys
from pathlib import Path
from unittest.mock import patch

import boto3
import pytest
from click.testing import CliRunner

HERE = Path(__file__).parent
# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(HERE))

from pykcl.cli.local import local_environment  # noqa: E402
from pykcl.cli.main import main  # noqa: E402
from pykcl.local.server import LocalAws  # noqa: E402


@pytest.fixture
def local_aws(monkeypatch):
    """A local AWS with a stream `orders` of two shards, and an environment that knows of it and of nothing else."""
    with LocalAws() as aws:
        for name in [name for name in os.environ if name.startswith(("AWS_", "PYKCL_"))]:
            monkeypatch.delenv(name)
        nowhere = {
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, value in {**local_environment(aws.url), **nowhere}.items():
            monkeypatch.setenv(name, value)
        aws.kinesis.create_stream("orders", 2)
        yield aws


@pytest.fixture
def dynamodb(local_aws):
    client = boto3.client("dynamodb")
    yield client
    client.close()


@pytest.fixture
def pykcl(monkeypatch):
    """pykcl("run", …): the result of the command in this process."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # It would leave a handler on a stream that is closed by then.
    monkeypatch.setattr("pykcl.cli.run.log_to_stderr", lambda *_, **__: None)
    with patch.dict(os.environ):  # for a Lambda handler the command sets some variables
        yield call


def call(*words):
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    result.words = words
    return result
