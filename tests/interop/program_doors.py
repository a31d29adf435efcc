"""One program, unchanged, started at each door on one stream: by a real MultiLangDaemon of Java KCL 3.1.3, by `pykcl
multilangd`, and in process by `pykcl run --kclpy`. Each has a lease table of its own, so each gets every record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import boto3
from fleet_processes import NAME_VARIABLE, environment
from fleet_reaper import Reaper
from fleet_recording import complete_lines
from fleet_rows import LeaseRows, Position
from java_worker import COMPATIBLE, make_leases

from pykcl.demo.java import daemon_command, local_properties, shared_classes
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry, Put
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.record import Record
from pykcl.model.shard import Shard

PYKCL = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
JAVA, MULTILANGD, IN_PROCESS, SKIPPING = "java", "multilangd", "in process", "in process, --on-error skip"
DOORS = (JAVA, MULTILANGD, IN_PROCESS)
JAVA_VERSION = "3.1.3"
PATIENCE = 90.0
STOP_SECONDS = 40.0

PROPERTIES = {
    "clientVersionConfig": COMPATIBLE, "failoverTimeMillis": 10_000, "idleTimeBetweenReadsInMillis": 500,
    "shardSyncIntervalMillis": 3000, "parentShardPollIntervalMillis": 1000, "shutdownGraceMillis": 15000,
}  # fmt: skip


class Overdue(AssertionError):
    """What was waited for did not come; says what the doors last said."""


class Door:
    """One running program. exit: the code of whoever runs it, while that is not waited for None."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], folder: Path, rows: LeaseRows) -> None:
        self.name = name
        self.process = process
        self.folder = folder
        self.exited_by_itself: int | None = None
        self._rows = rows

    def __repr__(self) -> str:
        return self.name

    @property
    def exit(self) -> int | None:
        return self.process.poll()

    def notes(self, *what: str) -> list[dict[str, Any]]:
        """What the program wrote down, see programs/noting.py."""
        found = complete_lines(self.folder / "notes")
        return [note for note in found if not what or note["what"] in what]

    def records(self) -> dict[str, list[tuple[Any, ...]]]:
        """By shard, in the order they were worked on."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for note in self.notes("record"):
            found.setdefault(note["shard"], []).append(tuple(note["record"]))
        return found

    def worked_on(self) -> list[tuple[str, int]]:
        """(sequence number, sub-sequence number) of all of them, in the order of the notes."""
        return [(one[0], one[1]) for records in self.records().values() for one in records]

    def answers(self) -> dict[str, list[tuple[Any, ...]]]:
        """By shard, what was asked of the checkpointer and its error, in order."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for note in self.notes("checkpoint"):
            found.setdefault(note["shard"], []).append((tuple(note["asked"]), note["error"]))
        return found

    def shards(self, what: str) -> set[str]:
        return {note["shard"] for note in self.notes(what)}

    def checkpoints(self) -> dict[str, list[Position]]:
        """By shard, every checkpoint that stood in its row of the lease table, in order."""
        self._rows.poll()
        found: dict[str, list[Position]] = {}
        for write in self._rows.writes:
            if write.applied and write.after is not None:
                history = found.setdefault(write.key, [])
                if history[-1:] != [write.after.checkpoint]:
                    history.append(write.after.checkpoint)
        return found

    def rows(self) -> dict[str, Position]:
        """By shard, the checkpoint in its row now."""
        self._rows.poll()
        return {key: row.checkpoint for key, row in self._rows.rows.items()}

    def log(self) -> str:
        texts = (self.folder / name for name in ("log", "out"))
        return "".join(text.read_text("utf-8", "replace") for text in texts if text.exists())

    def terminate(self) -> None:
        if self.exit is None:
            self.process.send_signal(signal.SIGTERM)


class Doors:
    """Use as a context manager. paths: for PYTHONPATH and NODE_PATH, where the packages of others are."""

    def __init__(self, folder: Path, jars: Sequence[Path], paths: Mapping[str, Path]) -> None:
        self.folder = folder
        self._jars = jars
        self._paths = paths
        self._pause = Event()
        self._doors: list[Door] = []
        self._user_records: Counter[str] = Counter()

    def __enter__(self) -> Doors:
        with contextlib.ExitStack() as stack:
            self.aws = stack.enter_context(LocalAws(request_log=self.folder / "requests.jsonl"))
            self._reaper = stack.enter_context(Reaper())
            keys = {
                "aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1",
            }  # fmt: skip
            self._dynamodb = boto3.client("dynamodb", endpoint_url=self.aws.url, **keys)
            stack.callback(self._dynamodb.close)
            stack.callback(self._end_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_all(self) -> None:
        for door in self._doors:
            if door.exit is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(door.process.pid, signal.SIGKILL)
                door.process.wait(60)
            self._reaper.forget(door.process.pid)

    # -- the stream --------------------------------------------------------------------------------------------

    def create(self, stream: str, shards: int) -> None:
        self.aws.kinesis.create_stream(stream, shards)

    def put(self, stream: str, shard: str, *payloads: bytes | Entry) -> list[Put]:
        """Into that shard at once: whoever reads, reads all of them or none. An Entry goes as it is."""
        first = self.first_key(stream, shard)
        entries = [
            one if isinstance(one, Entry) else Entry(one, f"key-{number}", first + number)
            for number, one in enumerate(payloads)
        ]
        put = self.aws.kinesis.put_records(stream, entries)
        assert all(isinstance(one, Put) and one.shard_id == shard for one in put), put
        alone = [Record(entry.data, entry.partition_key, "1") for entry in entries]
        self._user_records[stream] += sum(1 for _ in deaggregate_batch(alone, None))
        return [one for one in put if isinstance(one, Put)]

    def split(self, stream: str, shard: str) -> list[str]:
        """The children."""
        self.aws.kinesis.split(stream, shard)
        return [
            one.shard_id
            for one in self.aws.kinesis.list_shards(stream, operation=None)
            if shard in one.parents
        ]

    def first_key(self, stream: str, shard: str) -> int:
        """The first hash key of a shard."""
        hash_range = self._shard(stream, shard).hash_range
        assert hash_range is not None
        return hash_range.first

    def user_records(self, stream: str) -> int:
        """How many have been put, those in aggregates counted one by one."""
        return self._user_records[stream]

    def _shard(self, stream: str, shard: str) -> Shard:
        return next(
            one for one in self.aws.kinesis.list_shards(stream, operation=None) if one.shard_id == shard
        )

    # -- doors -------------------------------------------------------------------------------------------------

    def open(self, door: str, program: str, stream: str, *, again: bool = False) -> Door:
        """Start the program there. again: on the notes and the lease table of the one that was there before."""
        folder = self.folder / f"{stream}-{door.replace(' ', '-')}"
        folder.mkdir(exist_ok=again)
        table = folder.name.replace(",", "")
        if not again:
            shards = self.aws.kinesis.list_shards(stream, operation=None)
            make_leases(
                self._dynamodb, table, {one.shard_id: one.hash_range for one in shards if one.hash_range}
            )
        words = [str(PROGRAMS / program), str(folder / "notes")]
        interpreter = "node" if program.endswith(".js") else sys.executable
        properties = {
            **local_properties(
                application=table, stream=stream, worker=f"worker-{stream}", url=self.aws.url,
                executable=" ".join([interpreter, *words]),
            ),
            **PROPERTIES,
        }  # fmt: skip
        java = daemon_command(
            self._jars,
            folder,
            "app",
            properties=properties,
            log=folder / "log",
            flags=shared_classes(self._jars),
        )
        file = str(folder / "app.properties")
        pykcl = [sys.executable, "-m", "pykcl.cli"]
        skip = ["--on-error", "skip"] if door == SKIPPING else []
        command = {
            JAVA: java,
            MULTILANGD: [*pykcl, "multilangd", "-p", file],
        }.get(door, [*pykcl, "run", "--kclpy", words[0], "-p", file, *skip, "--", words[1]])
        process = self._start(command, folder, table)
        started = Door(door, process, folder, LeaseRows(self.folder / "requests.jsonl", table))
        self._doors.append(started)
        return started

    def _start(self, command: Sequence[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
        more = {
            "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", NAME_VARIABLE: name,
        }  # fmt: skip
        surroundings = environment(**more)
        for variable, path in (("PYTHONPATH", PYKCL), *self._paths.items()):
            before = surroundings.get(variable)
            surroundings[variable] = os.pathsep.join([*([before] if before else []), str(path)])
        with (folder / "out").open("ab") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=surroundings, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._reaper.watch(process.pid)
        return process

    # -- waiting -----------------------------------------------------------------------------------------------

    def wait(self, what: str, doors: Sequence[Door], condition: Callable[[Door], bool]) -> None:
        """Until it holds at each of these doors. Raises Overdue."""
        deadline = time.monotonic() + PATIENCE
        left = list(doors)
        while left := [door for door in left if not condition(door)]:
            if time.monotonic() > deadline or all(door.exit is not None for door in left):
                words = [f"-- {door.name}, exit {door.exit}\n{door.log()[-3000:]}" for door in left]
                raise Overdue("\n".join([f"No {what} within {PATIENCE:g} s, or ever.", *words]))
            self._pause.wait(0.05)

    def stop(self, doors: Sequence[Door]) -> None:
        """SIGTERM to those that run, and wait until they have gone in order."""
        for door in doors:
            door.terminate()
        for door in doors:
            door.process.wait(STOP_SECONDS)
