"""What real Java workers ask of DynamoDB, as forms of requests, from the log of the local AWS; beside the recordings.

`PYTHONPATH=.:tests/fleet python tests/interop/java_requests.py LOG WORKER…` prints a recording of those
workers, a line per form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fleet_recording import complete_lines
from fleet_rows import sender
from java_worker import COMPATIBLE, PHASE_1

from tests.java_compat.scenarios.request_shapes import shape

FIXTURES = Path(__file__).parents[1] / "fixtures"

RECORDED = {
    ("2.7.2", None): "requests-java-2.7.2.jsonl",
    ("3.1.3", COMPATIBLE): "requests-java-3.1.3.jsonl",
    ("3.5.1", PHASE_1): "requests-java-3.5.1-phase1.jsonl",
    ("3.5.1", COMPATIBLE): "requests-java-3.5.1-compatible.jsonl",
}
"""By version and clientVersionConfig."""

NOT_BY_JAVA = {"ListTables {}"}
"""In recordings: sent by whoever recorded, to see whether the service was up."""

MEASURED = (":AMZN_MAPPED_opr", ":AMZN_MAPPED_sts")
"""In what 3.x tells of its workers: their load, and between which loads they shall be."""


def recorded(version: str, mode: str | None) -> set[str]:
    """The forms in the recording."""
    found = complete_lines(FIXTURES / RECORDED[version, mode])
    return {form_of(line["operation"], line["request"]) for line in found} - NOT_BY_JAVA


def is_seldom(form: str) -> bool:
    """Whether a short run may lack what the recording has.

    The leader of 3.5.1 looks once a minute how its workers are. A checkpoint writes the shard's children again only where
    the lease had them when it was taken: from a worker that died after writing them and before it ended the shard.
    """
    with_children = '"checkpoint"' in form and '"childShardIds"' in form
    looks_at_workers = form.startswith("Scan ") and "#et = :etVal" in form
    return with_children or looks_at_workers


def sent(log: Path, workers: Iterable[str]) -> set[str]:
    """The forms of the requests of these workers."""
    return {form for form, _ in _requests(log, set(workers))}


def form_of(operation: str, params: dict[str, Any]) -> str:
    """The form of a request. What 3.x measured depends on the machine, which may have nothing to measure."""
    values = params.get("ExpressionAttributeValues", {})
    plain = {name: {"M": {}} if name in MEASURED else value for name, value in values.items()}
    return shape(operation, {**params, "ExpressionAttributeValues": plain} if values else params)


def _requests(log: Path, workers: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in complete_lines(log):
        if line["service"] == "dynamodb" and sender(line) in workers:
            yield form_of(line["operation"], line["parameters"]), line


def recording(log: Path, workers: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The first request of each form, in the order of the log."""
    seen: set[str] = set()
    for form, line in _requests(log, set(workers)):
        if form not in seen:
            seen.add(form)
            yield {
                "operation": line["operation"], "status": str(line["status"]), "error": line["error_code"] or "",
                "request": line["parameters"],
            }  # fmt: skip


def main() -> None:
    for line in recording(Path(sys.argv[1]), sys.argv[2:]):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
