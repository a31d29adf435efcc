"""What the terminal shows of the fleets with Java: the scenarios, their figures, and a line where they did not run. The
root conftest registers it."""

import json
from pathlib import Path

import java_scenarios
import pytest

from tests.java_compat.scenarios.scenario_titles import TITLES

REASON = "Java"
"""How the reason of each skip here begins."""
NOT_RUN = "Java workers NOT RUN; `make interop` or `tox -e interop` runs them"
ROOT = Path(__file__).parents[2]
FIGURES_FILE = ROOT / ".cache" / "interop.json"
NATIVE_FILE = ROOT / ".cache" / "interop-native.json"
PAGE = ROOT / "docs" / "guides" / "mixed-fleet.md"

REPORT, FIGURES, NATIVE = "interop report", "interop figures", "figures of a native fleet"
"""Properties of a test: all about its fleet as text, and the `Figures` or `NativeFigures` for the tables as JSON."""


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, exitstatus, config):
    reports = list(recorded(terminalreporter.stats, REPORT))
    fleets, natives = (
        [json.loads(text) for text in recorded(terminalreporter.stats, name)] for name in (FIGURES, NATIVE)
    )
    reasons = sorted(
        {reason for report in terminalreporter.stats.get("skipped", []) if (reason := reason_of(report))}
    )
    scenarios = list(java_scenarios.lines(terminalreporter.stats, TITLES))
    if reasons or reports or scenarios:
        terminalreporter.section("interop")
    for text in reports:
        for line in text.splitlines():
            terminalreporter.line(line)
        terminalreporter.line("")
    for reason in reasons:
        terminalreporter.line(f"interop: {reason}", red=reason != NOT_RUN)
    for line in scenarios:
        terminalreporter.line(line, red=line.endswith("FAILED"))
    into_page = config.getoption("--write-docs") and exitstatus == 0
    if fleets:
        _show(terminalreporter, fleets, into_page)
    if natives:
        _show_natives(terminalreporter, natives, into_page)


def recorded(stats, name):
    """What the tests recorded under that name, in the order in which they ended. stats: reports of pytest by outcome."""
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, ()):
            if report.when == "call":
                yield from (value for key, value in report.user_properties if key == name)


def _show(terminalreporter, recorded_ones, into_page):
    from interop_figures import Figures, summary, written_into

    fleets = [Figures(**one) for one in recorded_ones]
    _write(terminalreporter, FIGURES_FILE, recorded_ones, summary(fleets))
    if into_page:
        PAGE.write_text(written_into(PAGE.read_text("utf-8"), fleets), "utf-8")
        terminalreporter.line(f"written into {PAGE.relative_to(ROOT)}")


def _show_natives(terminalreporter, recorded_ones, into_page):
    from native_verdict import NativeFigures, summary, written_into

    fleets = [NativeFigures(**one) for one in recorded_ones]
    _write(terminalreporter, NATIVE_FILE, recorded_ones, summary(fleets))
    if into_page:
        PAGE.write_text(written_into(PAGE.read_text("utf-8"), fleets), "utf-8")
        terminalreporter.line(f"native fleets written into {PAGE.relative_to(ROOT)}")


def _write(terminalreporter, file, figures, text):
    file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    for line in text.splitlines():
        terminalreporter.line(line)
    terminalreporter.line(f"in full: {file.relative_to(ROOT)}")


def reason_of(report):
    """Why a test with Java was skipped; None for any other test."""
    if "interop" not in report.nodeid or not isinstance(report.longrepr, tuple):
        return None
    reason = str(report.longrepr[-1]).removeprefix("Skipped: ")
    return reason if reason.startswith(REASON) else None
