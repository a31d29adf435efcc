"""The processes of a run: started, watched, signalled and ended by process id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_breaks import BREAK_VARIABLE
from chaos_clock import OFFSET, OFFSET_VARIABLE, PARENT_VARIABLE
from chaos_evidence import REQUESTS, TABLE

from pykcl.cli.local import local_environment
from pykcl.events import WorkerStarted
from pykcl.local.faults import CONTROL_PATH

HERE = Path(__file__).parent
STREAM = "chaos"


@dataclass(frozen=True, slots=True)
class Settings:
    """failover_time: seconds. break_: which wrong build the workers are, empty for the right one."""

    folder: Path
    failover_time: float
    shards: int
    break_: str = ""
    grace: float = 25.0


def environment(**more: str) -> dict[str, str]:
    """Of every child: this process's, without what would lead it to another AWS, and the run's clock."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYKCL_", "CHAOS_"))
    }
    return {
        **kept,
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        PARENT_VARIABLE: str(os.getpid()),
        OFFSET_VARIABLE: str(OFFSET),
        **more,
    }


class Server:
    """The local AWS of the run. `url` once it answers."""

    def __init__(self, settings: Settings) -> None:
        with (settings.folder / "server.err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "chaos_server.py"), STREAM, str(settings.shards),
                 str(settings.folder / REQUESTS)],
                env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        with self.process.stdout as out:
            self.url = out.readline().decode().strip()
        if not self.url:
            raise RuntimeError(f"The local AWS did not start: see {settings.folder / 'server.err'}.")

    def faults(self, *rules: Mapping[str, Any], seed: int | None = None) -> None:
        """From now on these rules."""
        self._control("POST", {"rules": list(rules), "seed": seed})

    def injected(self) -> dict[str, int]:
        counts: dict[str, int] = self._control("GET", None)["injected"]
        return counts

    def _control(self, method: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + CONTROL_PATH, data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)

    def end(self) -> None:
        _end(self.process)


class Child:
    """One `pykcl run`. What it wrote down is read while it grows."""

    def __init__(self, settings: Settings, server: Server, worker: str) -> None:
        self.worker = worker
        self.recording = settings.folder / f"{worker}.jsonl"
        self.hang_file = settings.folder / f"{worker}.jsonl.hang"
        self.log = settings.folder / f"{worker}.err"
        self._has_started = False
        self.noted_exit = False
        self.frozen = False
        self.leaving = False
        self._offset = 0
        self._rest = b""
        self.in_hand: dict[tuple[str, int], int] = {}
        self.hanging = False
        self.finished: list[tuple[str, str, int]] = []
        options = {
            "failover_time": settings.failover_time, "idle_time": 0.3, "parent_poll_interval": 0.3,
            "shard_sync_interval": 5, "cleanup_interval": 8, "max_records": 40, "shutdown_grace": settings.grace,
        }  # fmt: skip
        command = [
            sys.executable, "-m", "pykcl.cli", "run", "consumer:Consumer", "--app", TABLE, "--stream", STREAM,
            "--start", "TRIM_HORIZON", "--worker-id", worker,
            *(word for name, value in options.items() for word in ("--option", f"{name}={value}")),
        ]  # fmt: skip
        more = {
            **local_environment(server.url),
            "CHAOS_RECORDING": str(self.recording),
            "CHAOS_WORKER": worker,
            BREAK_VARIABLE: settings.break_,
        }
        with self.log.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=HERE, env=environment(**more), stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def has_started(self) -> bool:
        """Whether it has said so; from then on it handles signals."""
        self._has_started = self._has_started or WorkerStarted.TEXT in self.log.read_text("utf-8", "replace")
        return self._has_started

    @property
    def busy(self) -> int:
        """Records inside running calls of process_records, as far as they are not finished."""
        return sum(self.in_hand.values())

    def poll(self) -> None:
        """Read what it has written since the last call."""
        if not self.recording.exists():
            return
        with self.recording.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._told(json.loads(line))

    def _told(self, line: Mapping[str, Any]) -> None:
        what = line["what"]
        if what == "hanging":
            self.hanging = True
        elif what == "given":
            self.in_hand[line["shard"], line["token"]] = len(line["records"])
        elif what == "done":
            key = (line["shard"], line["token"])
            self.in_hand[key] = self.in_hand.get(key, 1) - 1
            sequence, sub, _ = line["record"]
            self.finished.append((line["shard"], sequence, sub))

    def send(self, number: signal.Signals) -> None:
        """Does nothing to one that has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self) -> None:
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever state it is in. Only ever a process of our own: it is waited for, so its id cannot be another's."""
    if process.poll() is None:
        process.kill()
        process.wait(60)


@contextlib.contextmanager
def all_ended(processes: Sequence[Child | Server]) -> Iterator[None]:
    """Leave nothing behind, also when interrupted. SIGKILL ends frozen processes too."""
    try:
        yield
    finally:
        for one in processes:
            one.end()
