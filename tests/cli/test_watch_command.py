"""`pykcl leases watch` as a command: pictures, refusals, and the real thing in a pseudo-terminal."""

import importlib.util
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from xml.etree import ElementTree

import boto3
import pytest
from click.testing import CliRunner

from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_item import to_item

ROOT = Path(__file__).parents[2]
DRAWN = {"svg", "style", "defs", "clipPath", "rect", "g", "text", "circle"}
APP = "orders-app"
EVIL = "\x1b]0;owned\x07[bold]w[/]"
DEADLINE = 30.0


def shard(number):
    return f"shardId-{number:012d}"


@pytest.fixture(scope="module")
def server():
    with LocalAws() as aws:
        client = boto3.client(
            "dynamodb", endpoint_url=aws.url, region_name="us-east-1",
            aws_access_key_id="local", aws_secret_access_key="local",
        )  # fmt: skip
        for table, key in ((APP, "leaseKey"), ("invoices", "id")):
            client.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        for one in (
            Lease(shard(0), Checkpoint("4917", 3), owner=EVIL, counter=7),
            Lease(shard(1), AT_TRIM_HORIZON),
        ):
            client.put_item(TableName=APP, Item=to_item(one))
        yield aws


@pytest.fixture
def aws(server, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "PYKCL_")):
            monkeypatch.delenv(name)
    for name, value in local_environment(server.url).items():
        monkeypatch.setenv(name, value)
    boto3.setup_default_session()
    return server


def pykcl(*arguments, code=0, **environment):
    found = CliRunner().invoke(
        main, ["leases", "watch", "--app", APP, "--failover", "1s", *arguments], env=environment
    )
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return found.output


def test_a_snapshot_tells_who_is_stale_and_needs_no_terminal(aws):
    told = pykcl("--snapshot", COLUMNS="120", LINES="20").split("\n")
    assert max(map(len, told)) <= 120
    assert len(told) <= 20 + 1
    assert re.search(r"^.000 +STALE +\S \\x1b\]0;owned\\x07\[bold\]w\[/\]", "\n".join(told), re.MULTILINE)
    assert "hint: 000 did not move for the fail-over time (1 s)" in " ".join(told)


def test_a_snapshot_shows_the_tab_and_the_rows_that_were_asked_for(aws):
    told = pykcl("--snapshot", "--tab", "lineage", "--filter", "unowned")
    assert "[2 Lineage]" in told
    assert "001" in told
    assert "owned\\x07" not in told.split("hint:")[0]


def test_without_a_terminal_it_says_what_to_do_instead(aws):
    told = pykcl(code=2)
    assert "--snapshot" in told
    assert "leases list --watch" in told


def test_without_textual_it_says_how_to_get_it(aws, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "textual" else find(name, *more)
    )
    for arguments in ([], ["--snapshot"]):
        assert "pip install 'pykcl[watch]'" in pykcl(*arguments, code=1)


def test_a_wrong_table_and_wrong_options_are_refused(aws):
    assert "is not a lease table" in pykcl("--snapshot", "--app", "invoices", code=1)
    assert "There is no lease table" in pykcl("--snapshot", "--app", "nowhere", code=1)
    pykcl("--snapshot", "--every", "0.1s", code=2)
    pykcl("--snapshot", "--tab", "mutations", code=2)


def test_the_other_commands_do_not_load_textual():
    code = "import sys, pykcl.cli.leases; print('textual' in sys.modules, 'boto3' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.split() == ["False", "False"]


class Terminal:
    """The command in a pseudo-terminal of 80x24, and every byte it writes there."""

    def __init__(self, *arguments):
        self.written = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", PYTHONPATH=str(ROOT))
            command = ["leases", "watch", "--app", APP, "--failover", "1s", *arguments]
            os.execv(sys.executable, [sys.executable, "-m", "pykcl.cli", *command])
        ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def until(self, wanted):
        deadline = time.monotonic() + DEADLINE
        while wanted not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            self.read()

    def read(self):
        if not select.select([self.fd], [], [], 0.2)[0]:
            return True
        try:
            new = os.read(self.fd, 65536)
        except OSError:
            return False
        self.written += new
        return bool(new)

    def end(self):
        """The exit code, once it has ended."""
        deadline = time.monotonic() + DEADLINE
        while self.read():
            assert time.monotonic() < deadline, self.written[-2000:]
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("how", ["q", "ctrl-c", "SIGTERM"])
def test_in_a_terminal_it_runs_shows_hostile_names_inert_and_leaves_it_as_it_was(aws, how):
    terminal = Terminal()
    try:
        terminal.until(b"STALE")
        terminal.until(b"owned")
        if how == "SIGTERM":
            os.kill(terminal.pid, signal.SIGTERM)
        else:
            os.write(terminal.fd, b"q" if how == "q" else b"\x03")
        assert terminal.end() == 0
    except BaseException:
        os.kill(terminal.pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal.fd)
    assert b"\x1b]0;owned" not in terminal.written
    assert b"\\x1b]0;owned" in terminal.written
    assert b"\x1b[?1049h" in terminal.written
    assert b"\x1b[?1049l" in terminal.written.split(b"\x1b[?1049h")[-1]


def test_a_picture_is_drawn_with_its_colours_and_asks_nobody_for_anything(aws, tmp_path):
    file = tmp_path / "fleet.svg"
    assert pykcl("--svg", str(file), COLUMNS="120", LINES="20") == f"wrote {file}\n"
    drawn = ElementTree.fromstring(file.read_text("utf-8"))
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    told = "".join(drawn.itertext()).replace("\xa0", " ")
    assert "STALE" in told
    assert r"\x1b]0;owned\x07[bold]w[/]" in told
    assert "url(http" not in file.read_text("utf-8")
    assert {element.tag.rpartition("}")[2] for element in drawn.iter()} <= DRAWN


def test_a_picture_that_cannot_be_drawn_says_why(aws, tmp_path):
    assert "No such file or directory" in pykcl("--svg", str(tmp_path / "no" / "fleet.svg"), code=1)
    assert "Choose one of them" in pykcl("--svg", str(tmp_path / "fleet.svg"), "--snapshot", code=2)
