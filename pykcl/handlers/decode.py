"""Decoders: from the annotation of a parameter to the function that makes its value of the data of a record.

Neither pydantic nor msgspec is imported for an annotation that is not of it; only a dataclass, which is of neither,
takes the one that is installed.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import importlib
import sys
import typing
from collections.abc import Callable
from typing import Any, NoReturn

from pykcl.errors import NOT_THE_DATA
from pykcl.model.metered_json import MAX_RECORD_VALUES, read_json, refuse_excess
from pykcl.model.record import Record
from pykcl.processor import NotDecoded

Decoder = Callable[[bytes], Any]
"""Raises any Exception for data of another form."""

FORMS = (
    "Record, Batch, bytes, str, dict, Any, a TypedDict, a dataclass, a pydantic model, a msgspec.Struct, or "
    "list[T] of one of these"
)
"""Annotations that a first parameter may have."""


SEVERAL = (
    "write list[Record] or list[dict] for the records of a batch; for one record that is a JSON array write "
    "Annotated[list, 'of one record'], or pass decoder=Record.json"
)
"""The edit in the place of a collection that is neither."""

_COLLECTIONS = (
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    *(
        getattr(collections.abc, name)
        for name in ("Sequence", "MutableSequence", "Set", "Collection", "Iterable", "Iterator")
    ),
)


_OPENED_WEIGHS = 4
"""Values that a list or object counts for: the parser of pydantic takes 240 bytes for an empty one."""
_LARGE = 64 * 1024
"""Bytes of data beyond which pydantic ends a list with its first error."""
_NO_SCHEMA = ("default", "metadata", "serialization", "config")
"""What a schema of pydantic has beside schemas."""


class NoDecoder(Exception):
    """The annotation has no decoder. do: the edit that helps."""

    def __init__(self, problem: str, do: str = "") -> None:
        super().__init__(problem)
        self.do = do or f"use {FORMS}; or pass decoder="


def decoder_of(kind: Any) -> Decoder:
    """Return the decoder of an annotation, which is neither a Record nor a Batch nor of several records.

    Raises NoDecoder, and NameError where the definition of the class names another that is not defined yet.
    """
    if kind is Any:
        return _json
    origin = typing.get_origin(kind)
    if not typing.get_args(kind):
        # typing.Dict and typing.List alone are dict and list.
        kind, origin = origin or kind, None
    if origin in (dict, collections.abc.Mapping) and typing.get_args(kind)[0] in (str, Any):
        return _json_object
    found = _SIMPLE.get(kind) if isinstance(kind, type) and origin is None else None
    if found is not None:
        return found
    if _is_typed_dict(kind):
        return _json_object
    try:
        decoder = _of_class(kind if origin is None else origin, kind)
    except (NoDecoder, NameError):
        raise
    except Exception as error:
        raise NoDecoder(f"{_name(kind)} cannot be decoded: {type(error).__name__}: {error!s:.300}") from error
    if decoder is None:
        raise NoDecoder(f"{_name(kind)} has no decoder", SEVERAL if is_collection(kind) else "")
    return decoder


def is_collection(kind: Any) -> bool:
    """Return True for list, tuple, Sequence and their like, with or without the type of their items."""
    return (typing.get_origin(kind) or kind) in _COLLECTIONS


def refuse(record: Record, error: Exception) -> NoReturn:
    """Raise NotDecoded for what a decoder has raised about the data; any other error of it as it is."""
    if isinstance(error, NOT_THE_DATA):
        raise error
    raise NotDecoded(record) from error


# -- JSON ------------------------------------------------------------------------------------------------------


def _json(data: bytes) -> Any:
    return read_json(data, max_values=MAX_RECORD_VALUES)


def _metered(decoder: Decoder) -> Decoder:
    """Return a decoder that refuses JSON beyond our limits, in the place of one that has other limits or none."""

    def decode(data: bytes) -> Any:
        refuse_excess(data, max_values=MAX_RECORD_VALUES, opened_weighs=_OPENED_WEIGHS)
        return decoder(data)

    return decode


def _json_object(data: bytes) -> Any:
    return _checked(_json(data), dict, "an object")


def _json_array(data: bytes) -> Any:
    return _checked(_json(data), list, "an array")


def _checked(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"the JSON is {type(value).__name__}, not {what}")
    return value


def _as_it_is(data: bytes) -> bytes:
    return data


_SIMPLE: dict[type, Decoder] = {
    bytes: _as_it_is,
    str: bytes.decode,
    dict: _json_object,
    list: _json_array,
}


def _is_typed_dict(kind: Any) -> bool:
    # That of typing_extensions, too, which typing.is_typeddict does not know in each version.
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


# -- classes ---------------------------------------------------------------------------------------------------


def _of_class(kind: Any, annotation: Any) -> Decoder | None:
    """Return the decoder of a class. annotation: the class with its type arguments, if it has any."""
    if not isinstance(kind, type):
        return None
    if _is_of(kind, "pydantic", "BaseModel"):
        return _of_model(annotation)
    if _is_of(kind, "msgspec", "Struct"):
        return _by_msgspec(annotation)
    if not dataclasses.is_dataclass(kind):
        return None
    # A dataclass of pydantic has validators of its own.
    decoder = None if hasattr(kind, "__pydantic_validator__") else _by_msgspec(annotation)
    decoder = decoder or _by_pydantic(annotation)
    if decoder is None:
        raise NoDecoder(
            f"{_name(kind)} is a dataclass, and neither msgspec nor pydantic is installed",
            "pip install 'pykcl[msgspec]' (or 'pykcl[pydantic]'); or pass decoder=",
        )
    return decoder


def _is_of(kind: type, module: str, base: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and issubclass(kind, getattr(found, base))


def _of_model(model: Any) -> Decoder:
    if not hasattr(model, "model_validate_json"):
        raise NoDecoder(
            f"{_name(model)} is a model of pydantic 1",
            "pip install 'pykcl[pydantic]', which takes pydantic 2",
        )
    if not getattr(model, "__pydantic_complete__", True):
        # Else the first record would find out, and count as one that does not decode.
        model.model_rebuild()
    decoder = model.model_validate_json
    usual = sys.modules["pydantic"].BaseModel.model_validate_json.__func__
    is_usual = getattr(decoder, "__func__", None) is usual
    return _metered(_sparing(model.__pydantic_core_schema__, decoder) if is_usual else decoder)


def _by_msgspec(kind: Any) -> Decoder | None:
    try:
        import msgspec
    except ModuleNotFoundError:
        return None
    return _metered(msgspec.json.Decoder(kind).decode)


def _by_pydantic(kind: Any) -> Decoder | None:
    try:
        import pydantic
    except ModuleNotFoundError:
        return None
    adapter = pydantic.TypeAdapter(kind)
    return _metered(_sparing(adapter.core_schema, adapter.validate_json))


def _sparing(schema: Any, validate_json: Decoder) -> Decoder:
    """Return validate_json of pydantic that ends each list of large data with its first error.

    pydantic has an error for each value that does not fit, with the way to it: 640 MiB for one MiB of data. It has a
    setting for that for a list, and none for a model.
    """
    try:
        core: Any = importlib.import_module("pydantic_core")
        # Without the validators of the classes within, which have another setting.
        sparing: Decoder = core.SchemaValidator(_ending_early(schema), _use_prebuilt=False).validate_json
    except Exception:  # noqa: BLE001 - a version of pydantic that lacks the one or the other
        return validate_json
    return lambda data: (sparing if len(data) > _LARGE else validate_json)(data)


def _ending_early(schema: Any) -> Any:
    """Return a schema of pydantic whose lists end with their first error."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_ending_early, schema))
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    # Else it has schemas by the names of fields.
    kept = _NO_SCHEMA if isinstance(kind, str) else ()
    found = {key: each if key in kept else _ending_early(each) for key, each in schema.items()}
    if kind in ("list", "tuple", "set", "frozenset"):
        found["fail_fast"] = True
    return found


def _name(kind: Any) -> str:
    return (
        kind.__qualname__ if isinstance(kind, type) and typing.get_origin(kind) is None else str(kind)[:200]
    )
