"""Records that do not decode: exactly they become dead letters, or the shard stands. And what is no such record."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from pykcl import Record, Reject, TemporaryError, handler
from pykcl.events import BatchSkipped, BatchSplit, RecordsDiscarded, RetriesExhausted
from pykcl.handlers.decode import NoDecoder, decoder_of, refuse
from pykcl.model.dead_letter import Condition
from pykcl.model.metered_json import NotJson
from pykcl.processor import NotDecoded
from pykcl.testing import records, run_processor
from pykcl.testing.fleet import STREAM

SHARD = "shardId-000000000000"

GOOD = b'{"id": 1}'


class Typed(TypedDict):
    id: int


@dataclass
class Data:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Struct(msgspec.Struct):
    id: int


POISON = {
    "bad UTF-8": b'{"id": "\xff"}',
    "bad JSON": b'{"id": 1',
    "wrong schema": b'[{"id": 1}]',
    "a megabyte of [": b"[" * 1_000_000,
    "a field that is nested deeply": b'{"id": 1, "more": ' + b"[" * 300 + b"]" * 300 + b"}",
    "NaN": b"NaN",
    "NaN inside": b'{"id": NaN}',
    "-Infinity": b'{"id": -Infinity}',
    "empty": b"",
}
FORMS = [dict, dict[str, int], Typed, Data, Model, Struct]


@pytest.mark.parametrize("kind", [*FORMS, Any])
@pytest.mark.parametrize(
    "more", [b"[" * 201 + b"]" * 201, b"[" + b"[]," * 500_000 + b"0]"], ids=["levels", "values"]
)
def test_json_beyond_the_limits_is_refused_by_every_form(kind, more):
    with pytest.raises(NotJson):
        decoder_of(kind)(b'{"id": 1, "more": ' + more + b"}")
    with pytest.raises(ValueError, match=r"levels|values"):
        Record(more, "k", "1", 0.0, SHARD, STREAM).json()


def of(kind, body):
    def function(value):
        body(value)

    function.__annotations__["value"] = kind
    return function


def no_orders(kind):
    """Data that does not decode into that."""
    if kind is str:
        return {"bad UTF-8": b"\xff"}
    if kind is Any:
        return {name: data for name, data in POISON.items() if name != "wrong schema"}
    if kind is list:
        return {**POISON, "wrong schema": b"{}"}
    return POISON


MATRIX = [
    pytest.param(kind, data, id=f"{getattr(kind, '__name__', kind)}-{name}")
    for kind in (*FORMS, list, Any, str)
    for name, data in no_orders(kind).items()
]


def annotation(kind, many):
    if many:
        return list[kind]
    return Annotated[list, "of one record"] if kind is list else kind


def good_for(kind):
    return b"[1]" if kind is list else GOOD


def letters_of(result):
    return [
        (letter.condition, [record.data for record in letter.records], letter.attempts)
        for letter in result.dead_letters
    ]


@pytest.mark.parametrize("options", [{}, {"max_attempts": 3, "bisect": True}])
@pytest.mark.parametrize("many", [False, True], ids=["each", "batch"])
@pytest.mark.parametrize(("kind", "data"), MATRIX)
def test_b2_exactly_the_poison_becomes_a_letter_without_an_attempt(kind, data, many, options):
    good = good_for(kind)
    calls = []
    inputs = records(good, data, good, data, good, partition_key="k")
    result = run_processor(
        handler(of(annotation(kind, many), calls.append)),
        inputs,
        dead_letters=lambda letters: None,
        **options,
    )
    assert letters_of(result) == [(Condition.DECODE_FAILED, [data], 0)] * 2
    assert all(letter.error and letter.first_failed_at for letter in result.dead_letters)
    assert sum(map(len, calls)) == 3 if many else len(calls) == 3
    assert [record.data for record in result.delivered] == [good] * 3
    assert result.lost == 0
    assert not [event for event in result.events if isinstance(event, BatchSplit)]
    assert result.checkpoints[-1] == "SHARD_END"


@pytest.mark.parametrize("options", [{}, {"bisect": True}])
@pytest.mark.parametrize("many", [False, True], ids=["each", "batch"])
@pytest.mark.parametrize(("kind", "data"), MATRIX)
def test_b2_without_dead_letters_the_shard_stands_and_nothing_is_skipped(
    new_fleet, kind, data, many, options
):
    fleet = new_fleet(shards=1)
    calls = []
    good = good_for(kind)
    first, *_ = [fleet.kinesis.put_record(STREAM, each, "k") for each in (good, data, good)]
    fleet.start(
        "w1",
        processor=handler(of(annotation(kind, many), calls.append)),
        initial_position="TRIM_HORIZON",
        retry_timeout=5.0,
        **options,
    )
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the lease to be handed back")
    assert not fleet.happened(RecordsDiscarded)
    assert not fleet.happened(BatchSkipped)
    checkpoint = fleet.rows()[SHARD].checkpoint
    if many and not options:
        # A batch with poison in it is no call.
        assert calls == []
        assert checkpoint.is_sentinel
    else:
        assert len(calls) == 1
        assert checkpoint.sequence_number == first.sequence_number


@pytest.mark.parametrize("many", [False, True], ids=["each", "batch"])
def test_skip_gives_up_the_poison_alone(many):
    calls = []
    kind = list[Model] if many else Model
    result = run_processor(
        handler(of(kind, calls.append)), records(GOOD, b"", GOOD, b"{", GOOD), on_error="skip"
    )
    assert [record.data for record in result.skipped] == [b"", b"{"]
    assert result.lost == 0
    assert len(calls) == (1 if many else 3)


def test_bytes_take_anything():
    calls = []
    run_processor(handler(of(bytes, calls.append)), records(*POISON.values()))
    assert calls == list(POISON.values())


@pytest.mark.parametrize("kind", [*FORMS, list, Any])
def test_b2_ten_megabytes_of_brackets_end_no_thread(kind):
    record = Record(b"[" * 10_000_000, "k", "1")
    with pytest.raises(NotDecoded):
        try:
            decoder_of(kind)(record.data)
        except Exception as error:  # noqa: BLE001
            refuse(record, error)


# -- what is no poison -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True], ids=["each", "batch"])
@pytest.mark.parametrize(
    "error", [MemoryError(), TemporaryError("the registry is away"), ConnectionError(), TimeoutError()]
)
def test_an_error_of_a_decoder_that_is_not_about_the_data_gives_up_nothing(error, many):
    failures = [error] * 3

    def decode(record):
        if failures and record.data == b"b":
            raise failures.pop()
        return record.text()

    calls = []
    result = run_processor(
        handler(of(list[str] if many else str, calls.append), decoder=decode),
        records("a", "b", "c", partition_key="k"),
        dead_letters=lambda letters: None,
    )
    assert result.dead_letters == []
    assert result.lost == 0
    assert calls == ([["a", "b", "c"]] if many else ["a", "b", "c"])


def test_a_decoder_of_the_application_decides_by_what_it_raises():
    def decode(record):
        if record.data == b"b":
            raise KeyError("no such schema")
        if record.data == b"c":
            raise Reject("withdrawn")
        if record.data == b"d":
            raise RecursionError
        return record.text()

    result = run_processor(
        handler(of(str, [].append), decoder=decode),
        records("a", "b", "c", "d"),
        dead_letters=lambda letters: None,
    )
    assert [(letter.condition, letter.error, letter.reason) for letter in result.dead_letters] == [
        (Condition.DECODE_FAILED, "KeyError", ""),
        (Condition.REJECTED, "Reject", "withdrawn"),
        (Condition.DECODE_FAILED, "RecursionError", ""),
    ]


def test_what_the_function_raises_is_no_failure_to_decode():
    def on_order(order: dict) -> None:
        raise ValueError

    result = run_processor(handler(on_order), records(GOOD), max_attempts=2)
    assert [letter.condition for letter in result.dead_letters] == [Condition.RETRY_ATTEMPTS_EXHAUSTED]


def test_json_is_what_record_json_takes_but_for_constants_that_are_no_json():
    decode = decoder_of(Any)
    for data in (b'{"a": [1, 2.5, null]}', '"é"'.encode("utf-16"), b"\xef\xbb\xbf1", b'"\\ud800"'):
        assert decode(data) == Record(data, "k", "1").json()


# -- libraries -------------------------------------------------------------------------------------------------------


class Node(pydantic.BaseModel):
    children: "list[Leaf]" = []


class Leaf(pydantic.BaseModel):
    id: int


def test_a_model_that_names_a_later_one_is_complete_before_the_first_record():
    assert decoder_of(Node)(b'{"children": [{"id": 1}]}').children == [Leaf(id=1)]


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    type: str = pydantic.Field(alias="Type")
    default: list[Leaf]
    more: tuple[int, ...] = ()
    padding: str = ""

    @pydantic.field_validator("type")
    @classmethod
    def upper(cls, text: str) -> str:
        return text.upper()


LARGE = 70_000
"""Bytes of padding, with which pydantic ends each list with its first error."""
WRONG = [
    b'{"Type": "x", "default": [{"id": "one"}]',
    b'{"Type": "x", "default": [], "more": ["3"]',
    b'{"Type": "x", "default": [], "other": 1',
    b'{"type": "x", "default": []',
]


def padded(data, size):
    return data + b', "padding": "' + b"x" * size + b'"}'


@pytest.mark.parametrize("size", [0, LARGE])
def test_a_model_says_of_large_data_what_it_says_of_small(size):
    decode = decoder_of(Strict)
    found = decode(padded(b'{"Type": "x", "default": [{"id": 1}, {"id": 2}], "more": [3, 4]', size))
    assert isinstance(found, Strict)
    assert (found.type, found.default, found.more) == ("X", [Leaf(id=1), Leaf(id=2)], (3, 4))
    for data in WRONG:
        with pytest.raises(pydantic.ValidationError):
            decode(padded(data, size))


@pytest.mark.parametrize(("size", "errors"), [(0, 5), (LARGE, 1)])
def test_a_list_in_large_data_has_one_error(size, errors):
    with pytest.raises(pydantic.ValidationError) as raised:
        decoder_of(Strict)(padded(b'{"Type": "x", "default": [1, 2, 3, 4, 5]', size))
    assert raised.value.error_count() == errors


def test_a_model_that_decodes_json_by_itself_does_so_for_large_data_too():
    class Own(pydantic.BaseModel):
        @classmethod
        def model_validate_json(cls, data, **options):
            return len(data)

    assert decoder_of(Own)(b" " * LARGE) == LARGE


def test_more_lists_than_pydantic_has_memory_for_are_refused():
    with pytest.raises(NotJson, match="each list and object counts as 4"):
        decoder_of(Leaf)(b'{"id": [' + b"[]," * 210_000 + b"0]}")


def test_a_pydantic_without_that_setting_decodes_large_data_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic_core", None)
    assert decoder_of(Leaf)(b'{"id": 1}' + b" " * LARGE) == Leaf(id=1)


def test_a_dataclass_takes_the_library_that_is_there(monkeypatch):
    assert decoder_of(Data)(GOOD) == Data(1)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    assert decoder_of(Data)(b'{"id": "1"}') == Data(1), "pydantic, which converts"
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(NoDecoder, match="neither msgspec nor pydantic is installed"):
        decoder_of(Data)


@pytest.mark.parametrize(
    ("annotation", "loaded"),
    [
        ("", set()),
        (": Record", set()),
        (": dict", set()),
        (": list[str]", set()),
        (": Model", {"pydantic"}),
        (": Struct", {"msgspec"}),
        (": Data", {"msgspec"}),
    ],
)
def test_no_library_is_imported_but_the_one_of_the_annotation(annotation, loaded):
    program = f"""
import sys
from pykcl import App, Record, handler
name = "{annotation}"
if "Model" in name:
    from pydantic import BaseModel
    class Model(BaseModel): pass
if "Struct" in name:
    import msgspec
    class Struct(msgspec.Struct): pass
if "Data" in name:
    from dataclasses import dataclass
    @dataclass
    class Data: pass
def on_order(order{annotation}): ...
App("orders-app").stream("orders")(on_order)
print(*({{"pydantic", "msgspec", "asyncio", "boto3"}} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) - {"asyncio"} == loaded
