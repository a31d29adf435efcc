"""What leaving Java means for a program of amazon_kclpy: every check over its source, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pykcl.compat.migrate.checkpoints import (
    ends_without_checkpoint,
    retries_of_checkpoints,
    stops_without_checkpoint,
)
from pykcl.compat.migrate.findings import WEIGHTS, Finding
from pykcl.compat.migrate.program import Program
from pykcl.compat.migrate.running import exits, signals, started, swallowed
from pykcl.compat.migrate.sharing import aws_at_import, class_attributes, module_globals, one_for_all_shards
from pykcl.compat.migrate.surface import decoded, printed, stand_in, versions

_CHECKS: tuple[Callable[[Program], Iterator[Finding]], ...] = (
    versions,
    stand_in,
    ends_without_checkpoint,
    stops_without_checkpoint,
    one_for_all_shards,
    module_globals,
    class_attributes,
    aws_at_import,
    swallowed,
    exits,
    signals,
    retries_of_checkpoints,
    decoded,
    printed,
)


def code_findings(programs: Iterable[Program]) -> list[Finding]:
    """Of all files of one program, the heaviest first. Without a file: none."""
    programs = list(programs)
    found = [finding for program in programs for check in _CHECKS for finding in check(program)]
    if programs:
        found += started(programs)
    return sorted(found, key=lambda finding: WEIGHTS.index(finding.weight))
