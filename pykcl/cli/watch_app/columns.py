"""The columns of the live table: what stands in them, how they are sorted, what a filter finds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pykcl.cli.durations import duration_text
from pykcl.cli.lease_tables import short_checkpoint
from pykcl.cli.output import Column
from pykcl.operate.hints import short_shard
from pykcl.operate.lease_states import LeaseState

MOST_SHOWN = 120
"""Characters of one cell; what comes behind them is never in sight."""


def _moved(steps: Any) -> str:
    return "-" if steps is None else f"{steps:+d}"


COLUMNS = (
    Column("shard", weight=9, text=short_shard),
    Column("state", weight=9),
    Column("owner", weight=9),
    Column("kind", weight=5),
    Column("checkpoint", weight=4, text=short_checkpoint),
    Column("unmoved_seconds", "STILL FOR", right=True, weight=7, text=duration_text),
    Column("moved", right=True, weight=3, text=_moved),
    Column("counter", right=True, weight=2),
    Column("switches", right=True, weight=1),
)
OWNER = 2
STATE = 1

URGENCY = {
    state.value: number
    for number, state in enumerate(
        (
            LeaseState.STALE,
            LeaseState.UNREADABLE,
            LeaseState.UNOWNED,
            LeaseState.UNKNOWN,
            LeaseState.WAITING,
            LeaseState.ACTIVE,
            LeaseState.ENDED,
            LeaseState.FOREIGN,
        )
    )
}
"""Of a state: what needs somebody first is lowest."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """key: the lease key. values: as `lease_tables` makes them. cells: inert text, one of each of COLUMNS.

    searched: what a filter looks through, in small letters.
    """

    key: str
    values: Mapping[str, Any]
    cells: tuple[str, ...]
    searched: str


def lease_row(values: Mapping[str, Any]) -> LeaseRow:
    cells = [column.cell(values)[:MOST_SHOWN] for column in COLUMNS]
    if values.get("owner"):
        cells[OWNER] = f"{values['mark'].shape} {cells[OWNER]}"
    known = (values["lease_key"], values["state"], values.get("owner"), values.get("kind"))
    return LeaseRow(
        values["lease_key"], values, tuple(cells), " ".join(str(one) for one in known if one).casefold()
    )


def _number(value: Any) -> tuple[bool, float]:
    """What is not there comes last."""
    return (value is None, 0) if value is None else (False, value)


def _text(value: Any) -> tuple[bool, str]:
    return not value, str(value or "").casefold()


def _checkpoint(text: Any) -> tuple[int, int, int, str]:
    """Numbers by size, words in front of them, nothing behind."""
    number, _, sub = str(text or "").partition(":")
    if number.isascii() and number.isdigit():
        return 1, int(number), int(sub) if sub.isdigit() else 0, ""
    return (0 if number else 2), 0, 0, number


_ORDERS: Mapping[str, Callable[[Any], Any]] = {
    "state": lambda state: URGENCY.get(state, 99),
    "owner": _text,
    "kind": _text,
    "checkpoint": _checkpoint,
    "unmoved_seconds": lambda seconds: _number(-seconds if seconds is not None else None),
    "moved": _number,
    "counter": _number,
    "switches": lambda many: _number(-many if many is not None else None),
}
"""What is most urgent comes first; shards stand in the order of their keys."""


def ordered(rows: Sequence[LeaseRow], at: int, *, backwards: bool = False) -> list[LeaseRow]:
    """By the column with that index; rows that are alike there stay in the order of their keys."""
    key = COLUMNS[at].key
    if key == "shard":
        # As the table of `leases list` has them: rows that are no leases last.
        return list(reversed(rows)) if backwards else list(rows)
    order = _ORDERS[key]
    return sorted(rows, key=lambda row: order(row.values.get(key)), reverse=backwards)


def matching(rows: Sequence[LeaseRow], text: str) -> list[LeaseRow]:
    """Those that have all the words of `text` in key, state, owner or kind; small or capital letters."""
    words = text.casefold().split()
    return [row for row in rows if all(word in row.searched for word in words)]
