"""`pykcl local` as a process: where it listens, and which names it answers to."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner

from pykcl.cli.main import main
from pykcl.local.faults import CONTROL_PATH


@pytest.fixture
def start():
    """Starts it on a free port with these words; returns the URL it prints."""
    started = []

    def begin(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "pykcl", "local", "--port", "0", *words],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        name, _, url = process.stdout.readline().strip().partition("=")
        assert name == "export AWS_ENDPOINT_URL"
        return url

    yield begin
    for process in started:
        process.send_signal(signal.SIGTERM)
        with process.stdout:
            assert process.wait(300) == 0


def code(url, host):
    request = urllib.request.Request(url + CONTROL_PATH, headers={"Host": host})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=300) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_it_listens_on_loopback_and_answers_to_no_other_name(start):
    url = start()
    assert url.startswith("http://127.0.0.1:")
    assert [code(url, host) for host in ("localhost", "pykcl")] == [200, 403]


def test_it_listens_and_answers_as_it_is_asked_to(start):
    url = start("--host", "0.0.0.0", "--allow-host", "pykcl", "--allow-host", "aws.test")
    assert url.startswith("http://127.0.0.1:")
    assert code(url.replace("127.0.0.1", "127.0.0.2"), "127.0.0.2") == 200
    assert [code(url, host) for host in ("pykcl:4567", "aws.test", "attacker.example")] == [200, 200, 403]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--host", "192.0.2.1"), "of 192.0.2.1 cannot be used"),
        (("--allow-host", "http://pykcl"), "'http://pykcl' is not a host name"),
    ],
)
def test_what_cannot_be_is_one_line(words, says):
    result = CliRunner().invoke(main, ["local", "--port", "0", *words])
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert "Traceback" not in result.output
