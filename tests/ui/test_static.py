"""The page's own files, read: nothing comes from elsewhere, no text is ever taken for markup, what is vendored is told."""

import hashlib
import re
from importlib.resources import files

import pytest

from pykcl.operate.states import COLOURS, SHAPES
from pykcl.ui.app import static_files

STATIC = files("pykcl.ui") / "static"
OWN = {path: content.decode() for path, (content, _) in static_files().items() if "/vendor/" not in path}
UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""Of uPlot 1.6.32 from the npm registry."""
MARKUP = [
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "srcdoc",
    "DOMParser",
    "javascript:",
    ".href =",
]
BAD = [
    "a.innerHTML = name",
    'import x from "https://cdn.example/x.js"',
    '<img src="//evil.example/x.png">',
    "url(http://evil.example/)",
]


def elsewhere(text: str) -> list[str]:
    """Addresses that are not this server's own."""
    namespaces = ("http://www.w3.org/2000/svg",)
    found = re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]+[^\s\"')]*", text)
    return [address for address in found if address not in namespaces]


def markup(text: str) -> list[str]:
    return [word for word in MARKUP if word in text]


def test_the_rules_see_what_is_wrong():
    assert all(elsewhere(bad) or markup(bad) for bad in BAD)


def test_nothing_comes_from_elsewhere():
    assert len(OWN) > 15
    assert {path: elsewhere(text) for path, text in OWN.items() if elsewhere(text)} == {}


def test_no_text_is_ever_taken_for_markup():
    assert {path: markup(text) for path, text in OWN.items() if path.endswith(".js") and markup(text)} == {}


@pytest.mark.parametrize("page", ["/static/index.html", "/static/login.html"])
def test_pages_have_no_scripts_and_no_styles_within(page):
    text = OWN[page]
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", text) == []
    assert set(re.findall(r"(?:src|href)=\"([^\"#]+)\"", text)) <= static_files().keys()


def test_every_import_is_a_file_that_is_there():
    for path, text in OWN.items():
        for name in re.findall(r"from \"([^\"]+)\"", text):
            assert name in static_files(), (path, name)


def test_what_is_vendored_is_as_it_was_published_and_has_its_licence():
    for name, digest in UPLOT.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name
    licence = (STATIC / "vendor" / "uPlot.LICENSE").read_text()
    assert "MIT License" in licence
    assert "Leon Sorokin" in licence


def test_there_is_a_colour_and_a_shape_for_every_mark_there_can_be():
    for number in range(len(COLOURS)):
        assert OWN["/static/style.css"].count(f"--owner-{number}:") == 3, number
        assert f".o{number} {{" in OWN["/static/style.css"]
    paths = OWN["/static/marks.js"].partition("const PATHS = [")[2].partition("];")[0]
    assert paths.count('"M') == len(SHAPES)


def test_dark_is_the_same_whether_it_was_chosen_or_is_the_systems():
    style = OWN["/static/style.css"]
    blocks = re.findall(r"color-scheme: dark;(.*?)}", style, re.DOTALL)
    assert len(blocks) == 2
    assert blocks[0].split() == blocks[1].split()


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_texts_and_marks_stand_out_of_their_ground(theme):
    """WCAG 2: 4.5 for text, 3 for what is drawn."""
    block = OWN["/static/style.css"].partition(theme)[2].partition("}")[0]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for name in ("text", "muted", "bad", "warn", "good", "accent"):
        for ground in ("surface", "bg", "sunk"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("bad", "warn", "good"):
        assert contrast(colours[name], colours[f"{name}-bg"]) >= 4.5, name
    for name in ("nobody", *(f"owner-{number}" for number in range(len(COLOURS)))):
        assert contrast(colours[name], colours["surface"]) >= 3, name
