"""Refusals of the command, and the environment of its workers."""

from __future__ import annotations

import pytest

from pykcl.cli import demo as command
from pykcl.demo.workers import worker_environment
from pykcl.errors import ConfigError


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(
        command.importlib.util, "find_spec", lambda name: None if name == "moto" else object()
    )
    with pytest.raises(ConfigError, match=r"needs moto, which is not installed.*pip install 'pykcl\[demo\]'"):
        command.refuse_missing_parts()
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"cbor2, hypercorn, moto, py_partiql_parser, which are not installed"
    ):
        command.refuse_missing_parts()


def test_an_unknown_break_is_refused(monkeypatch):
    monkeypatch.setenv("PYKCL_DEMO_BREAK", "nonsense")
    with pytest.raises(ConfigError, match="checkpoint-before-delivery"):
        command.chosen_break()


def test_workers_see_the_local_aws_and_nothing_else_of_aws():
    surroundings = {
        "PATH": "/bin",
        "AWS_PROFILE": "prod",
        "AWS_ENDPOINT_URL_KINESIS": "https://elsewhere",
        "HTTP_PROXY": "http://proxy",
    }
    environment = worker_environment(surroundings, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert environment["PATH"] == "/bin"
    assert environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert environment["NO_PROXY"] == "127.0.0.1"
    assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL_KINESIS"} & environment.keys()
