"""Bar charts as SVG text: horizontal bars in groups, linear or logarithmic, readable on light and on dark pages.

No dependency, no script. The colours follow the reader's scheme (`prefers-color-scheme`), inside an image, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
_RIGHT, _TOP = 120, 58
_LETTER = 7.4
"""About as wide as a letter of a label is in any font."""
_BAR, _GAP, _GROUP = 15, 4, 18
_STYLE = """
 .page { fill: #ffffff } .text { fill: #1f2328; font: 13px system-ui, sans-serif } .small { font-size: 11px }
 .title { font-weight: 600; font-size: 15px } .faint { fill: #59636e } .line { stroke: #d1d9e0 }
 .whisker { stroke: #1f2328; stroke-width: 1.5 } .ours { fill: #0a7d4f } .theirs { fill: #7d8590 } .goal { stroke: #bc4c00; stroke-width: 2 }
 @media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 } .text { fill: #e6edf3 } .faint { fill: #9198a1 } .line { stroke: #3d444d } .whisker { stroke: #e6edf3 }
  .ours { fill: #2fbf83 } .theirs { fill: #848d97 } .goal { stroke: #ff9b50 }
 }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """is_ours: drawn in the colour of pykcl. low and high: ends of the whisker, if any. goal: where a mark stands."""

    label: str
    value: float
    is_ours: bool = False
    low: float | None = None
    high: float | None = None
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """groups: bars by the title above them. unit: behind each value. note: one line below the title."""

    title: str
    note: str
    unit: str
    groups: Mapping[str, Sequence[Bar]]
    logarithmic: bool = False


def svg(chart: Chart) -> str:
    """Raises ValueError for a chart without bars, or a logarithmic one with a value that is not positive."""
    bars = [bar for group in chart.groups.values() for bar in group]
    if not bars:
        raise ValueError(f"{chart.title}: nothing to draw")
    if chart.logarithmic and min(bar.value for bar in bars) <= 0:
        raise ValueError(
            f"{chart.title}: {min(bar.value for bar in bars)} has no place on a logarithmic scale"
        )
    scale = _Scale(bars, chart.logarithmic)
    pieces, y = [], float(_TOP)
    for title, group in chart.groups.items():
        if title:
            pieces.append(_text(8, y + 12, title, "text small faint"))
            y += _GROUP
        for bar in group:
            pieces += _bar(bar, y, scale, chart.unit)
            y += _BAR + _GAP
        y += _GAP * 2
    height = y + 26
    axis = [piece for value in scale.ticks() for piece in _tick(value, scale, height - 24)]
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(chart.title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}"/>',
        _text(8, 20, chart.title, "text title"),
        _text(8, 38, chart.note, "text small faint"),
    ]
    return "\n".join([*head, *axis, *pieces, "</svg>"]) + "\n"


class _Scale:
    def __init__(self, bars: Sequence[Bar], logarithmic: bool) -> None:
        ends = [end for bar in bars for end in (bar.value, bar.high, bar.goal) if end is not None]
        self._logarithmic = logarithmic
        self.left = 16 + _LETTER * max(len(bar.label) for bar in bars)
        self._highest = max([*ends, 1e-9])
        starts = [start for bar in bars for start in (bar.value, bar.low) if start is not None and start > 0]
        self._lowest = 10.0 ** math.floor(math.log10(min(starts, default=1.0)) - 1e-9) if logarithmic else 0.0

    def x(self, value: float) -> float:
        room = WIDTH - self.left - _RIGHT
        if not self._logarithmic:
            return self.left + room * value / self._highest
        part = math.log(max(value, self._lowest) / self._lowest) / math.log(self._highest / self._lowest)
        return self.left + room * part

    def ticks(self) -> list[float]:
        if self._logarithmic:
            first, last = math.log10(self._lowest), math.floor(math.log10(self._highest))
            return [10.0**power for power in range(round(first), last + 1)]
        rough = self._highest / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * 0.999)
        return [step * number for number in range(int(self._highest / step * 1.0001) + 1)]


def _bar(bar: Bar, y: float, scale: _Scale, unit: str) -> list[str]:
    kind, left, end = "ours" if bar.is_ours else "theirs", scale.left, scale.x(bar.value)
    middle, right = y + _BAR / 2, end
    pieces = [
        _text(left - 8, y + 12, bar.label, "text", anchor="end"),
        f'<rect class="{kind}" x="{left:.1f}" y="{y:.1f}" width="{max(1.0, end - left):.1f}" height="{_BAR}" rx="2"/>',
    ]
    if bar.low is not None and bar.high is not None:
        left, right = scale.x(bar.low), max(right, scale.x(bar.high))
        pieces.append(f'<path class="whisker" d="M{left:.1f} {middle:.1f}H{scale.x(bar.high):.1f}"/>')
    if bar.goal is not None:
        at = scale.x(bar.goal)
        right = max(right, at)
        pieces.append(f'<path class="goal" d="M{at:.1f} {y - 2:.1f}V{y + _BAR + 2:.1f}"/>')
    pieces.append(_text(right + 6, y + 12, f"{shown(bar.value)}{unit}", "text small"))
    return pieces


def _tick(value: float, scale: _Scale, bottom: float) -> list[str]:
    x = scale.x(value)
    return [
        f'<path class="line" d="M{x:.1f} {_TOP - 8}V{bottom:.1f}" stroke-width="1"/>',
        _text(x, bottom + 14, shown(value), "text small faint", anchor="middle"),
    ]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def shown(value: float) -> str:
    """Three digits that mean something, with commas between thousands."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
