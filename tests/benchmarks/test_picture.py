import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.picture import Bar, Chart, shown, svg
from benchmarks.pictures import draw
from benchmarks.results import FOLDER_VARIABLE, Results

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(groups, **options):
    return ElementTree.fromstring(svg(Chart("Title", "note", " us", groups, **options)))


def bars_of(picture):
    return [
        float(rect.get("width"))
        for rect in picture.iter(f"{SPACE}rect")
        if rect.get("class") in ("ours", "theirs")
    ]


def test_bars_are_as_long_as_their_values():
    first, second = bars_of(drawn({"": [Bar("a", 30), Bar("b", 10, is_ours=True)]}))

    assert first / second == pytest.approx(3, rel=0.01)


def test_on_a_logarithmic_scale_equal_factors_are_equal_lengths():
    one, ten, hundred = bars_of(drawn({"": [Bar("a", 2), Bar("b", 20), Bar("c", 200)]}, logarithmic=True))

    assert ten - one == pytest.approx(hundred - ten, rel=0.01)


def test_ours_is_drawn_in_a_colour_of_its_own():
    kinds = [
        rect.get("class")
        for rect in drawn({"": [Bar("a", 1), Bar("b", 2, is_ours=True)]}).iter(f"{SPACE}rect")
    ]

    assert kinds == ["page", "theirs", "ours"]


def test_it_is_readable_on_light_and_on_dark_pages():
    text = svg(Chart("Title", "note", "", {"": [Bar("a", 1)]}))

    assert "prefers-color-scheme: dark" in text
    assert text.count(".page {") == text.count(".text {") == 2


def test_labels_are_text_and_no_markup():
    picture = drawn({"<groups> & such": [Bar("a < b & c", 1)]})

    assert "a < b & c" in [text.text for text in picture.iter(f"{SPACE}text")]


def test_everything_lies_inside_of_the_picture():
    bars = [Bar("a", 5, low=1, high=900, goal=950), Bar("b", 1000, is_ours=True)]
    picture = drawn({"one": bars, "two": bars}, logarithmic=True)
    width, height = float(picture.get("width")), float(picture.get("height"))

    for text in picture.iter(f"{SPACE}text"):
        assert 0 <= float(text.get("x")) <= width - 40
        assert 0 <= float(text.get("y")) <= height
    for rect in picture.iter(f"{SPACE}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width")) <= width


def test_a_long_label_has_its_place():
    picture = drawn({"": [Bar("10,000 shards, 1,000 workers: $15,698", 1)]})

    (label,) = [text for text in picture.iter(f"{SPACE}text") if text.get("text-anchor") == "end"]
    assert float(label.get("x")) >= 7 * len(label.text)


def test_a_chart_without_bars_is_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        svg(Chart("Title", "note", "", {}))


def test_zero_has_no_place_on_a_logarithmic_scale():
    with pytest.raises(ValueError, match="logarithmic"):
        svg(Chart("Title", "note", "", {"": [Bar("a", 0)]}, logarithmic=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12_895.2, "12,895"), (72.46, "72.5"), (4.7212, "4.72"), (0.01234, "0.0123"), (10.0, "10")],
)
def test_numbers_are_shown_with_three_digits_that_mean_something(value, text):
    assert shown(value) == text


def test_pictures_are_drawn_of_what_the_last_runs_left(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "results"))
    found = {"title": "T", "note": "n", "unit": " s", "groups": {"": [{"label": "a", "value": 1.0}]}}
    Results("cost", {}, pictures={"cost": found}).save()

    (path,) = draw(tmp_path / "pictures")

    assert path.name == "cost.svg"
    assert path.read_text("utf-8").startswith("<svg")
