"""A `Told` made by hand, from requests as pykcl and Java send them: what the proofs of the scenarios are tried with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fleet_evidence import TABLE, Evidence, Item, Life, Process
from fleet_rows import SHARD_END, LeaseRows, Position, sender
from scenario_log import Told, sent_in

Values = dict[str, Any]


class ByHand:
    """Times in seconds. workers: j1 and so on are Java's. keys: shards, with their parents."""

    def __init__(self, *workers: str, **keys: tuple[str, ...]) -> None:
        self.lines: list[Values] = []
        self.rows = LeaseRows(Path(), TABLE)
        self.processes = {worker: Process(worker, 0) for worker in workers}
        self.parents = keys
        self.lives: list[Life] = []
        self.records: dict[str, list[Item]] = {}
        self.said: dict[str, list[Values]] = {worker: [] for worker in workers}
        self.notes: Values = {}

    def told(self) -> Told:
        evidence = Evidence(
            self.records, dict(self.parents), self.lives, self.processes, self.rows.writes, Counter(), {}
        )
        return Told(evidence, self.lines, sent_in(self.lines), self.said, self.notes)

    def ask(self, t: float, worker: str, operation: str, error: str | None = None, **params: Any) -> None:
        agent = "aws-sdk-java/2.33.0" if worker.startswith("j") else "Boto3/1.44.5"
        line = {
            "service": "dynamodb", "operation": operation, "at_millis": round(t * 1000), "error_code": error,
            "status": 400 if error else 200, "parameters": {"TableName": TABLE, **params},
            "user_agent": f"{agent} app/{worker}" if worker else agent,
        }  # fmt: skip
        assert sender(line) == worker
        self.lines.append(line)
        self.rows.take(line)

    def create(self, t: float, worker: str, key: str, **more: Any) -> None:
        row = {
            "leaseKey": {"S": key}, "leaseCounter": {"N": "0"}, "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"}, **more,
        }  # fmt: skip
        self.ask(t, worker, "PutItem", Item=row)

    def write(
        self, t: float, worker: str, key: str, what: str, *, at: Position | None = None, refused: bool = False,
        step: int = 1, **more: Any,
    ) -> None:  # fmt: skip
        """what: take, renew, checkpoint, end or release. at: of a checkpoint."""
        row = self.rows.rows[key]
        changes: Values = {"leaseCounter": {"N": str(row.counter + step)}, **more}
        if what == "take":
            changes["leaseOwner"] = more.get("leaseOwner", {"S": worker})
        if what in ("checkpoint", "end"):
            sequence, sub = at or SHARD_END
            changes["checkpoint"] = {"S": "SHARD_END" if what == "end" else str(sequence)}
            changes["checkpointSubSequenceNumber"] = more.get("checkpointSubSequenceNumber", {"N": str(sub)})
        error = "ConditionalCheckFailedException" if refused else None
        params = _of_java if worker.startswith("j") else _of_pykcl
        self.ask(
            t, worker, "UpdateItem", error, Key={"leaseKey": {"S": key}}, **params(changes, what == "release")
        )

    def delete(self, t: float, worker: str, key: str) -> None:
        self.ask(t, worker, "DeleteItem", Key={"leaseKey": {"S": key}})

    def life(
        self, t: float, worker: str, key: str, start: Position, given: list[Item], words: str = ""
    ) -> Life:
        """A processor, begun then. words: what it said."""
        token = -1 if worker.startswith("j") else self.rows.rows[key].counter
        life = Life(worker, key, token, start, round(t * 1000), given=[(round(t * 1000), given)])
        self.lives.append(life)
        self.say(t, worker, key, token, words)
        return life

    def say(self, t: float, worker: str, key: str, token: int, words: str) -> None:
        self.said[worker] += [
            {"what": word, "shard": key, "token": token, "t": round(t * 1000)} for word in words.split()
        ]


def _of_java(changes: Values, release: bool) -> Values:
    updates = {name: {"Action": "PUT", "Value": value} for name, value in changes.items()}
    return {"AttributeUpdates": {**updates, **({"leaseOwner": {"Action": "DELETE"}} if release else {})}}


def _of_pykcl(changes: Values, release: bool) -> Values:
    expression = "SET " + ", ".join(f"{name} = :{name}" for name in changes)
    values = {f":{name}": value for name, value in changes.items()}
    return {
        "UpdateExpression": expression + " REMOVE checkpointOwner, leaseOwner" * release,
        "ExpressionAttributeValues": {**values, ":seenOwner": {"S": "somebody"}},
    }


def untried(proofs: ModuleType, tests: Path) -> list[str]:
    """Public functions of a module that a file of tests does not call."""
    public = [name for name, one in vars(proofs).items() if getattr(one, "__module__", "") == proofs.__name__]
    text = tests.read_text("utf-8")
    return [name for name in public if not name.startswith("_") and f"proofs.{name}(" not in text]


def each_change(wrong: Mapping[Callable[[str], list[str]], Mapping[str, str]]) -> pytest.MarkDecorator:
    """Parametrizes a test with every story and every single change that must be noticed in it."""
    return pytest.mark.parametrize(
        ("story", "wrong"),
        [
            pytest.param(story, change, id=f"{story.__name__}: {change}")
            for story, changes in wrong.items()
            for change in changes
        ],
    )
