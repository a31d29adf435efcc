"""Which format a request is in: the one place where content types are told apart."""

from __future__ import annotations

from collections.abc import Mapping

from pykcl.local import wire_cbor, wire_json
from pykcl.local.wire_values import WireFormat

_FORMATS: dict[str, WireFormat] = {wire_cbor.CONTENT_TYPE: wire_cbor, "application/cbor": wire_cbor}


def format_of(headers: Mapping[str, str]) -> WireFormat:
    """The format of a request, in which it is answered too; JSON where nothing else is said.

    headers: names in lower case.
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return _FORMATS.get(content_type, wire_json)
