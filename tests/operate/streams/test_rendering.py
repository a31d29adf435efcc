"""Records as bytes: formats, forms of payloads, and that nothing but raw drives a terminal."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.errors import ConfigError
from pykcl.model.record import Record
from pykcl.operate.streams.rendering import PAYLOAD_FORMS, SIGNS, json_lines, template

HOSTILE = "\x7f\x1b]0;owned\x07\x1b[2J\u202e\n{\x00\x9b31m\u2028".encode() + b"\xff\xfe"


def record(data=b'{"id": 1}', key="k\u00e9", **more):
    return Record(data, key, "495", 1_795_165_200_312.0, "shardId-000000000007", "orders", **more)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%s\\n", b'{"id": 1}\n'),
        ("%S", b"9"),
        ("%R", b"\0\0\0\x09"),
        ("%k|%K", "k\u00e9|3".encode()),
        ("%T %D", b"1795165200312 2026-11-20T09:00:00.312Z"),
        ("%t[%p]@%o", b"orders[shardId-000000000007]@495"),
        ("%i:%H", b"0:"),
        ("100%%\\t\\x41\\x4a\\\\\\0\\e\\r", b"100%\tAJ\\\0\x1b\r"),
        ("\u00fc\\xg"[:1], "\u00fc".encode()),
    ],
)
def test_a_format_is_kcats(text, shown):
    assert template(text)(record()) == shown


def test_a_record_out_of_an_aggregate_shows_its_place_in_it():
    inside = record(sub_sequence_number=17, aggregated=True, explicit_hash_key="5")
    assert template("%o %i %H")(inside) == b"495:17 17 5"


def test_every_documented_sign_is_understood():
    for sign in SIGNS:
        assert template(f"%{sign}")(record(explicit_hash_key="5"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("%z", "unknown sign %z"),
        ("x%", "lone %"),
        ("\\q", r"unknown escape \\q"),
        ("x\\", "lone"),
        ("%h", "headers"),
        ("\\xg", "unknown escape"),
    ],
)
def test_a_sign_there_is_not_is_refused_with_those_there_are(text, told):
    with pytest.raises(ConfigError, match=told) as refused:
        template(text)
    assert "%s payload" in str(refused.value)


@pytest.mark.parametrize("form", [form for form in PAYLOAD_FORMS if form != "raw"])
def test_strangers_text_drives_no_terminal_and_forges_no_line(form):
    hostile = record(HOSTILE, key=HOSTILE.decode("utf-8", "ignore"))
    for render in (template("%k %s %j", form), json_lines(form)):
        text = render(hostile).decode()
        assert text.removesuffix("\n").isprintable(), text
        assert not any(unicodedata.category(one).startswith("C") for one in text.removesuffix("\n"))


def test_raw_is_exact_whatever_it_does():
    assert template("%s", "raw")(record(HOSTILE)) == HOSTILE


@given(st.binary(max_size=60), st.text(max_size=20))
def test_a_line_of_json_gives_every_payload_and_key_back(data, key):
    import base64

    for form, name, back in (
        ("base64", "data_base64", base64.b64decode),
        ("hex", "data_hex", bytes.fromhex),
    ):
        line = json_lines(form)(record(data, key))
        assert line.isascii()
        assert line.count(b"\n") == 1
        told = json.loads(line)
        assert (back(told[name]), told["partition_key"]) == (data, key)
    told = json.loads(json_lines("text")(record(data, key)))
    assert (told["data"].encode() if "data" in told else base64.b64decode(told["data_base64"])) == data


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"id": 1}', {"id": 1}),
        (b"[1.5]", [1.5]),
        (b"plain", "plain"),
        (b"1e999", "1e999"),
        (b"NaN", "NaN"),
        (b"null", None),
    ],
)
def test_json_payloads_are_values_where_they_are_json(data, value):
    told = json.loads(json_lines("json")(record(data)), parse_constant=pytest.fail)
    assert told["data"] == value


def test_json_payloads_are_put_on_one_line():
    assert template("%s", "json")(record(b'{\n  "a": 1\n}')) == b'{"a":1}'


def test_raw_bytes_in_json_are_refused():
    with pytest.raises(ConfigError, match="base64"):
        json_lines("raw")


def test_a_record_without_an_arrival_time_has_none():
    unknown = Record(b"x", "k", "1")
    assert template("%D")(unknown) == b"-"
    assert json.loads(json_lines()(unknown))["arrived_at"] is None
