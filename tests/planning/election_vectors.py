"""The recipe of fixtures/election.json: what Java's own classes answer, asked through jshell.

    python tests/planning/election_vectors.py 2.7.2=CLASSPATH [3.1.3=CLASSPATH ...]

writes the fixture. A class path is as `java` takes it (`DIR/*` is expanded, for jshell does not do that). All versions
must answer alike. `DeterministicShuffleShardSyncLeaderDecider` is asked over a LeaseRefresher that is a
java.lang.reflect.Proxy, `DynamoDBLeaseSerializer` which owner it reads in a row, `PeriodicShardSyncManager` for the
first hole, java.util.Random for numbers. Questions and answers are lines of base64, so that no name can be mistaken for
something else.
"""

from __future__ import annotations

import base64
import glob
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

FIXTURE = Path(__file__).parents[1] / "fixtures" / "election.json"
LAST = 2**128 - 1
CLASSPATHS = "PYKCL_KCL_CLASSPATHS"
"""Environment: `2.7.2=CLASSPATH;3.1.3=CLASSPATH`, for the test that asks Java afresh."""

NASTY = [
    "",
    " ",
    "\u200b",
    "\u00a0",
    "\t",
    "a",
    "A",
    "aa",
    "aA",
    "Aa",
    "worker",
    "Worker",
    "worker-1",
    "worker-10",
    "worker-2",
    "worker-1 ",
    "0",
    "10",
    "9",
    "-1",
    "1e3",
    "null",
    "\u00e9",
    "e\u0301",
    "\u0130",
    "\u0131",
    "\u00df",
    "ss",
    "\u65e5\u672c",
    "\ud7ff",
    "\ue000",
    "\ufb01",
    "\uff21",
    "\ufffd",
    "\uffff",
    "\U00010000",
    "\U0001f600",
    "\U0001f600\U0001f601",
    "\U0001f9d1\u200d\U0001f4bb",
    "\U0010ffff",
    "x" * 256,
    "x" * 255 + "y",
    "x" * 1000,
    "ip-10-0-0-1:3f2504e0-4f89-11d3-9a0c-0305e82c3301",
]
PIECES = [
    "",
    "a",
    "B",
    "0",
    "9",
    "-",
    ":",
    " ",
    "\u00e9",
    "\ue000",
    "\uff5e",
    "\U00010437",
    "\U0001f680",
    "worker",
]


def fleets() -> list[list[str | None]]:
    """The owners of all rows of a table, None for nobody: 1 to 40 workers, then 200 fleets by chance, then edges."""
    rng = Random(1947)
    found: list[list[str | None]] = [[f"w{n:02d}" for n in range(size)] for size in range(1, 41)]
    for number in range(200):
        size = rng.choice([1, 2, 3, 4, 5, 8, 13, 30]) if number % 20 else rng.randint(41, 90)
        names = [_name(rng) for _ in range(size)]
        rows: list[str | None] = [rng.choice(names) for _ in range(rng.randint(0, size))]
        rows += [*names, *([None] * rng.randint(0, 3))]
        rng.shuffle(rows)
        found.append(rows)
    return [*found, [], [None, None], [""], ["", None], list(NASTY)]


def _name(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(NASTY)
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 6)))


def random_runs() -> list[dict[str, Any]]:
    """Bounds near which the rejection loop of nextInt goes round, powers of two, small ones."""
    rng = Random(3)
    bounds = [1, 2, 3, 4, 5, 40, 2**30, 2**30 + 1, 2**30 + 12345, 3 * 2**29 + 1, 2**31 - 1, 2**31 - 2, 1000]
    seeds = [1947, 0, 1, -1, 2**48, 2**63 - 1, -(2**63), 0x5DEECE66D]
    return [{"seed": seed, "bounds": [rng.choice(bounds) for _ in range(60)]} for seed in seeds]


def tables() -> list[list[list[int]]]:
    """Hash ranges [first, last] of a table: most of them cover every key, or all but a little."""
    rng = Random(7)
    found: list[list[list[int]]] = [[], [[0, LAST]], [[1, LAST]], [[0, LAST - 1]], [[5, 9]]]
    found += [[[0, LAST], [5, 9]], [[0, 9], [5, LAST], [7, 8]]]
    for _ in range(200):
        cuts = sorted(rng.sample(range(1, 60), rng.randint(0, 6)))
        edges = [0, *(cut * (LAST // 60) for cut in cuts), LAST + 1]
        ranges = [[low, high - 1] for low, high in itertools.pairwise(edges)]
        for _ in range(rng.randint(0, 2)):
            low, high = sorted(rng.sample([*edges[:-1], LAST - 1], 2)) if len(edges) > 2 else (0, LAST)
            ranges.append([low, high])
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            ranges.pop(rng.randrange(len(ranges))) if ranges else None
        if ranges and rng.random() < 0.2:
            broken = rng.choice(ranges)
            broken[0] += broken[0] < broken[1] - 1
        rng.shuffle(ranges)
        found.append(ranges)
    return found


LEASE = {
    "leaseKey": {"S": "shardId-000000000000"},
    "leaseOwner": {"S": "worker"},
    "leaseCounter": {"N": "3"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
}
CHANGES: list[dict[str, Any]] = [
    {},
    {"leaseOwner": None},
    {"leaseOwner": {"S": ""}},
    {"leaseOwner": {"NULL": True}},
    {"leaseOwner": {"N": "5"}},
    {"leaseOwner": {"S": "x" * 300}},
    {"leaseOwner": {"S": "\U0001f600"}},
    {"checkpoint": {"S": "SHARD_END"}},
    {"checkpoint": None},
    {"checkpoint": {"S": "junk"}},
    {"checkpointSubSequenceNumber": {"N": "-1"}},
    {"leaseCounter": {"N": "-4"}},
    {"parentShardId": {"SS": ["a", "b", "c"]}},
    {"childShardIds": {"SS": [f"c{number}" for number in range(20)]}},
    {"startingHashKey": {"S": "0"}, "endingHashKey": {"S": "9" * 60}},
    {"startingHashKey": {"S": "0"}},
    {"entityType": {"S": "LEASE"}},
    {"checkpointOwner": {"S": "somebody else"}},
    {"leaseCounter": None},
    {"leaseCounter": {"S": "7"}},
    {"ownerSwitchesSinceCheckpoint": None},
    {"startingHashKey": {"S": "9"}, "endingHashKey": {"S": "3"}},
    {"startingHashKey": {"S": "5"}, "endingHashKey": {"S": "5"}},
    {"startingHashKey": {"S": "x"}, "endingHashKey": {"S": "3"}},
]


def rows() -> list[dict[str, Any]]:
    """Rows of a table, in wire form: sound ones, odd ones, and some that Java cannot read either."""
    changed = [{**LEASE, **change} for change in CHANGES]
    return [{name: value for name, value in row.items() if value is not None} for row in changed]


def vectors(versions: dict[str, str]) -> dict[str, Any]:
    """The whole fixture, as these Java versions ({version: class path}) answer. Raises ValueError if they differ."""
    answers = {version: ask_java(classpath) for version, classpath in versions.items()}
    first, *others = answers
    for other in others:
        if answers[other] != answers[first]:
            raise ValueError(f"KCL {other} does not answer as {first} does")
    return {"asked": list(versions), **answers[first]}


def ask_java(classpath: str) -> dict[str, Any]:
    """What the classes of one version answer to all questions. Raises RuntimeError when jshell fails."""
    questions = [" ".join(["leader", *(_word(owner) for owner in fleet)]) for fleet in fleets()]
    questions += [f"random {run['seed']} {' '.join(map(str, run['bounds']))}" for run in random_runs()]
    questions += [" ".join(["hole", *(f"{low}:{high}" for low, high in table)]) for table in tables()]
    questions += [f"row {_word(json.dumps(row))}" for row in rows()]
    answers = _run(classpath, questions)
    kinds: dict[str, list[str]] = {"leader": [], "random": [], "hole": [], "row": []}
    for question, answer in zip(questions, answers, strict=True):
        kinds[question.split(" ", 1)[0]].append(answer)
    return {
        "fleets": [
            {"owners": fleet, "leader": _unword(answer)}
            for fleet, answer in zip(fleets(), kinds["leader"], strict=True)
        ],
        "random": [
            {**run, "numbers": [int(one) for one in answer.split()]}
            for run, answer in zip(random_runs(), kinds["random"], strict=True)
        ],
        "tables": [
            {"ranges": [[str(low), str(high)] for low, high in table], "has_hole": answer == "true"}
            for table, answer in zip(tables(), kinds["hole"], strict=True)
        ],
        "rows": [
            {
                "row": row,
                "readable": answer != "unreadable",
                "owner": _unword(answer.removeprefix("unreadable")),
            }
            for row, answer in zip(rows(), kinds["row"], strict=True)
        ],
    }


def _word(text: str | None) -> str:
    return "-" if text is None else "+" + base64.b64encode(text.encode()).decode()


def _unword(word: str) -> str | None:
    return base64.b64decode(word[1:]).decode() if word.startswith("+") else None


def _run(classpath: str, questions: list[str]) -> list[str]:
    jshell = shutil.which("jshell")
    if jshell is None:
        raise RuntimeError("jshell is not installed: it comes with a JDK")
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "asked", Path(folder) / "told"
        quiet = Path(folder) / "logback.xml"
        asked.write_text("\n".join(questions) + "\n", "ascii")
        quiet.write_text("<configuration/>", "ascii")
        options = [f"-R-Dasked={asked}", f"-R-Dtold={told}", f"-R-Dlogback.configurationFile={quiet}"]
        done = subprocess.run(
            [
                jshell,
                "--class-path",
                _expanded(classpath),
                *options,
                "-s",
                str(Path(__file__).with_name("ask_java.jsh")),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        answers = told.read_text("ascii").splitlines() if told.exists() else []
    if len(answers) != len(questions):
        raise RuntimeError(
            f"{len(answers)} answers to {len(questions)} questions; jshell said: {(done.stdout + done.stderr)[-2000:]}"
        )
    return answers


def _expanded(classpath: str) -> str:
    found = []
    for part in classpath.split(os.pathsep):
        found += sorted(glob.glob(part[:-1] + "*.jar")) if part.endswith("/*") else [part]
    return os.pathsep.join(found)


def dump(fixture: dict[str, Any]) -> str:
    """One question a line."""
    parts = []
    for name, value in fixture.items():
        is_table = isinstance(value, list) and value and isinstance(value[0], dict)
        lines = ",\n".join(f"  {json.dumps(one)}" for one in value) if is_table else ""
        parts.append(f'"{name}": [\n{lines}\n]' if is_table else f'"{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def classpaths(text: str) -> dict[str, str]:
    """`2.7.2=CLASSPATH;3.1.3=CLASSPATH` as {version: class path}."""
    return dict(part.split("=", 1) for part in text.split(";") if part)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: election_vectors.py VERSION=CLASSPATH...")
    FIXTURE.write_text(dump(vectors(dict(argument.split("=", 1) for argument in sys.argv[1:]))), "ascii")
