"""Reading JSON from outside: what is read, what is refused, and that nothing of the refused is created first."""

import json
import random

import pytest

from pykcl.model import metered_json
from pykcl.model.metered_json import (
    MAX_DEPTH,
    MAX_RECORD_VALUES,
    MAX_VALUES,
    NotJson,
    read_json,
    refuse_excess,
)

MIB = 1024 * 1024
TEXTS = ["", "a", '[{,"', "\\", '\\"', '"', '\\\\",[', "\n", "é∢[\u2222", "]}]}"]


def nested(levels):
    return "[" * levels + "]" * levels


def list_of(values):
    return "[" + "0," * (values - 1) + "0]"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_json_is_read_in_each_of_its_encodings(encoding):
    value = {"∢": [1, 2.5, None, True, "é"]}
    assert read_json(json.dumps(value, ensure_ascii=False).encode(encoding)) == value
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"it is not JSON \(Expecting value at character 1\)"),
        ('{"secret": x}', r"it is not JSON \(Expecting value at character 12\)"),
        (b'"\xc3\x28"', r"it is not JSON \(no text\)"),
        ("[NaN]", r"it is not JSON \(NaN,"),
        ("9" * 5000, r"it is not JSON \(NaN, or a number with too many digits\)"),
        (nested(MAX_DEPTH + 1), "it is nested more than 200 levels deep"),
        ("[" * 100_000, "it is nested more than 200 levels deep"),
        ('{"a":' * 100_000, "it is nested more than 200 levels deep"),
        (list_of(MAX_VALUES + 1), "it has more than 250,000 values"),
    ],
)
def test_anything_else_is_refused_without_showing_it(text, problem):
    with pytest.raises(NotJson, match=rf"\A{problem}") as caught:
        read_json(text)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_nesting_is_refused_also_where_only_the_parser_has_a_limit():
    assert read_json(nested(MAX_DEPTH + 1), max_depth=None)
    with pytest.raises(NotJson, match="it is nested too deeply"):
        read_json("[" * 200_000, max_depth=None)


def test_the_limits_are_exact():
    assert len(read_json(list_of(MAX_VALUES))) == MAX_VALUES
    assert read_json(nested(MAX_DEPTH))
    deep = nested(MAX_DEPTH - 1)
    assert len(read_json(f"[{','.join([deep] * 20)}]")) == 20
    with pytest.raises(NotJson, match="levels"):
        read_json(f"[{','.join([deep] * 19)},{nested(MAX_DEPTH)}]")


def test_all_the_json_of_a_megabyte_passes_as_the_data_of_a_record():
    for one in ("[],", "{},", '"",', "1,", '{"":0},'):
        text = "[" + one * ((MIB - 3) // len(one)) + "0]"
        refuse_excess(text, max_values=MAX_RECORD_VALUES)
        refuse_excess(text.encode(), max_values=MAX_RECORD_VALUES)


def test_lists_and_objects_may_count_for_several_values():
    text = '[[],{"[":[0]},"[[{{"]'
    refuse_excess(text, max_values=4 * 4 + 2, opened_weighs=4)
    with pytest.raises(NotJson, match="more than 17 values, of which each list and object counts as 4"):
        refuse_excess(text, max_values=4 * 4 + 1, opened_weighs=4)


def test_signs_within_strings_are_no_values(monkeypatch):
    """Read through chunks of every size, so that each border is cut once, and compared with a count sign by sign."""
    draw = random.Random(34)
    for number in range(3000):
        monkeypatch.setattr(metered_json, "_CHUNK", draw.choice([1, 2, 3, 7, 64, 1 << 17]))
        monkeypatch.setattr(metered_json, "_SPARSE", draw.choice([1, 5, 1024]))
        monkeypatch.setattr(metered_json, "_USUAL_DEPTH", draw.choice([2, 4, 32]))
        text = json.dumps([number, made_up(draw)], ensure_ascii=draw.random() < 0.5)
        values, depth = counted(text)
        for form in (text, text.encode()):
            refuse_excess(form, max_values=values, max_depth=depth)
            with pytest.raises(NotJson, match="values"):
                refuse_excess(form, max_values=values - 1, max_depth=None)
            if len(text) > 2 * depth:
                with pytest.raises(NotJson, match="levels"):
                    refuse_excess(form, max_values=values, max_depth=depth - 1)


def made_up(draw, depth=0):
    kind = draw.random()
    if depth > 6 or kind < 0.3:
        return draw.choice([1, None, *TEXTS])
    if kind < 0.65:
        return [made_up(draw, depth + 1) for _ in range(draw.randrange(5))]
    return {draw.choice(TEXTS): made_up(draw, depth + 1) for _ in range(draw.randrange(4))}


def counted(text):
    """Values and levels, with a machine of two states."""
    values = depth = deepest = at = 0
    is_inside = False
    while at < len(text):
        sign = text[at]
        if is_inside:
            at += sign == "\\"
            is_inside = sign != '"'
        elif sign == '"':
            is_inside = True
        elif sign in "[{,":
            values += 1
            depth += sign != ","
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
        at += 1
    return values, deepest
