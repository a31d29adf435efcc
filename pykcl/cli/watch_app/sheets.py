"""A sheet of text above everything else: one lease, all hints, help."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from pykcl.cli.watch_app.looks import Frame
from pykcl.cli.watch_app.words import inert


class Sheet(ModalScreen[None]):
    """make: the text, made anew for each frame while the sheet is open."""

    DEFAULT_CSS = """
    Sheet { align: center middle; }
    Sheet VerticalScroll {
        width: 96%; max-width: 100; height: auto; max-height: 90%;
        border: round $primary; background: $surface; padding: 0 1;
    }
    Sheet Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,h,space", "close", "Close"),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, title: str, make: Callable[[], Text]) -> None:
        super().__init__()
        self._title, self._make = title, make

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_subtitle = "esc closes"
            yield Static(self._text())

    def _text(self) -> Text:
        # Not as the title of the border: textual reads markup there.
        return Text.assemble((inert(self._title), "bold"), "\n\n", self._make())

    def renew(self) -> None:
        self.query_one(Static).update(self._text())

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_close(self) -> None:
        self.dismiss()


def all_hints(frame: Frame) -> Text:
    if not frame.hints:
        return Text("Nothing is odd.")
    return Text("\n\n").join([Text(inert(hint, 2000)) for hint in frame.hints])


def help_text() -> Text:
    lines = [Text("It only reads. Nothing here writes to the table.", "italic"), Text()]
    for part, pairs in (("Keys", _KEYS), ("States", _STATES), ("Columns", _COLUMNS)):
        lines.append(Text(part, "bold"))
        lines += [Text.assemble((f"{name:<11}", "bold cyan"), told) for name, told in pairs]
        lines.append(Text())
    lines.append(Text("Every owner has a colour and a shape, the same in all of pykcl's views."))
    return Text("\n").join(lines)


_KEYS = (
    ("1 2 3 tab", "leases, lineage, events"),
    ("↑ ↓ j k", "select; also page up and down, home, end"),
    ("enter", "everything about the selected lease"),
    ("d", "its short form below the list, or not"),
    ("/", "filter by shard, owner, state, kind"),
    ("esc", "no filter"),
    ("s S", "sort by the next column; the other way round"),
    ("r", "look now"),
    ("p", "pause: no more looks until p or r"),
    ("h", "all hints"),
    ("q", "quit"),
)
_STATES = (
    ("ACTIVE", "owned, and its counter moves"),
    ("STALE", "owned, and stood still for the fail-over time"),
    ("UNKNOWN", "owned, and not watched for so long yet"),
    ("UNOWNED", "nobody owns it"),
    ("WAITING", "a parent shard has not ended"),
    ("ENDED", "its shard was read to the end"),
    ("FOREIGN", "no lease: a row of KCL 3.x"),
    ("UNREADABLE", "a row that cannot be understood"),
)
_COLUMNS = (
    ("STILL FOR", "how long its counter was seen standing still"),
    ("MOVED", "how far it went since the look before"),
    ("SWITCHES", "owners since its last checkpoint"),
)
