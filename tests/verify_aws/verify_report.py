"""The findings of a run: checks, answers to docs/about/verification.md, and the report that is made of them.

Nothing in a report names an account, an ARN, an address or a credential, whatever AWS' messages say.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pykcl.operate.doctor.bundle import Redactor

PAGE = Path(__file__).parents[2] / "docs" / "about" / "verification.md"
_ROW = re.compile(r"^\| (Q[0-9]{2}) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_STEP = re.compile(r"`([a-z-]+)`\Z")


@dataclass(frozen=True)
class Question:
    """step: the one that answers it, or None; then `open` says why there is no answer."""

    id: str
    text: str
    today: str
    step: str | None
    open: str


@dataclass(frozen=True)
class Check:
    step: str
    what: str
    held: bool
    seen: str


def questions(page: str | None = None) -> list[Question]:
    """Every question of the page, in its order."""
    found = []
    for name, text, today, last in _ROW.findall(PAGE.read_text("utf-8") if page is None else page):
        step = _STEP.match(last)
        found.append(Question(name, text, today, step[1] if step else None, "" if step else last))
    return found


class Findings:
    """Checks and answers so far. Every line goes into `lines` at once, so that a run that breaks off leaves it.

    step: the one under way; set by who runs the steps.
    """

    def __init__(self, lines: Path, asked: Iterable[Question]) -> None:
        self.asked = list(asked)
        self.checks: list[Check] = []
        self.answers: dict[str, list[str]] = {}
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.step = ""
        self._redactor = Redactor(secrets.token_hex(8), {})
        self._lines = lines
        self._begun = time.monotonic()
        lines.write_text("")

    def check(self, what: str, held: bool, seen: object = "") -> bool:
        """One thing that must hold: held. The step goes on either way."""
        check = Check(self.step, what, bool(held), self.clean(str(seen)))
        self.checks.append(check)
        self.note("check", **{name: value for name, value in asdict(check).items() if name != "step"})
        return check.held

    def answer(self, question: str, text: str) -> None:
        """May be called several times for one question."""
        self.answers.setdefault(question, []).append(self.clean(text))
        self.note("answer", question=question, text=text)

    def unanswered(self, question: str, reason: str) -> None:
        """The step went well and could not find that out."""
        self.reasons[question] = self.clean(reason)

    def finish(self, outcome: str) -> None:
        """Note the outcome of the step under way."""
        self.outcomes[self.step] = self.clean(outcome)
        self.note("end", outcome=outcome)

    def note(self, kind: str, /, **fields: Any) -> None:
        """A line of raw figures."""
        at = round(time.monotonic() - self._begun, 3)
        line = json.dumps({"t": at, "step": self.step, "kind": kind, **self._redactor.value(fields)})
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def clean(self, text: str) -> str:
        """On one line, without names of accounts and the like, and harmless in a table."""
        return self._redactor.text(" ".join(text.split())).replace("|", "\\|")

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.held]

    @property
    def held(self) -> bool:
        """Every check held, and no step broke off."""
        return not self.failed and not any(one.startswith("failed") for one in self.outcomes.values())

    def answer_of(self, question: Question) -> str:
        if found := self.answers.get(question.id):
            return " ".join(found)
        if question.step is None:
            return f"not answered: {question.open}"
        outcome = self.outcomes.get(question.step, "its step was not run")
        if outcome == "done":
            outcome = "nothing was seen that answers it"
        return f"not answered: {self.reasons.get(question.id, outcome)}"


def markdown(findings: Findings, about: dict[str, str], left: Iterable[str]) -> str:
    """The report. about: facts of the run. left: what could not be removed."""
    lines = [
        "# pykcl against AWS",
        "",
        *(f"* {name}: {findings.clean(text)}" for name, text in about.items()),
    ]
    failed = findings.failed
    lines += [
        f"* checks: {len(findings.checks) - len(failed)} of {len(findings.checks)} held",
        "",
        "## Steps",
        "",
        "| step | outcome | checks that held |",
        "|---|---|---|",
    ]
    for step, outcome in findings.outcomes.items():
        mine = [check for check in findings.checks if check.step == step]
        lines.append(f"| `{step}` | {outcome} | {sum(check.held for check in mine)} of {len(mine)} |")
    lines += ["", "## Checks that did not hold", ""]
    lines += [f"* `{check.step}`: {check.what}: {check.seen or 'no'}" for check in failed] or ["None."]
    lines += ["", "## Answers", "", "| id | question | answer |", "|---|---|---|"]
    lines += [f"| {one.id} | {one.text} | {findings.answer_of(one)} |" for one in findings.asked]
    lines += ["", "## Left behind", ""]
    lines += [f"* {findings.clean(one)}" for one in left] or ["Nothing: all that was created was removed."]
    return "\n".join(lines) + "\n"
