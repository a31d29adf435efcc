"""Surroundings in which boto3 finds nothing but what a test puts there, and never asks a real network."""

import os
import sys
from pathlib import Path

import pytest
from botocore.loaders import Loader

from pykcl.aws import clients, credentials

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))


_MODELS = Loader()
"""Of the services. Every session would read them anew, which is most of what a test of a session costs."""


@pytest.fixture
def no_aws(monkeypatch, tmp_path):
    """No variable of AWS, no file, no instance. Returns the folder where AWS' two files would be."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    home = tmp_path / "aws"
    home.mkdir()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "*")
    plain = clients.botocore_session

    def sharing():
        inner = plain()
        inner.register_component("data_loader", _MODELS)
        return inner

    for module in (clients, credentials):
        monkeypatch.setattr(module, "botocore_session", sharing)
    return home
