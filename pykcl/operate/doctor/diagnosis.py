"""All checks over one set of facts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pykcl.operate.doctor.check_account import check_clock, check_credentials, check_reach, check_region
from pykcl.operate.doctor.check_file import check_file
from pykcl.operate.doctor.check_fleet import check_peers, check_room, check_start, check_timing
from pykcl.operate.doctor.check_permissions import check_permissions
from pykcl.operate.doctor.check_process import check_process
from pykcl.operate.doctor.check_stream import check_lag, check_stream
from pykcl.operate.doctor.check_table import check_rows, check_table
from pykcl.operate.doctor.facts import Facts
from pykcl.operate.doctor.findings import Finding

CHECKS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    check_process,
    check_file,
    check_credentials,
    check_region,
    check_clock,
    check_reach,
    check_stream,
    check_lag,
    check_table,
    check_rows,
    check_permissions,
    check_peers,
    check_timing,
    check_room,
    check_start,
)


def diagnose(facts: Facts) -> list[Finding]:
    """Every finding, in the order of the checks."""
    return [finding for check in CHECKS for finding in check(facts)]
