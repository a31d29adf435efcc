"""A list of lines of which only those in sight are drawn, however many there are; one of them is selected."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pykcl.cli.watch_app.words import Listing

MARK = "›"  # noqa: RUF001 - as wide as a letter everywhere
"""In front of the selected line, so that it is seen without colours, too."""


class Rows(ScrollView, can_focus=True):
    """Shows a `Listing`. The selection stays with its key when lines come, go or change places."""

    DEFAULT_CSS = """
    Rows { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]

    class Moved(Message):
        """Another line is selected."""

    def __init__(self) -> None:
        super().__init__()
        self.listing = Listing(Text(), (), (), "")
        self.at = 0

    @property
    def selected(self) -> str | None:
        """The key of the selected line; None where there is none."""
        return self.listing.keys[self.at] if self.listing.keys else None

    def put(self, listing: Listing, selected: str | None) -> None:
        """Show this. selected: the key that is to be selected; where it is gone, its neighbour."""
        self.listing = listing
        if selected is not None and selected in listing.keys:
            self.at = listing.keys.index(selected)
        self.at = max(0, min(self.at, len(listing.keys) - 1))
        self.virtual_size = Size(self.size.width, max(1, len(listing.keys)))
        self._into_sight()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at, style = y + self.scroll_offset.y, self.rich_style
        width = self.scrollable_content_region.width
        if not self.listing.keys:
            line = Text(f" {self.listing.empty}" if y == 0 else "", "italic")
        elif at < len(self.listing.keys):
            chosen = at == self.at
            line = Text.assemble(MARK if chosen else " ", self.listing.lines[at])
            if chosen:
                style = self._of_selected(style)
        else:
            return Strip.blank(width, style)
        line.no_wrap = True
        return Strip(line.render(self.app.console)).apply_style(style).adjust_cell_length(width, style)

    def _of_selected(self, style: Style) -> Style:
        return style + self.get_component_rich_style("rows--selected", partial=True)

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--selected"}

    def action_move(self, by: int) -> None:
        self._select(self.at + by)

    def action_page(self, by: int) -> None:
        self._select(self.at + by * max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        at = event.y + self.scroll_offset.y
        if at < len(self.listing.keys):
            self._select(at)

    def on_resize(self) -> None:
        self._into_sight()

    def _select(self, at: int) -> None:
        at = max(0, min(at, len(self.listing.keys) - 1))
        if at != self.at:
            self.at = at
            self._into_sight()
            self.refresh()
            self.post_message(self.Moved())

    def _into_sight(self) -> None:
        height = max(1, self.size.height)
        top = self.scroll_offset.y
        if self.at < top:
            self.scroll_to(y=self.at, animate=False, immediate=True)
        elif self.at >= top + height:
            self.scroll_to(y=self.at - height + 1, animate=False, immediate=True)
