"""Steps that run the suites of tests/conformance over the account, by pytest in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from verify_run import Run

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "tests" / "conformance"
LEASE_TABLE = ("test_lease_table_*suite.py", "test_dynamodb_*suite.py")
STREAMS = ("test_streams_*suite.py",)
CASE_SECONDS = 1200
STOP_SECONDS = 10.0


def lease_table(run: Run) -> None:
    _run_suite(run, "Q01", LEASE_TABLE, processes=1)


def streams(run: Run) -> None:
    # A case mostly waits: for its stream to become ACTIVE, of which five may be CREATING at a time, or for seconds to pass.
    _run_suite(run, "Q02", STREAMS, processes=1 if run.cases else 4)


def _run_suite(run: Run, question: str, files: Sequence[str], processes: int) -> None:
    outcomes = _pytest(run, files, processes)
    if failed := [case for case, (outcome, _) in outcomes.items() if outcome == "failed"]:
        run.say(f"  {len(failed)} cases failed; they get a second chance")
        outcomes |= _pytest(run, files, 1, "--last-failed")
    counts = dict.fromkeys(("passed", "failed", "known", "skipped"), 0)
    for case, (outcome, reason) in outcomes.items():
        counts[outcome] += 1
        if outcome in ("passed", "failed"):
            run.findings.check(f"case {case}", outcome == "passed", reason)
        else:
            run.findings.note("not counted", case=case, outcome=outcome, reason=reason)
    parts = [f"{counts['passed']} of {counts['passed'] + counts['failed']} cases as expected"]
    if counts["known"]:
        parts.append(f"{counts['known']} known differences of the local AWS")
    if counts["skipped"]:
        parts.append(f"{counts['skipped']} not run: they need a clock put forward, or too many shards")
    wrong = sorted(case for case, (outcome, _) in outcomes.items() if outcome == "failed")
    parts.append(f"otherwise than expected: {', '.join(wrong) or 'none'}")
    run.findings.answer(question, "; ".join(parts) + ".")


def _pytest(run: Run, files: Sequence[str], processes: int, *more: str) -> dict[str, tuple[str, str]]:
    """{case: (outcome, reason)}. Raises RuntimeError when pytest could not run."""
    report = run.folder / "suite.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}"]
    command += [f"--aws-prefix={run.account.prefix}", "-o", f"timeout={CASE_SECONDS}"]
    command += ["-o", f"cache_dir={run.folder / 'cache'}", *more]
    command += ["-k", run.cases] if run.cases else []
    command += ["-n", str(processes)] if processes > 1 else []
    command += [str(path) for pattern in files for path in sorted(SUITES.glob(pattern))]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    output = run.folder / "suite.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdout=file,
            stderr=file,
            # Ctrl-C is for the command, which ends this process before it removes anything.
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            _end(process)
    # 5: no case has this name in these files.
    if code not in (0, 1, 5) or not report.exists():
        raise RuntimeError(f"pytest ended with {code}: {output.read_text()[-500:]}")
    return outcomes_of(report.read_text("utf-8"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """And with it the processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def outcomes_of(report: str) -> dict[str, tuple[str, str]]:
    """Of a report in JUnit's form: {case: ("passed", "failed", "known" or "skipped", the first line of why)}."""
    found = {}
    for case in ET.fromstring(report).iter("testcase"):
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped":
                outcome = "known" if child.get("type") == "pytest.xfail" else "skipped"
            else:
                continue
            reason = (child.get("message") or "").partition("\n")[0][:200]
        found[str(case.get("name")).removeprefix("test_")] = (outcome, reason)
    return found
