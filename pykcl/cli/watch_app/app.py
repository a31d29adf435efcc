"""The terminal program: what `words` makes of the latest frame, and keys. It never asks AWS itself."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input, Static

from pykcl.cli.watch_app.columns import COLUMNS, matching, ordered
from pykcl.cli.watch_app.looks import Frame, Looking
from pykcl.cli.watch_app.rows import Rows
from pykcl.cli.watch_app.sheets import Sheet, all_hints, help_text
from pykcl.cli.watch_app.words import (
    DIM,
    Listing,
    all_facts,
    banner,
    click,
    event_listing,
    headline,
    hint_lines,
    inert,
    lease_listing,
    short_facts,
    totals,
    tree_listing,
)

Tab = Literal["leases", "lineage", "events"]
TABS: tuple[Tab, ...] = ("leases", "lineage", "events")
LOW = 18
"""Lines of a terminal that has no room for the short form of the selected lease."""
_FACT_LINES = 5
_KEYS = (("q", "quit"), ("?", "help"), ("/", "filter"), ("s", "sort"), ("enter", "lease"), ("1-3", "tabs"),
         ("p", "pause"), ("r", "look"), ("h", "hints"))  # fmt: skip


class WatchApp(App[str]):
    """first: the frame to begin with. clock: monotonic seconds. every: seconds between looks, to be told.

    attach: given what takes frames from any thread, returns the thread that makes them; None: nothing changes by
    itself. Ends with "" or with what `finish` was given.
    """

    CSS = """
    Screen { layout: vertical; }
    #head, #totals, #tabs, #columns, #keys { height: 1; text-wrap: nowrap; }
    #head, #totals, #banner, #detail, #hints { padding: 0 1; }
    #columns { padding: 0 0 0 1; }
    #tabs { background: $panel; padding: 0 1; }
    #keys { background: $panel; padding: 0 1; }
    #banner { height: 2; background: $error; color: $text; text-wrap: nowrap; display: none; }
    #detail { height: auto; max-height: 6; border-top: solid $panel; padding: 0 1; }
    #hints { height: auto; max-height: 2; display: none; color: $text-warning; }
    #filter { height: 1; border: none; display: none; padding: 0 1; }
    .rows--selected { background: $surface-lighten-2; text-style: bold; }
    #tabs, #columns { link-style: none; link-style-hover: underline; link-background-hover: $panel; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "Rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        Binding("question_mark", "help", "Help"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "no_filter", show=False),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "turn", show=False),
        Binding("enter", "lease", "Lease"),
        Binding("d", "detail", show=False),
        Binding("1", "tab('leases')", show=False),
        Binding("2", "tab('lineage')", show=False),
        Binding("3", "tab('events')", show=False),
        Binding("tab", "next_tab(1)", show=False, priority=True),
        Binding("shift+tab", "next_tab(-1)", show=False, priority=True),
        Binding("p", "pause", "Pause"),
        Binding("r", "look", "Look"),
        Binding("h", "hints", "Hints"),
    ]

    class Came(Message):
        """A frame, or what ended the thread that makes them."""

        def __init__(self, what: Frame | Exception) -> None:
            super().__init__()
            self.what = what

    def __init__(
        self,
        first: Frame,
        clock: Callable[[], float],
        *,
        every: float = 2.0,
        attach: Callable[[Callable[[Frame | Exception], None]], Looking] | None = None,
        tab: Tab = "leases",
        filter_text: str = "",
        still: bool = False,
    ) -> None:
        super().__init__()
        self.latest, self._clock, self.every = first, clock, every
        self._begin = attach
        self._looking: Looking | None = None
        self.tab: Tab = tab
        self.filter_text = filter_text
        self.sorted_by, self.backwards = 0, False
        self._shown: Tab | None = None
        self._chosen: dict[str, str | None] = {}
        self._wants_detail = not still
        self._still = still
        self.failure: Exception | None = None

    def compose(self) -> ComposeResult:
        for name in ("head", "totals", "banner", "tabs", "columns"):
            yield Static(id=name)
        yield Rows()
        for name in ("detail", "hints"):
            yield Static(id=name)
        yield Input(id="filter", placeholder="shard, owner, state or kind", compact=True)
        yield Static(id="keys")

    def on_mount(self) -> None:
        self.show()
        if self._begin is None:
            return
        self.set_interval(1.0, self.tick)
        self._looking = self._begin(self._hear)
        self._looking.start()
        if sys.platform != "win32":
            # Else the terminal would stay as the program has made it.
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)

    def _hear(self, what: Frame | Exception) -> None:
        """Called from the thread that looks."""
        self.post_message(self.Came(what))

    def on_unmount(self) -> None:
        if self._looking is not None:
            self._looking.stop()

    def on_watch_app_came(self, message: Came) -> None:
        if isinstance(message.what, Exception):
            self.failure = message.what
            self.exit()
            return
        self.take(message.what)

    def take(self, frame: Frame) -> None:
        """Show this frame from now on."""
        self.latest = frame
        self.show()
        if isinstance(self.screen, Sheet):
            self.screen.renew()

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def on_rows_moved(self) -> None:
        self._note_choice()
        self._show_detail()
        self._show_tabs()

    def _note_choice(self) -> None:
        """Asked of the list itself: its message about a key may still be on its way when the next key is handled."""
        if self._shown is not None and self._rows.listing.keys:
            # Whoever is at the top stays there: with the newest event, with the most urgent lease.
            chosen = self._rows.selected if self._rows.at else None
            self._chosen["events" if self._shown == "events" else "leases"] = chosen

    # -- what is shown ------------------------------------------------------------------------------------------

    @property
    def _rows(self) -> Rows:
        # Of the lowest screen: a sheet may lie above it.
        return self.screen_stack[0].query_one(Rows)

    def _put(self, name: str, text: Text | None) -> None:
        place = self.screen_stack[0].query_one(f"#{name}", Static)
        place.display = text is not None
        if text is not None:
            place.update(text)

    @property
    def _room(self) -> int:
        """Cells of a line between the paddings."""
        return max(10, self.size.width - 2)

    def tick(self) -> None:
        """What changes by the clock alone."""
        now, looking = self._clock(), self._looking
        paused = looking is not None and looking.paused
        self._put("head", headline(self.latest, now, self._room, every=self.every, paused=paused))
        asked_at = looking.asked_at if looking is not None else None
        self._put("banner", banner(self.latest, now, self._room, asked_at=asked_at))

    def show(self) -> None:
        self._note_choice()
        self.tick()
        self._put("totals", totals(self.latest, self._room))
        listing = self._listing()
        self._put("columns", listing.heading)
        chosen = self._chosen.get("events" if self.tab == "events" else "leases")
        if chosen is None:
            self._rows.at = 0
        self._rows.put(listing, chosen)
        self._shown = self.tab
        self._show_tabs()
        self._show_detail()
        self._put("hints", hint_lines(self.latest, self._room, 2 if self.size.height >= LOW else 1))
        self._put("keys", None if self._still else _keys_line(self._room))

    def _listing(self) -> Listing:
        # One cell for the mark of the selected line, one for the scroll bar.
        width = max(10, self.size.width - 2)
        rows = matching(self.latest.rows, self.filter_text)
        empty = f"Nothing matches {inert(self.filter_text, 40)!r}. esc shows all."
        if self.tab == "events":
            found = [one for one in self.latest.events if self._matches_event(one.edge.shard, one.edge.text)]
            nothing = empty if self.filter_text else "Nothing has happened yet."
            return event_listing(found, self.latest.marks, width, nothing)
        if not self.filter_text:
            empty = "The table has no rows." if self.latest.seen_at is not None else "Nothing was seen yet."
        if self.tab == "lineage":
            keys = {row.key for row in rows}
            tree = [line for line in self.latest.tree if not self.filter_text or line.key in keys]
            return tree_listing(tree, self.latest.marks, width, empty)
        rows = ordered(rows, self.sorted_by, backwards=self.backwards)
        return lease_listing(rows, width, self.sorted_by, self.backwards, empty)

    def _matches_event(self, *texts: str) -> bool:
        whole = " ".join(texts).casefold()
        return all(word in whole for word in self.filter_text.casefold().split())

    def _show_tabs(self) -> None:
        line = Text()
        for number, name in enumerate(TABS, 1):
            chosen = name == self.tab
            label = f"[{number} {name.capitalize()}]" if chosen else f" {number} {name.capitalize()} "
            line.append_text(click(Text(label, "bold reverse" if chosen else ""), f"app.tab('{name}')"))
        many, at = len(self._rows.listing.keys), self._rows.at
        place = f"{at + 1} of {many}" if many else "0"
        right = Text()
        if self.filter_text:
            right.append(f"/{inert(self.filter_text, 20)}  ", "bold yellow")
        right.append(place, DIM)
        gap = self._room - line.cell_len - right.cell_len
        self._put("tabs", Text.assemble(line, " " * max(1, gap), right))

    def _show_detail(self) -> None:
        shown = self._wants_detail and self.size.height >= LOW and self.tab != "events"
        self._put(
            "detail",
            short_facts(self.latest, self._rows.selected, self._room, _FACT_LINES) if shown else None,
        )

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_tab(self, name: Tab) -> None:
        self.tab = name
        self.show()

    def action_next_tab(self, by: int) -> None:
        if len(self.screen_stack) == 1:
            self.action_tab(TABS[(TABS.index(self.tab) + by) % len(TABS)])

    def action_sort(self, by: int) -> None:
        self.sorted_by, self.backwards = (self.sorted_by + by) % len(COLUMNS), False
        self.action_tab("leases")

    def action_turn(self) -> None:
        self.backwards = not self.backwards
        self.action_tab("leases")

    def action_sort_by(self, column: int) -> None:
        self.backwards = column == self.sorted_by and not self.backwards
        self.sorted_by = column
        self.show()

    def action_lease(self) -> None:
        key = self._rows.selected
        if self.tab == "events":
            serial = key
            key = next((one.edge.shard for one in self.latest.events if str(one.serial) == serial), "")
        if key:
            self.push_screen(Sheet(key, lambda: all_facts(self.latest, key)))

    def action_hints(self) -> None:
        self.push_screen(Sheet("Hints", lambda: all_hints(self.latest)))

    def action_help(self) -> None:
        self.push_screen(Sheet("pykcl leases watch", help_text))

    def action_detail(self) -> None:
        self._wants_detail = not self._wants_detail
        self._show_detail()

    def action_pause(self) -> None:
        if self._looking is not None:
            self._looking.pause(not self._looking.paused)
            self.tick()

    def action_look(self) -> None:
        if self._looking is not None:
            self._looking.hurry()

    # -- filter -------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        place = self.query_one("#filter", Input)
        place.display = True
        place.value = self.filter_text
        place.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.has_focus:
            self.filter_text = event.value
            self.show()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def action_no_filter(self) -> None:
        self.filter_text = ""
        self._leave_filter()
        self.show()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self._rows.focus()


def _keys_line(width: int) -> Text:
    """As many keys as there is room for; help is always among them."""
    line = Text()
    for key, told in _KEYS:
        one = Text.assemble((key, "bold cyan"), f" {told}  ")
        if line.cell_len + one.cell_len - 2 > width:
            break
        line.append_text(one)
    return line
