"""A small run as it would be written down, fact by fact, so that a test can change one fact and see who notices.

The requests are those the product builds (`pykcl.model.lease_writes`): what the checks read is what is really sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_checks import Check
from fleet_evidence import END, HARNESS, PUTS, REQUESTS, TABLE, Evidence, load

from pykcl.local.faults import KINDS
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import LeaseWrite

METHODS = {"put_item": "PutItem", "update_item": "UpdateItem", "delete_item": "DeleteItem"}
Named = tuple[str, int, int]


class Story:
    """Facts in the order in which they are told; each takes ten milliseconds. Change them freely before `evidence`."""

    def __init__(self) -> None:
        self.t = 1_700_000_000_000
        self.requests: list[dict[str, Any]] = []
        self.puts: list[dict[str, Any]] = []
        self.harness: list[dict[str, Any]] = []
        self.told: dict[str, list[dict[str, Any]]] = {}
        self.said: dict[str, list[str]] = {}
        self.leases: dict[str, Lease] = {}
        self.end: dict[str, Any] = {"parents": {}, "unsettled": [], "faults": dict.fromkeys(KINDS, 1)}
        self._number = 0
        self._tokens: dict[tuple[str, str], int] = {}

    def _now(self) -> int:
        self.t += 10
        return self.t

    # -- the stream --------------------------------------------------------------------------------------------

    def shard(self, shard: str, *parents: str) -> None:
        self.end["parents"][shard] = list(parents)

    def put(self, shard: str, sequence: int, users: int = 1) -> list[Named]:
        """One Kinesis record with so many user records in it."""
        numbers = list(range(self._number + 1, self._number + 1 + users))
        self._number += users
        self.puts.append({"shard": shard, "sequence": str(sequence), "numbers": numbers})
        return [(str(sequence), sub, number) for sub, number in enumerate(numbers)]

    # -- processes ---------------------------------------------------------------------------------------------

    def note(self, what: str, **fields: Any) -> None:
        """A fact of the harness."""
        self.harness.append({"what": what, "t": self._now(), **fields})

    def start(self, *workers: str) -> None:
        for worker in workers:
            self.note("started", worker=worker)
            self.told[worker] = [{"what": "start", "worker": worker, "pid": 1, "t": self.t}]
            self.said[worker] = []

    def leave(self, worker: str, how: str, code: int) -> None:
        self.note(how, worker=worker)
        self.note("exited", worker=worker, code=code)

    # -- leases ------------------------------------------------------------------------------------------------

    def write(self, write: LeaseWrite, error: str | None = None) -> dict[str, Any]:
        """A request to the lease table, and what became of it."""
        operation, params = write.request()
        request = {
            "at_millis": self._now(),
            "service": "dynamodb",
            "operation": METHODS[operation],
            "parameters": {"TableName": TABLE, **params},
            "status": 400 if error else 200,
            "error_code": error,
        }
        self.requests.append(request)
        if error is None and write.after is not None:
            self.leases[write.key] = write.after
        return request

    def create(self, shard: str) -> None:
        parents = tuple(self.end["parents"][shard])
        self.write(lease_writes.create(Lease(shard, Checkpoint("TRIM_HORIZON"), parents=parents)))

    def take(self, worker: str, shard: str, *, begin: bool = True) -> None:
        """Take the lease, and initialize the processor."""
        self.write(lease_writes.take(self.leases[shard], worker))
        lease = self.leases[shard]
        self._tokens[worker, shard] = lease.counter
        self.said[worker].append(
            f"2026-01-01 00:00:00,000 INFO    lease taken shard={shard} reason=free from_owner=- counter={lease.counter}"
        )
        if begin:
            self.tell(worker, shard, "init", at=str(lease.checkpoint))

    def renew(self, shard: str) -> dict[str, Any]:
        return self.write(lease_writes.renew(self.leases[shard]))

    def checkpoint(self, shard: str, at: Named) -> dict[str, Any]:
        return self.write(lease_writes.checkpoint(self.leases[shard], Checkpoint(at[0], at[1])))

    def end_shard(self, worker: str, shard: str, *children: str) -> None:
        self.tell(worker, shard, "ended")
        self.write(lease_writes.end_shard(self.leases[shard], children))

    def release(self, worker: str, shard: str) -> None:
        self.tell(worker, shard, "shutdown")
        self.write(lease_writes.release(self.leases[shard]))

    # -- the processor -----------------------------------------------------------------------------------------

    def tell(self, worker: str, shard: str, what: str, **fields: Any) -> dict[str, Any]:
        """A line of a worker's recording."""
        line = {
            "what": what,
            "shard": shard,
            "token": self._tokens[worker, shard],
            **fields,
            "t": self._now(),
        }
        self.told[worker].append(line)
        return line

    def batch(
        self,
        worker: str,
        shard: str,
        records: list[Named],
        *,
        finish: int | None = None,
        checkpoint: bool = True,
    ) -> None:
        """Hand over, finish (all or so many), and checkpoint if all were finished."""
        self.tell(worker, shard, "given", records=records)
        for record in records[:finish]:
            self.tell(worker, shard, "done", record=record)
        if checkpoint and finish is None:
            self.checkpoint(shard, records[-1])

    # -- looking for facts -------------------------------------------------------------------------------------

    def lines(self, worker: str, what: str, shard: str | None = None) -> list[dict[str, Any]]:
        return [
            line for line in self.told[worker] if line["what"] == what and shard in (None, line.get("shard"))
        ]

    def drop(self, worker: str, line: dict[str, Any]) -> None:
        self.told[worker].remove(line)

    def updates(self, shard: str, sets: str = "leaseCounter") -> list[dict[str, Any]]:
        """The applied updates of a row that set an attribute."""
        return [
            request
            for request in self.requests
            if request["operation"] == "UpdateItem"
            and request["parameters"]["Key"]["leaseKey"]["S"] == shard
            and f"{sets} = " in request["parameters"]["UpdateExpression"]
        ]

    def evidence(self, folder: Path) -> Evidence:
        """Written to files and read again, as after a run."""
        _write(folder / REQUESTS, self.requests)
        _write(folder / PUTS, self.puts)
        _write(folder / HARNESS, self.harness)
        (folder / END).write_text(json.dumps(self.end), "utf-8")
        for worker, lines in self.told.items():
            _write(folder / f"{worker}.jsonl", lines)
            (folder / f"{worker}.err").write_text("\n".join([*self.said[worker], ""]), "utf-8")
        return load(folder)


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    # A line whose writer was killed in the middle of it: it has no end and must not count.
    path.write_text(text + '{"what":"don', "utf-8")


def good_story(actions: Callable[[], tuple[str, ...]] | None = None) -> Story:
    """A is split into C and D. w1 is killed, w2 stopped, w3 frozen, w4 forced; w5 ends last. Nothing went wrong."""
    story = Story()
    story.shard("A")
    story.shard("B")
    story.shard("C", "A")
    a = [record for n in range(101, 109) for record in story.put("A", n)]
    b = [*story.put("B", 201, users=3), *story.put("B", 202), *story.put("B", 203, users=2)]
    c = [record for n in range(301, 304) for record in story.put("C", n)]
    story.start("w1", "w2", "w3", "w4")
    story.create("A")
    story.create("B")
    _killed(story, a, b)
    _stopped(story, a, b, c)
    _frozen(story, c)
    story.start("w5")
    story.take("w5", "C")
    story.batch("w5", "C", c[2:])
    story.tell("w5", "C", "checkpoint", at=f"{c[2][0]}:{c[2][1]}")
    story.take("w5", "B")
    story.release("w5", "B")
    story.release("w5", "C")
    story.leave("w3", "terminated", 0)
    story.leave("w5", "terminated", 0)
    for action in actions() if actions else ():
        story.note("did", action=action)
    return story


def _killed(story: Story, a: list[Named], b: list[Named]) -> None:
    story.take("w1", "A")
    story.take("w1", "B")
    story.batch("w1", "A", a[:2])
    story.batch("w1", "B", b[:2])
    story.renew("A")
    story.batch("w1", "A", a[2:5], finish=2)
    story.leave("w1", "killed", -9)


def _stopped(story: Story, a: list[Named], b: list[Named], c: list[Named]) -> None:
    story.take("w2", "A")
    story.batch("w2", "A", a[2:6])
    story.batch("w2", "A", a[6:])
    story.create("C")
    story.end_shard("w2", "A", "C")
    story.take("w2", "B")
    story.batch("w2", "B", b[2:4])
    story.release("w2", "B")
    story.leave("w2", "terminated", 0)
    story.take("w3", "C")
    story.batch("w3", "C", c[:1])
    story.tell("w3", "C", "given", records=c[1:2])
    story.take("w4", "B")
    story.batch("w4", "B", b[4:])


def _frozen(story: Story, c: list[Named]) -> None:
    story.note("frozen", worker="w3")
    before = story.leases["C"]
    story.take("w4", "C")
    story.note("thawed", worker="w3")
    story.tell("w3", "C", "done", record=c[1])
    story.write(lease_writes.renew(before), error="ConditionalCheckFailedException")
    story.tell("w3", "C", "lost")
    story.batch("w4", "C", c[1:2])
    story.tell("w4", "C", "given", records=c[2:])
    story.tell("w4", "C", "hanging")
    story.release("w4", "B")
    story.leave("w4", "forced", 70)


def red(judge: Callable[[Story], dict[str, Check]], story: Story) -> tuple[set[str], str]:
    """Names of the checks that failed, and all their problems as one text."""
    failed = [check for check in judge(story).values() if check.verdict == "FAILED"]
    return {check.name for check in failed}, "\n".join(p for check in failed for p in check.problems)
