"""`pykcl run` or `pykcl multilangd` as a process of its own, with what it says and answers."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from pykcl.cli.local import local_environment

ROOT = Path(__file__).parents[2]
GUARD = 300.0
"""Seconds for what takes a second or two on a machine that has nothing else to do."""
PROGRAM = """
import threading
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            if record.data == b"poison":
                hang_here()
            if record.data == b"slow":
                threading.Event().wait(4)

def hang_here():
    threading.Event().wait()
"""

WRITES = """
import os
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            os.write(1, b"processed " + record.data + b"\\n")
"""
"""A processor whose standard output is all that it gets: see `written_by`."""


def written_by(*runs):
    """The data that runs of `WRITES` got."""
    return [
        one for run in runs for one in re.findall(r"^processed (.*)$", run.output.read_text(), re.MULTILINE)
    ]


def command(aws, *words, folder=None, **environment):
    """(exit code, all output) of a command that ends by itself. folder: where it leaves what it writes."""
    done = subprocess.run(
        [sys.executable, "-m", "pykcl.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **local_environment(aws.url), **environment},
        capture_output=True, text=True, timeout=GUARD, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def clean(monkeypatch):
    """No variable of AWS or pykcl."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "PYKCL_", "NO_COLOR"))]:
        monkeypatch.delenv(name)


def lead_to(monkeypatch, aws):
    """An environment of that AWS alone."""
    clean(monkeypatch)
    for name, text in local_environment(aws.url).items():
        monkeypatch.setenv(name, text)


def lead_nowhere(monkeypatch):
    """An environment without region and credentials."""
    clean(monkeypatch)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def create_lease_table(dynamodb, name="orders-app", key="leaseKey"):
    dynamodb.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


class Service:
    """One process, its standard error in a file."""

    def __init__(self, folder, aws, verb, *arguments, program=PROGRAM, **environment):
        (folder / "program.py").write_text(program)
        self.output, self.errors = folder / "stdout", folder / "stderr"
        clean = {name: text for name, text in os.environ.items() if not name.startswith("PYKCL_")}
        self.folder = folder
        with self.output.open("wb") as out, self.errors.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pykcl.cli", verb, *arguments],
                cwd=folder,
                env={**clean, **local_environment(aws.url), "PYTHONPATH": str(ROOT), **environment},
                stdout=out,
                stderr=err,
                # A group of its own, as in a terminal; what it leaves behind can be ended with it.
                start_new_session=True,
            )

    @property
    def text(self):
        return self.errors.read_text()

    @property
    def lines(self):
        """The log, where it is JSON; not what the command itself says."""
        whole = self.text.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def events(self, kind):
        return [line for line in self.lines if line.get("event") == kind]

    def until(self, condition, what, seconds=GUARD, *, lives=True):
        """lives: the process must not end meanwhile."""
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while not condition():
            assert not lives or self.process.poll() is None, f"it ended: {self.text[-2000:]}"
            assert time.monotonic() < deadline, f"{what} did not come: {self.text[-2000:]}"
            pause.wait(0.02)

    def get(self, path, **headers):
        """(code, body); (0, "") where nobody answers."""
        found = re.search(r"health at http://([\d.]+):(\d+)", self.text)
        if found is None:
            return 0, ""
        connection = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=GUARD)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    @property
    def codes(self):
        return self.get("/livez")[0], self.get("/readyz")[0]

    def end(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
