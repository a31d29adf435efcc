"""The emulators of others that the suites are also run over: installed on demand, started on a free port of 127.0.0.1.

They come from npm, pinned with their dependencies by `npm/package-lock.json`, into `.cache/npm` at the root of the
repository, which git ignores. Nothing of them is part of pykcl.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

HERE = Path(__file__).parent / "npm"
CACHE = Path(__file__).parents[2] / ".cache" / "npm"
LOCKED = ("package.json", "package-lock.json")
INSTALL_SECONDS = 180.0
START_SECONDS = 30.0
STOP_SECONDS = 10.0

_WORD = "conformance"


class Unavailable(Exception):
    """The emulator cannot be used here, for this reason."""


def installed(cache: Path = CACHE, here: Path = HERE) -> Path:
    """The folder of the installed packages. Raises Unavailable without Node, npm or a registry.

    here: with package.json and package-lock.json.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} not found")
    contents = b"".join((here / name).read_bytes() for name in LOCKED)
    target = cache / hashlib.sha256(contents).hexdigest()[:12]
    if not target.exists():
        _install(cache, target, here)
    return target / "node_modules"


def _install(cache: Path, target: Path, here: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    # Elsewhere first, then moved as a whole: a broken-off installation never looks like a finished one.
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        for name in LOCKED:
            shutil.copy(here / name, aside)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        try:
            done = subprocess.run(
                command, cwd=aside, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"npm did not finish within {INSTALL_SECONDS:g} s") from None
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if "npm error code" in line]
            raise Unavailable(
                f"npm could not install it ({said[0].split()[-1] if said else 'no reason given'})"
            )
        # OSError: another process was faster, and its folder is as good.
        with contextlib.suppress(OSError):
            os.rename(aside, target)
            os.mkdir(aside)  # for TemporaryDirectory to remove


class Emulator:
    """One Node process. start() it and use it as a context manager. port: on which it is told to listen; it gets a free one instead."""

    def __init__(self, command: list[str], port: int, settings: dict[str, str]) -> None:
        self.command = command
        self._asked_for = str(port)
        self._settings = settings
        self._told: queue.Queue[list[str]] = queue.Queue()
        self._said: deque[str] = deque(maxlen=30)
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> Emulator:
        """Returns once it listens. Raises Unavailable."""
        # Nothing of our environment: it may hold credentials, which an emulator of others need not see.
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            ["node", "--require", str(HERE / "preload.js"), *self.command],
            env={**kept, **self._settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="conformance-node", daemon=True)
        self._reader.start()
        try:
            self._port = int(self._wait_for("listening", self._asked_for, START_SECONDS))
        except BaseException:
            self.stop()
            raise
        return self

    def __enter__(self) -> Emulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def advance(self, seconds: float) -> None:
        """Put its clock forward."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{round(seconds * 1000)}\n")
        self._process.stdin.flush()
        self._wait_for("ahead", "", STOP_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if words[:1] == [_WORD]:
                self._told.put(words[1:])
            elif words:
                self._said.append(line.rstrip())
        self._told.put(["ended"])

    def _wait_for(self, what: str, of: str, seconds: float) -> str:
        """The last word of what preload.js tells about that. Raises Unavailable when it ends or time is up."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                words = self._told.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                words = ["nothing"]
            if words[0] in ("ended", "nothing"):
                told = "; ".join(self._said)[-300:]
                raise Unavailable(f"{Path(self.command[0]).parent.name} did not tell {what!r}: {told}")
            if words[0] == what and of in ("", words[1]):
                return words[-1]

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # preload.js ends the process
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


def dynalite() -> Emulator:
    """A running one: DynamoDB. Raises Unavailable."""
    main = installed() / "dynalite" / "cli.js"
    quick = ["--createTableMs", "1", "--deleteTableMs", "1", "--updateTableMs", "1"]
    return Emulator([str(main), "--port", "8000", *quick], 8000, {}).start()


def kinesis_local() -> Emulator:
    """A running one: Kinesis, with states that last a millisecond. Raises Unavailable."""
    folder = installed() / "kinesis-local"
    changes = ("CREATE_STREAM", "DELETE_STREAM", "MERGE_SHARDS", "SPLIT_SHARD", "UPDATE_SHARD_COUNT")
    settings = {f"{change}_DURATION": "1ms" for change in changes}
    settings |= {"SHARD_LIMIT": "5000", "LOG_LEVEL": "ERROR"}
    settings |= {"KINESIS_MOCK_PLAIN_PORT": "4568", "KINESIS_MOCK_TLS_PORT": "4567"}
    settings["KINESIS_MOCK_CERT_PATH"] = str(folder / "server.json")
    return Emulator([str(folder / "main.js")], 4568, settings).start()
