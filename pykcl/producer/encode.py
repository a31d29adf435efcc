"""Encoders: from a value of a program to the data of its record, which `handlers/decode` reads back; and compression.

Neither pydantic nor msgspec is imported for a value that is not of it; only a dataclass, which is of neither, takes the
one that is installed.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Literal, cast

from pykcl.errors import NOT_THE_DATA, ConfigError, RecordRefused, shown

Compression = Literal["gzip", "zstd"]

Serializer = Callable[[Any], bytes | str]
"""Raises any Exception for a value that it does not take."""

_GZIP = 16 + zlib.MAX_WBITS
"""Window of zlib with the header of gzip, into which zlib writes no time: the same data gives the same bytes."""
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encoded(value: object, serializer: Serializer | None) -> bytes:
    """Return the data of the record of a value. serializer: None: bytes as they are, text as UTF-8, all else as JSON.

    Raises RecordRefused where there is none; and MemoryError, OSError and PyKclError of a serializer as they are.
    """
    if serializer is None and type(value) is bytes:
        return value
    found, kind = value, cast(Any, type(value))
    if serializer is not None or not isinstance(value, bytes | bytearray | memoryview | str):
        try:
            found = (serializer or encoder_of(kind))(value)
        except NOT_THE_DATA:
            raise
        except Exception as error:
            raise RecordRefused(
                f"The {kind.__name__} could not be serialized: {type(error).__name__}. It was not put, and no "
                "other record is affected. Do: change it, put bytes or text, or give the producer a serializer= for it."
            ) from error
    if isinstance(found, bytes):
        return found
    if isinstance(found, bytearray | memoryview):
        return bytes(found)
    if isinstance(found, str):
        return _utf8(found)
    raise RecordRefused(
        f"serializer= has returned a {type(found).__name__}. The record was not put. Do: let it return bytes, or text."
    )


@lru_cache(maxsize=256)
def encoder_of(kind: type) -> Serializer:
    """Return the encoder for values of a class, which are neither bytes nor text.

    Raises RecordRefused for a dataclass where neither msgspec nor pydantic is installed.
    """
    if hasattr(kind, "model_dump_json"):
        return _of_model(kind)
    if not hasattr(kind, "__struct_fields__") and not hasattr(kind, "__dataclass_fields__"):
        return _json
    # A dataclass of pydantic has serializers of its own.
    found = None if hasattr(kind, "__pydantic_serializer__") else _by_msgspec()
    found = found or _by_pydantic(kind)
    if found is None:
        raise RecordRefused(
            f"{kind.__qualname__} is a dataclass, and neither msgspec nor pydantic is installed. It was not put. Do: "
            "pip install 'pykcl[msgspec]' (or 'pykcl[pydantic]'); or give the producer a serializer= for it."
        )
    return found


def _of_model(kind: Any) -> Serializer:
    # By its aliases, by which pydantic validates it, too; unless the model itself says otherwise.
    by_alias = kind.model_config.get("serialize_by_alias", True)
    return partial(kind.model_dump_json, by_alias=by_alias)


def _by_msgspec() -> Serializer | None:
    try:
        import msgspec
    except ModuleNotFoundError:
        return None
    return msgspec.json.encode


def _by_pydantic(kind: type) -> Serializer | None:
    try:
        import pydantic
    except ModuleNotFoundError:
        return None
    return partial(pydantic.TypeAdapter(kind).dump_json, by_alias=True)


def compressor_of(name: Compression | None) -> Callable[[bytes], bytes] | None:
    """Return the function that compresses data; None for none. Raises ConfigError."""
    if name is None:
        return None
    if name == "gzip":
        return partial(zlib.compress, wbits=_GZIP)
    if name == "zstd":
        return _zstd()
    raise ConfigError(f"compression={shown(name)} is not valid. Do: give 'gzip', 'zstd' or None.")


def _zstd() -> Callable[[bytes], bytes]:
    # Before Python 3.14 a module of that name is somebody else's.
    modules = ("zstandard",) if sys.version_info < (3, 14) else ("compression.zstd", "zstandard")
    for module in modules:
        try:
            return cast("Callable[[bytes], bytes]", import_module(module).compress)
        except ImportError:
            continue
    raise ConfigError(
        "compression='zstd' needs Python 3.14, or the package zstandard, which is not installed. Do: pip install "
        "'pykcl[zstd]', or compression='gzip'."
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecordRefused(
            "The record is text with half of a character (\\ud800 to \\udfff alone), which UTF-8 does not have. It was "
            "not put. Do: change it, or put bytes."
        ) from None
