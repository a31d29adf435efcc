"""What the terminal shows of the fleets with Java: a line where they did not run. The root conftest registers it."""

import pytest

REASON = "Java"
"""How the reason of each skip here begins."""
NOT_RUN = "Java workers NOT RUN; `tox -e interop` runs them"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    reasons = sorted(
        {reason for report in terminalreporter.stats.get("skipped", []) if (reason := reason_of(report))}
    )
    if reasons:
        terminalreporter.section("interop")
    for reason in reasons:
        terminalreporter.line(f"interop: {reason}", red=reason != NOT_RUN)


def reason_of(report):
    """Why a test with Java was skipped; None for any other test."""
    if "interop" not in report.nodeid or not isinstance(report.longrepr, tuple):
        return None
    reason = str(report.longrepr[-1]).removeprefix("Skipped: ")
    return reason if reason.startswith(REASON) else None
