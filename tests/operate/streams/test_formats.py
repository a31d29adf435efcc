"""Records as text: formats, forms of payloads, control characters, and lines of input."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.errors import ConfigError
from pykcl.model.record import Record
from pykcl.operate.streams.formats import PAYLOAD_FORMS, SIGNS, BadLine, LineReader, json_lines, template

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


SECRET = "hunter2"


def reader(form="lines", **more):
    return LineReader(form, lambda: "random", more.pop("max_bytes", 1024 * 1024), **more)


def test_a_line_is_a_payload_byte_by_byte():
    record = reader().record(1, b"\xff\x00 x\r")
    assert (record.data, record.partition_key) == (b"\xff\x00 x\r", "random")


@pytest.mark.parametrize(
    ("form", "line"), [("lines", b""), ("jsonl", b""), ("jsonl", b" \r"), ("records", b"\t")]
)
def test_empty_lines_are_no_records(form, line):
    assert reader(form).record(1, line) is None


@pytest.mark.parametrize(
    ("options", "line", "key", "data"),
    [
        ({"key": "same"}, b"x", "same", b"x"),
        ({"key_field": "id"}, b'{"id": "c-1"}', "c-1", b'{"id": "c-1"}'),
        ({"key_field": "id"}, b'{"id": 17}', "17", b'{"id": 17}'),
        ({"key_field": "a.b"}, b'{"a": {"b": 1.5}}', "1.5", b'{"a": {"b": 1.5}}'),
        ({"key_delimiter": "::"}, b"k::v::w", "k", b"v::w"),
        ({"key_delimiter": ":"}, b"k:", "k", b""),
    ],
)
def test_the_key_comes_from_where_it_is_said(options, line, key, data):
    record = reader(**options).record(1, line)
    assert (record.partition_key, record.data) == (key, data)


@pytest.mark.parametrize(
    ("form", "options", "line", "told"),
    [
        ("jsonl", {}, b'{"id": 1', "is not JSON (Expecting ',' delimiter at character 9)"),
        ("jsonl", {}, b"NaN", "is not JSON"),
        ("jsonl", {}, b"[" * 100_000, "is nested more than 200 levels deep"),
        ("jsonl", {}, b'"\xff"', "is not UTF-8 (byte 2)"),
        ("lines", {"key_field": "id"}, b"hunter2", "is not JSON"),
        ("lines", {"key_field": "id"}, b'{"x": "hunter2"}', "has no field 'id'"),
        ("lines", {"key_field": "id"}, b"[1]", "has no field 'id'"),
        ("lines", {"key_field": "a.b"}, b'{"a": "hunter2"}', "has no field 'a.b'"),
        ("lines", {"key_field": "id"}, b'{"id": null}', "a null in 'id'"),
        ("lines", {"key_field": "id"}, b'{"id": true}', "true or false in 'id'"),
        ("lines", {"key_field": "id"}, b'{"id": ["hunter2"]}', "array in 'id'"),
        ("lines", {"key_field": "id"}, b'{"id": ""}', "partition key of 0 characters"),
        ("lines", {"key_field": "id"}, b'{"id": "' + b"h" * 257 + b'"}', "partition key of 257 characters"),
        ("lines", {"key_field": "id"}, b'{"id": "\\ud800"}', "lone surrogate"),
        ("lines", {"key_delimiter": ":"}, b"hunter2", "no key delimiter"),
        ("lines", {"key_delimiter": ":"}, b"\xff:hunter2", "not UTF-8"),
        ("lines", {"max_bytes": 10}, b"hunter2", "13 bytes with its partition key; this stream accepts at most 10"),
        ("records", {}, b'"hunter2"', "is a JSON string"),
        ("records", {}, b"{}", "exactly one of data"),
        ("records", {}, b'{"data": "a", "data_hex": "00"}', "exactly one of data"),
        ("records", {}, b'{"data_base64": "hunter2!"}', "cannot be decoded"),
        ("records", {}, b'{"data_hex": 5}', "cannot be decoded"),
        ("records", {}, b'{"data": "a", "partition_key": {}}', "object in 'partition_key'"),
        ("records", {}, b'{"data": "a", "explicit_hash_key": "-1"}', "explicit_hash_key"),
        ("records", {}, b'{"data": "a", "explicit_hash_key": "%d"}' % 2**128, "explicit_hash_key"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_told_by_its_number_and_not_quoted(form, options, line, told):
    with pytest.raises(BadLine) as bad:
        reader(form, **options).record(17, line)
    assert str(bad.value).startswith("line 17 ")
    assert told in str(bad.value)
    assert bad.value.number == 17
    assert SECRET not in str(bad.value)
    assert bad.value.__context__ is None, "json keeps the whole line in its exception"


@pytest.mark.parametrize("form", ["text", "json", "base64", "hex"])
@pytest.mark.parametrize("data", [b"plain", b"\xff\x00\x1b", b'{"a":1}', "\u00fc{".encode()])
def test_what_tail_writes_put_reads(form, data):
    line = json_lines(form)(Record(data, "k\u2028", "495", explicit_hash_key="17"))
    record = reader("records").record(1, line.rstrip(b"\n"))
    assert (record.data, record.partition_key, record.explicit_hash_key) == (data, "k\u2028", "17")


def test_json_values_are_put_as_json():
    record = reader("records").record(1, '{"data": {"a": "ü"}, "partition_key": 5}'.encode())
    assert json.loads(record.data) == {"a": "\u00fc"}
    assert record.partition_key == "5"


def test_a_record_without_a_key_gets_one():
    assert reader("records").record(1, b'{"data": "x"}').partition_key == "random"
    assert reader("records", key="k").record(1, b'{"data": "x", "partition_key": "own"}').partition_key == "k"


@pytest.mark.parametrize(
    "options",
    [
        {"key": "a", "key_field": "b"},
        {"key_delimiter": ""},
        {"form": "jsonl", "key_delimiter": ":"},
        {"key": ""},
        {"key": "x" * 257},
    ],
)
def test_options_that_contradict_themselves_are_refused(options):
    with pytest.raises(ConfigError):
        reader(**options)
