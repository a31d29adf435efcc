"""Lines as records: payloads, keys, and what is wrong with a line."""

import json

import pytest

from pykcl.errors import ConfigError
from pykcl.model.record import Record
from pykcl.operate.streams.input_lines import BadLine, LineReader
from pykcl.operate.streams.rendering import json_lines

SECRET = "hunter2"


def reader(form="lines", **more):
    return LineReader(form, lambda: "random", more.pop("largest", 1024 * 1024), **more)


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
        ("jsonl", {}, b"[" * 100_000, "is not JSON"),
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
        ("lines", {"largest": 10}, b"hunter2", "13 bytes with its partition key; this stream takes 10"),
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
