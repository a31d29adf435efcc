"""The processes of a fleet: started, watched, signalled and ended by process id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fleet_clock import OFFSET, OFFSET_VARIABLE, PARENT_VARIABLE
from fleet_evidence import ENDINGS, REQUESTS, STREAM, TABLE
from fleet_recording import RECORDING_VARIABLE, WORKER_VARIABLE

from pykcl.cli.local import local_environment
from pykcl.events import WorkerStarted
from pykcl.local.faults import CONTROL_PATH

HERE = Path(__file__).parent
NAME_VARIABLE = "AWS_SDK_UA_APP_ID"
"""The SDKs of both languages put it into each request."""


def environment(**more: str) -> dict[str, str]:
    """Of every child: this process's, without what would lead it to another AWS, and the run's clock."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYKCL_", "FLEET_"))
    }
    # Children start in folders of their own; without this they would look there for a PYTHONPATH such as ".".
    paths = [
        str(HERE),
        *(os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path),
    ]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        PARENT_VARIABLE: str(os.getpid()),
        OFFSET_VARIABLE: str(OFFSET),
        **more,
    }


class Server:
    """The local AWS of the run, with the stream STREAM. `url` once it answers."""

    def __init__(self, folder: Path, shards: int) -> None:
        with (folder / "server.err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "fleet_server.py"), STREAM, str(shards), str(folder / REQUESTS)],
                env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        with self.process.stdout as out:
            self.url = out.readline().decode().strip()
        if not self.url:
            raise RuntimeError(f"The local AWS did not start: see {folder / 'server.err'}.")

    def faults(self, *rules: Mapping[str, Any], seed: int | None = None) -> None:
        """From now on these rules."""
        self._control("POST", {"rules": list(rules), "seed": seed})

    def injected(self) -> dict[str, int]:
        counts: dict[str, int] = self._control("GET", None)["injected"]
        return counts

    def _control(self, method: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + CONTROL_PATH, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)

    def end(self) -> None:
        end_process(self.process)


class WorkerProcess:
    """One worker of whatever kind, its recording read while it grows. Subclasses start it.

    worker: its identifier. in_hand: records of running batches, by (shard, token). finished: (shard, sequence number,
    sub-sequence number) since somebody last emptied it. processors: by shard, the token of the one that has begun there
    and has not been told to end. noted_exit, frozen, leaving: for whoever runs the fleet.
    """

    STARTED: ClassVar[str]
    """What its log says then."""
    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, worker: str) -> None:
        self.worker = worker
        self.recording = folder / f"{worker}.jsonl"
        self.log = folder / f"{worker}.err"
        self.noted_exit = False
        self.frozen = False
        self.leaving = False
        self.in_hand: dict[tuple[str, int], int] = {}
        self.processors: dict[str, int] = {}
        self.hanging = False
        self.finished: list[tuple[str, str, int]] = []
        self._has_started = False
        self._offset = 0
        self._rest = b""

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def has_started(self) -> bool:
        """Whether it has said so; from then on it handles signals."""
        if not self._has_started and self.log.exists():
            self._has_started = self.STARTED in self.log.read_text("utf-8", "replace")
        return self._has_started

    @property
    def busy(self) -> int:
        """Records inside running calls of the processor, as far as they are not finished."""
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
        elif what == "init":
            self.processors[line["shard"]] = line["token"]
        elif what in ENDINGS and self.processors.get(line["shard"]) == line["token"]:
            del self.processors[line["shard"]]
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
        end_process(self.process)


class PykclWorker(WorkerProcess):
    """`pykcl run` of a consumer that writes down what it is given. options: of Config. more: environment variables.

    url: of all of AWS; kinesis_url: of a Kinesis elsewhere.
    """

    STARTED = WorkerStarted.TEXT

    def __init__(
        self,
        folder: Path,
        url: str,
        worker: str,
        options: Mapping[str, object],
        *,
        consumer: str = "fleet_consumer:Consumer",
        place: Path = HERE,
        kinesis_url: str | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, worker)
        command = [
            sys.executable, "-m", "pykcl.cli", "run", consumer, "--app", TABLE, "--stream", STREAM,
            "--start", "TRIM_HORIZON", "--worker-id", worker,
            *(word for name, value in options.items() for word in ("--option", f"{name}={value}")),
        ]  # fmt: skip
        asked = {**local_environment(url), RECORDING_VARIABLE: str(self.recording), WORKER_VARIABLE: worker}
        asked[NAME_VARIABLE] = worker
        if kinesis_url is not None:
            asked["AWS_ENDPOINT_URL_KINESIS"] = kinesis_url
        with self.log.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=place, env=environment(**asked, **(more or {})), stdin=subprocess.DEVNULL, stdout=err,
                stderr=err, start_new_session=True,
            )  # fmt: skip


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Whatever state it is in. Only ever a process of our own: it is waited for, so its id cannot be another's."""
    if process.poll() is None:
        process.kill()
        process.wait(60)


@contextlib.contextmanager
def all_ended(processes: Sequence[WorkerProcess | Server]) -> Iterator[None]:
    """Leave nothing behind, also when interrupted. SIGKILL ends frozen processes too."""
    try:
        yield
    finally:
        for one in processes:
            one.end()


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Every process of this machine: its id, its state (Z: it has ended and was not waited for), parent and group."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before may hold anything, brackets too.
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        yield int(path.parent.name), state, int(parent), int(group)
