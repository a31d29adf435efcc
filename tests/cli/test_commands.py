"""The `pykcl` command: help, exit codes, and what bad input is answered with."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pykcl.cli.main import VERBS, main
from pykcl.cli.options import from_arguments
from pykcl.cli.stopping import stop_by_signals
from pykcl.config_sources import from_environment
from pykcl.errors import ConfigError

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYKCL_"))}
NOWHERE = {
    **CLEAN,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def _pykcl(*arguments, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "pykcl.cli", *arguments],
        env=environment or NOWHERE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ORDERS = ("run", "examples.orders:Orders", "--app", "orders-app", "--stream", "orders")


def test_help_names_every_verb():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(verb in result.output for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    result = CliRunner().invoke(main, [verb, "--help"])
    assert result.exit_code == 0
    assert "Options:" in result.output


@pytest.mark.parametrize("module", ["pykcl", "pykcl.cli"])
def test_the_package_itself_is_the_command(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: pykcl ")


def test_no_region_says_where_it_looked_and_exits_78():
    result = _pykcl(*ORDERS)
    assert result.returncode == 78
    assert "No AWS region" in result.stderr
    assert "AWS_REGION" in result.stderr
    assert "Traceback" not in result.stderr


def test_no_credentials_says_where_it_looked_and_exits_78():
    result = _pykcl(*ORDERS, environment={**NOWHERE, "AWS_REGION": "eu-west-1"})
    assert result.returncode == 78
    assert "No AWS credentials" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run"], 2, "Missing argument"),
        ([*ORDERS[:1], "examples.orders", *ORDERS[2:]], 2, "is not MODULE:CLASS"),
        (["run", "nowhere.at_all:Orders", "--app", "a-b", "--stream", "s"], 2, "no module"),
        (["run", "examples.orders:Nothing", "--app", "a-b", "--stream", "s"], 2, "has no 'Nothing'"),
        (["run", "examples.orders:Orders", "--stream", "s"], 2, "--app"),
        (["run", "examples.orders:Orders", "--app", "a-b"], 2, "--stream"),
        ([*ORDERS, "--start", "LATES"], 78, "Did you mean 'LATEST'"),
        ([*ORDERS, "--start", "2026-11-20T09:00:00"], 78, "no time zone"),
        ([*ORDERS, "--option", "failover=3"], 78, "Did you mean 'failover_time'"),
        ([*ORDERS, "--option", "failover_time"], 78, "NAME=VALUE"),
        ([*ORDERS, "--option", "failover_time=soon"], 78, "not what failover_time takes"),
        ([*ORDERS, "--option", "failover_time=0.1"], 78, "at least 1"),
        ([*ORDERS, "--option", "max_records=20000"], 78, "10000"),
        ([*ORDERS, "--option", "on_error=retyr"], 78, "Did you mean 'retry'"),
        (["local", "--stream", "orders:none"], 2, "NAME:SHARDS"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_bad_input_is_answered_with_what_why_and_what_to_do(arguments, code, told):
    result = _pykcl(*arguments)
    assert result.returncode == code, result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_an_instance_instead_of_a_class_is_refused_with_what_to_write(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from pykcl import RecordProcessor\n"
        "class Mine(RecordProcessor):\n"
        "    def process_records(self, batch): pass\n"
        "mine = Mine()\n"
    )
    monkeypatch.chdir(tmp_path)
    result = _pykcl("run", "mine:mine", "--app", "orders-app", "--stream", "orders")
    assert result.returncode == 78
    assert "Do: processor=Mine" in result.stderr


def test_options_come_from_the_environment_typed():
    found = from_environment(
        {"PYKCL_FAILOVER_TIME": "3.5", "PYKCL_MAX_LEASES": "7", "PYKCL_CREATE_TABLE": "no", "HOME": "/"}
    )
    assert found == {"failover_time": 3.5, "max_leases": 7, "create_table": False}


def test_an_unknown_environment_option_is_refused_by_its_whole_name():
    with pytest.raises(ConfigError, match=r"PYKCL_FAILOVER names no option\. Did you mean 'failover_time'"):
        from_environment({"PYKCL_FAILOVER": "3"})


def test_arguments_may_be_written_with_dashes():
    assert from_arguments(["failover-time=3"]) == {"failover_time": 3.0}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("off", False)])
def test_switches_take_the_usual_words(text, value):
    assert from_arguments([f"create_table={text}"]) == {"create_table": value}
    with pytest.raises(ConfigError):
        from_arguments(["create_table=perhaps"])


def test_a_port_that_is_taken_is_named_with_a_way_out():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _pykcl("local", "--port", str(port))
    assert result.returncode == 78
    assert f"Port {port}" in result.stderr
    assert "--port 0" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_waits_for_signals_leaves_their_handlers_as_they_were(number):
    before = signal.getsignal(number)
    with stop_by_signals() as stop:
        os.kill(os.getpid(), number)
        stop.wait()
    assert signal.getsignal(number) is before
