"""The data of records: a handler with the same type gets back what a program has put, and no refused value is put."""

import gzip
import importlib
import sys
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from pykcl import ConfigError, Record, RecordRefused, TemporaryError
from pykcl.handlers.decode import decoder_of
from pykcl.producer.encode import compressor_of, encoded, encoder_of


class Model(pydantic.BaseModel):
    customer: str = pydantic.Field(alias="customerId")
    amount: float = 1.5


class Struct(msgspec.Struct, rename="camel"):
    customer_id: str


@dataclass
class Data:
    id: int


@pydantic.dataclasses.dataclass
class Validated:
    customer: str = pydantic.Field(alias="customerId")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
        ("é", b"\xc3\xa9"),
        ({"é": [1, 2.5, None, True]}, '{"é":[1,2.5,null,true]}'.encode()),
        ([1, 2], b"[1,2]"),
        (7, b"7"),
        (Model(customerId="alice"), b'{"customerId":"alice","amount":1.5}'),
        (Struct("alice"), b'{"customerId":"alice"}'),
        (Data(1), b'{"id":1}'),
        (Validated(customerId="alice"), b'{"customerId":"alice"}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_put_in_a_form_that_its_type_decodes(value, data):
    assert encoded(value, None) == data
    kind = type(value)
    if kind in (bytes, str, dict, Model, Struct, Data, Validated):
        assert decoder_of(kind)(data) == value
    elif kind not in (bytearray, memoryview):
        assert decoder_of(Any)(data) == Record(data, "k", "1").json() == value


def test_a_model_that_says_by_what_names_it_is_serialized_is_obeyed():
    class Named(Model):
        model_config = pydantic.ConfigDict(serialize_by_alias=False, validate_by_name=True)

    assert encoded(Named(customerId="alice"), None) == b'{"customer":"alice","amount":1.5}'


def endless():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"hunter2": object()},
        {"a": float("nan")},
        {"hunter2": "\ud800"},
        {(1, 2): 3},
        {1, 2},
        b"a".hex,
        endless(),
        Struct(customer_id=object()),
        Data(object()),
        Model.model_construct(customer=object()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_form_is_refused_and_not_shown(value):
    with pytest.raises(RecordRefused, match="was not put") as refused:
        encoded(value, None)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("installed", ["msgspec", "pydantic", None])
def test_a_dataclass_takes_the_library_that_is_there(monkeypatch, installed):
    @dataclass
    class Other:
        id: int

    for name in {"msgspec", "pydantic"} - {installed}:
        monkeypatch.setitem(sys.modules, name, None)
    if installed:
        assert encoded(Other(1), None) == b'{"id":1}'
    else:
        with pytest.raises(
            RecordRefused, match=r"neither msgspec nor pydantic is installed.*pykcl\[msgspec\]"
        ):
            encoded(Other(1), None)


def test_the_serializer_of_a_program_gets_every_value_and_may_return_text():
    given = []

    def serializer(value):
        given.append(value)
        return f"<{value}>"

    assert [encoded(value, serializer) for value in (b"a", "b", 1)] == [b"<b'a'>", b"<b>", b"<1>"]
    assert given == [b"a", "b", 1]
    with pytest.raises(RecordRefused, match="has returned a dict"):
        encoded({}, dict)


def test_what_a_serializer_raises_about_a_value_refuses_it_and_any_other_error_goes_through():
    def raising(error):
        def serializer(value):
            raise error

        return serializer

    with pytest.raises(RecordRefused, match="str could not be serialized: KeyError") as refused:
        encoded("hunter2", raising(KeyError("hunter2")))
    assert isinstance(refused.value.__cause__, KeyError)
    assert "hunter2" not in str(refused.value)
    for error in (ConnectionError(), MemoryError(), TemporaryError("the registry is away")):
        with pytest.raises(type(error)):
            encoded("x", raising(error))


def test_the_encoder_of_a_class_is_found_once():
    assert encoder_of(Model) is encoder_of(Model)


# -- compression -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x" * 100_000])
def test_gzip_gives_the_same_bytes_at_any_time_and_no_mark_of_ours(data):
    compressed = compressor_of("gzip")(data)
    assert gzip.decompress(compressed) == data
    assert len(compressed) < 500
    assert compressed[4:8] == bytes(4), "the time in the header of gzip"


def test_zstd_is_that_of_python_or_the_package():
    name = "zstandard" if sys.version_info < (3, 14) else "compression.zstd"
    pytest.importorskip(name)
    compressed = compressor_of("zstd")(b"x" * 100_000)
    assert importlib.import_module(name).decompress(compressed) == b"x" * 100_000
    assert len(compressed) < 500


def test_zstd_that_is_not_installed_is_refused_before_anything_is_put(monkeypatch):
    for name in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'pykcl\[zstd\]', or compression='gzip'"):
        compressor_of("zstd")
