"""`pykcl ui` as a process over a local AWS: its address and its end; and what it refuses."""

import http.client
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner
from fleet_table import lease, shard
from ui_page import Browser, Page

from pykcl.cli import ui as command
from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease_item import to_item

APP = "orders-app"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def aws(server):
    """The row as its worker left it, whatever the test before has made of it."""
    server.dynamodb.put_item(TableName=APP, Item=server.row)
    return server


@pytest.fixture(scope="module")
def server():
    """The stream orders with one shard and ten records, and a lease table whose worker has read them all and stopped."""
    with LocalAws() as server:
        server.kinesis.create_stream("orders", 1)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(server).items():
                patch.setenv(name, value)
            boto3.setup_default_session()
            kinesis, dynamodb = boto3.client("kinesis"), boto3.client("dynamodb")
            numbers = [
                kinesis.put_record(StreamName="orders", Data=b"x", PartitionKey="k")["SequenceNumber"]
                for _ in range(10)
            ]
            dynamodb.create_table(
                TableName=APP, BillingMode="PAY_PER_REQUEST", KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            )  # fmt: skip
            server.dynamodb, server.row = dynamodb, to_item(lease(0, None, Checkpoint(numbers[-1])))
            yield server


def environment(server):
    return {**local_environment(server.url), "AWS_EC2_METADATA_DISABLED": "true"}


class Running(Page):
    """`pykcl ui` in a process of its own."""

    def __init__(self, server, folder, *arguments):
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYKCL_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pykcl.cli", "ui", "--app", APP, "--stream", "orders", "--bind", "0", *arguments],
            env={**own, **environment(server), "PYTHONPATH": str(ROOT)}, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        found = re.fullmatch(rf"{APP} at http://127\.0\.0\.1:([0-9]+)/#token=([\w-]+)\n", line)
        assert found is not None, (
            line,
            self.process.stderr.read() if self.process.poll() is not None else "",
        )
        self.port, self.token = int(found[1]), found[2]
        self.host = f"127.0.0.1:{self.port}"

    def browser(self):
        answer = self.ask("POST", "/session", {"token": self.token}, Origin=f"http://{self.host}")
        return Browser(self, answer.headers["set-cookie"].partition(";")[0])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def test_it_prints_an_address_shows_the_table_and_ends_with_sigterm(aws, tmp_path):
    with Running(aws, tmp_path, "--failover", "1s") as page:
        whole = page.browser().state(lambda told: told["rows"].get(shard(0), {}).get("lag"))
        assert whole["facts"]["stream"] == "orders"
        assert whole["facts"]["region"] == "us-east-1"
        assert whole["rows"][shard(0)]["state"] == "UNOWNED"
        assert whole["rows"][shard(0)]["lag"]["behind"] == 0.0
        # With a viewer who never leaves.
        line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=300)
        line.request("GET", "/api/events", headers={"Host": page.host, "Cookie": page.browser().cookie})
        line.getresponse().readline()
        page.process.send_signal(signal.SIGTERM)
        page.process.wait(300)
        assert page.process.returncode == 0
        assert "Traceback" not in page.process.stderr.read()
        line.close()


def item(server):
    return server.dynamodb.get_item(TableName=APP, Key={"leaseKey": {"S": shard(0)}})["Item"]


def test_a_table_that_is_emptied_while_it_is_watched_is_shown_empty(aws, tmp_path):
    with Running(aws, tmp_path) as page:
        browser = page.browser()
        browser.state(lambda told: told["rows"])
        kept = item(aws)
        aws.dynamodb.delete_item(TableName=APP, Key={"leaseKey": {"S": shard(0)}})
        whole = browser.state(lambda told: told["rows"] == {})
        assert "deleted" in [event["kind"] for event in whole["events"]]
        aws.dynamodb.put_item(TableName=APP, Item=kept)
        browser.state(lambda told: told["rows"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ui"], 2, "No application"),
        (["ui", "--app", "app", "--bind", "nonsense:x"], 1, "is no address"),
        (["ui", "--app", "app", "--bind", "0.0.0.0:0"], 1, "ssh -L"),
        (["ui", "--app", "app", "--status-url", "http://"], 1, "not the address of a worker"),
        (["ui", "--app", "app", "--every", "1ms"], 2, "out of range"),
    ],
)
def test_what_it_refuses_it_says(arguments, code, words, monkeypatch):
    for name, value in local_environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    assert words in result.output


def test_without_its_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(command, "NEEDED_MODULES", ("no_such_module_here",))
    result = CliRunner().invoke(main, ["ui", "--app", "app"])
    assert result.exit_code == 1
    assert "pip install 'pykcl[ui]'" in result.output


def test_the_browser_is_told_the_address_by_a_file_of_this_user_only(monkeypatch):
    opened = []
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    with command.opened_in_browser("http://127.0.0.1:1/#token=secret", wanted=True):
        (address,) = opened
        assert "secret" not in address
        path = Path(address.removeprefix("file://"))
        assert "url=http://127.0.0.1:1/#token=secret" in path.read_text()
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.exists()


def test_without_a_screen_no_browser_is_opened(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(command.sys, "platform", "linux")
    monkeypatch.setattr(command.webbrowser, "open", lambda _: pytest.fail("opened"))
    with command.opened_in_browser("http://x", wanted=True):
        assert True
