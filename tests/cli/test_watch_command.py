"""`pykcl leases list --watch` in a pseudo-terminal: it repeats, shows colours, drives nothing, and ends with Ctrl-C."""

import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from service_kit import create_lease_table

from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_item import to_item
from pykcl.operate.states import mark_of

ROOT = Path(__file__).parents[2]
APP = "orders-app"
EVIL = "\x1b]0;owned\x07[bold]w[/]"
DEADLINE = 300


def shard(number):
    return f"shardId-{number:012d}"


@pytest.fixture
def aws(aws, dynamodb):
    create_lease_table(dynamodb)
    for one in (
        Lease(shard(0), Checkpoint("4917", 3), owner=EVIL, counter=7),
        Lease(shard(1), AT_TRIM_HORIZON),
    ):
        dynamodb.put_item(TableName=APP, Item=to_item(one))
    return aws


class Terminal:
    """The command in a pseudo-terminal of 80x24, and every byte it writes there."""

    def __init__(self, *arguments):
        self.written = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", PYTHONPATH=str(ROOT))
            command = ["leases", "list", "--app", APP, "--failover", "1s", *arguments]
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


def test_it_repeats_in_colours_with_hostile_names_inert_and_ends_with_ctrl_c(aws):
    terminal = Terminal("--watch=0.5s")
    red, yellow = b"\x1b[31m", b"\x1b[33m"
    try:
        terminal.until(yellow + b"UNKNOWN")
        terminal.until(red + b"STALE")
        terminal.until(b"hint: 000 did not move for the failover time")
        os.write(terminal.fd, b"\x03")
        assert terminal.end() == 0
    except BaseException:
        os.kill(terminal.pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal.fd)
    assert terminal.written.count(b"\x1b[H\x1b[J") >= 2, "each answer replaces the one before"
    assert yellow + b"UNOWNED" in terminal.written
    assert b"\x1b]0;owned" not in terminal.written
    owner = "\x1b[38;2;{};{};{}m".format(*mark_of(EVIL).rgb).encode()
    assert owner + b"\\x1b]0;owned" in terminal.written
