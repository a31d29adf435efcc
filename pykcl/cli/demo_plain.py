"""The demo as plain lines, for pipes, logs and terminals without `rich`."""

from __future__ import annotations

import sys
from typing import TextIO

from pykcl.cli.demo_board import NEXT_STEPS, Board, Entry, headline, totals, why_duplicates

RULE = "─" * 94


class PlainView:
    """One line per event, the verdict at the end."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def begin(self, board: Board) -> None:
        self.say(f"{headline(board)} · endpoint {board.url} (local)")
        if board.broken:
            self.say(f"broken on purpose: {board.broken}")

    def refresh(self, board: Board) -> None:
        """Nothing moves here."""

    def entry(self, entry: Entry) -> None:
        self.say(f" t+{entry.at:5.1f}s  {entry.what:<16} {entry.detail:<30} → {entry.outcome}")

    def end(self, board: Board) -> None:
        verdict = board.verdict
        if verdict is None:
            return
        self.say(RULE)
        self.say(totals(verdict, why_duplicates(board)))
        for reason in verdict.reasons:
            self.say(f"  because {reason}")
        self.say(f"PASS   {NEXT_STEPS}" if verdict.passed else "FAIL")

    def say(self, text: str) -> None:
        try:
            self._out.write(text + "\n")
        except UnicodeEncodeError:
            plain = text.translate({ord("·"): "-", ord("─"): "-", ord("→"): ">"})
            self._out.write(plain.encode("ascii", "replace").decode() + "\n")
        self._out.flush()
