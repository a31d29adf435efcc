"""CloudWatch in Smithy RPC v2 (CBOR), the form that newer SDKs send: put into JSON for moto, and back.

https://smithy.io/2.0/additional-specs/protocols/smithy-rpc-v2.html
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import cbor2

from pykcl.local import wire_cbor
from pykcl.local.aws_parts import CLOUDWATCH_PREFIX, MotoParts, PartAnswer
from pykcl.local.wire_values import Params, not_serialized

CONTENT_TYPE = "application/cbor"
PROTOCOL = {"smithy-protocol": "rpc-v2-cbor"}
"""The header of every request and every answer."""
MOST_READS = 100_000
"""Of 16 bytes each: CloudWatch takes a megabyte."""
_PATH = re.compile(rf"/service/{CLOUDWATCH_PREFIX[:-1]}/operation/([A-Za-z0-9]{{1,100}})\Z")


def is_spoken(headers: Mapping[str, str]) -> bool:
    """True for the headers of such a request, by their names in lower case."""
    return PROTOCOL.items() <= headers.items()


def operation_of(path: str) -> str | None:
    """The operation of CloudWatch that a path names, if it does."""
    found = _PATH.search(path)
    return found[1] if found else None


def decode(body: bytes) -> Params:
    """The members, times as seconds since the epoch. Raises AwsError SerializationException."""
    return wire_cbor.decode(body, most_reads=MOST_READS, read_time=_read_seconds)


def answer(parts: MotoParts, operation: str, headers: Mapping[str, str], params: Params) -> PartAnswer:
    """Serve one request. Raises AwsError as `MotoParts.answer` does."""
    sent = {
        **headers,
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": CLOUDWATCH_PREFIX + operation,
    }
    try:
        body = json.dumps(params, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise not_serialized("The request body has values that no operation takes.") from error
    made = parts.answer("cloudwatch", "/", sent, body)
    told = {**made.headers, **PROTOCOL, "content-type": CONTENT_TYPE}
    shape = None if made.error_code else _model().operation_model(operation).output_shape
    if made.error_code:
        members = {**json.loads(made.body), "__type": made.error_code}
    elif shape is None:
        # Operations without an output answer without a body.
        del told["content-type"]
        return PartAnswer(made.status, told, b"")
    else:
        from botocore.parsers import create_parser

        answered = {"status_code": made.status, "headers": {}, "body": made.body}
        members = create_parser("json").parse(answered, shape)
        del members["ResponseMetadata"]
    content = cbor2.dumps(members, datetime_as_timestamp=True)
    return PartAnswer(made.status, told, content, made.error_code)


def _read_seconds(value: Any, _: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wire_cbor.RefusedError
    return value


@cache
def _model() -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model("cloudwatch", "service-2"))
