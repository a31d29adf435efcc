"""One picture of the terminal program, as plain text or as SVG, made without a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pykcl.cli.watch_app.app import Tab, WatchApp
from pykcl.cli.watch_app.looks import Frame

_FONT_FILES: Final = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)


class _Photographed(WatchApp):
    camera: Callable[[WatchApp], str]

    def on_ready(self) -> None:
        self.call_after_refresh(lambda: self.exit(self.camera(self)))


def snapshot(
    frame: Frame,
    clock: Callable[[], float],
    size: tuple[int, int],
    *,
    every: float,
    tab: Tab,
    filter_text: str,
    as_svg: bool = False,
) -> str:
    """size: columns and lines. Text is inert, without colours and without blanks at the ends of lines."""
    app = _Photographed(frame, clock, every=every, tab=tab, filter_text=filter_text, still=True)
    app.camera = svg if as_svg else picture
    return app.run(headless=True, size=size) or ""


def picture(app: WatchApp) -> str:
    """What is on the screen."""
    # textual exports its screen as SVG only; this is what it makes that of.
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips).rstrip()


def svg(app: WatchApp) -> str:
    """What is on the screen, with its colours."""
    # textual names font files of a public server. Who looks at a picture of a fleet shall not be told of to anybody:
    # any monospaced font of the viewer's will do.
    drawn = _FONT_FILES.sub("", app.export_screenshot(title="pykcl leases watch"))
    return drawn.replace("font-family: Fira Code, monospace", "font-family: monospace")
