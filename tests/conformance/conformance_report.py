"""What the terminal shows of the two suites: a table, and with --npm the known differences one by one.

The root conftest takes the two hooks from here, so that they are there too where the cases run in other processes.
"""

import re
from collections import Counter

import pytest
from known_differences import BACKENDS, KNOWN, SUITES

CASE = "conformance case"
"""The property of a test that is a case: (suite, backend, case)."""

DIFFERS = "known differences"
OUTCOMES = ("passed", DIFFERS, "skipped", "failed", "error")


def pytest_report_teststatus(report):
    """A known difference is counted as one, not listed among the tests that somebody expects to mend."""
    if report.when == "call" and report.skipped and hasattr(report, "wasxfail") and case_of(report):
        return DIFFERS, "d", "DIFFERS"
    return None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    counts, reasons = tally(terminalreporter.stats)
    if not counts:
        return
    terminalreporter.section("conformance")
    for line, markup in table_of(counts, reasons):
        terminalreporter.line(line, **markup)
    if config.getoption("--npm"):
        for line in differences_of([one for one, found in counts.items() if not found["skipped"]]):
            terminalreporter.line(line)
    else:
        terminalreporter.line(
            "conformance: dynalite and kinesis-local NOT RUN; `tox -e conformance` runs them"
        )


def refuse_unlisted(report, difference, error):
    """Make a failure that is not the listed difference a failure. error: what the test raised."""
    told = f"{type(error).__name__}: {error}"
    if not re.search(difference.seen, told, re.DOTALL):
        report.outcome = "failed"
        report.longrepr = f"It differs, but not as listed ({difference.seen!r}): {told}"
        del report.wasxfail


def case_of(report):
    """(suite, backend, case), or None for a test that is no case."""
    return next(
        (tuple(value) for name, value in getattr(report, "user_properties", ()) if name == CASE), None
    )


def tally(stats):
    """({(suite, backend): Counter of outcomes}, {backend: why it was skipped}); suites and backends in their order."""
    outcomes, reasons = {}, {}
    for outcome in OUTCOMES:
        for report in stats.get(outcome, []):
            if case := case_of(report):
                outcomes[case] = outcome
                if outcome == "skipped":
                    reasons[case[1]] = str(report.longrepr[-1]).removeprefix("Skipped: ")
    counts = {}
    for suite, backends in SUITES.items():
        for backend in backends:
            found = Counter(outcome for case, outcome in outcomes.items() if case[:2] == (suite, backend))
            if found:
                counts[suite, backend] = found
    return counts, reasons


def table_of(counts, reasons):
    """(line, markup) of each line."""
    row = "{:<14}{:<19}{:>12}{:>9}{:>19}{:>12}".format
    yield row("suite", "over", "as expected", "as AWS", "known differences", "unexpected"), {"bold": True}
    for (suite, backend), found in counts.items():
        total = found.total()
        if found["skipped"]:
            yield (
                f"conformance: {reasons[backend]} ({found['skipped']} of {total} cases not run)",
                {"red": True},
            )
            continue
        good = found["passed"] + found[DIFFERS]
        cells = (f"{good} of {total}", found["passed"], found[DIFFERS], total - good)
        yield row(suite, BACKENDS[backend], *cells), {"green": good == total, "red": good != total}


def differences_of(run):
    """Every known difference of these (suite, backend), one by one, as lines."""
    for suite, backend in run:
        known = [one for one in KNOWN if one.backend == backend]
        if not known:
            yield f"\n{BACKENDS[backend]} ({suite}): no known difference from AWS"
        for one in known:
            yield f"\n{BACKENDS[backend]} {one.differs}."
            yield f"  {one.because}."
            yield from (f"  - {case}" for case in one.cases)
