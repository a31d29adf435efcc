"""What botocore makes of an answer: its errors, and its reading of what nobody here reads faster."""

from __future__ import annotations

import json
from typing import Any, Final
from zlib import crc32

from botocore.awsrequest import HeadersDict
from botocore.exceptions import ChecksumError, ClientError
from botocore.parsers import create_parser

from pykcl.aws.lean.cbor import decode
from pykcl.aws.lean.connection import Answer

_CRC32: Final = "x-amz-crc32"


def client_error(client: Any, operation: str, answer: Answer) -> ClientError:
    """An answer that is an error, read by botocore's own parser, of the class the client has for it.

    operation: AWS' name, such as "GetRecords". Raises what that parser raises.
    """
    parsed = parsed_by_botocore(client, operation, answer)
    code = parsed.get("Error", {}).get("Code")
    shape = None if code is None else client.meta.service_model.shape_for_error_code(code)
    if shape is not None:
        # As botocore does: what the service says besides, such as the Item of a condition that failed.
        parsed.update(create_parser("json").parse(_told(operation, answer), shape))
    error_class = client.exceptions.from_code(code)
    found: ClientError = error_class(parsed, operation)
    return found


def parsed_by_botocore(client: Any, operation: str, answer: Answer) -> dict[str, Any]:
    """What a call of the client would give. Raises what botocore's parser raises; TypeError where it gives nothing."""
    shape = client.meta.service_model.operation_model(operation).output_shape
    return dict(create_parser("json").parse(_told(operation, answer), shape))


def refuse_corrupt(answer: Answer) -> None:
    """Raise ChecksumError unless the body is the one that DynamoDB sent, where it says what that was."""
    told = answer.headers.get(_CRC32)
    if told is None:
        return
    found = crc32(answer.body)
    if told != str(found):
        raise ChecksumError(checksum_type="crc32", expected_checksum=told, actual_checksum=str(found))


def metadata_of(answer: Answer) -> dict[str, Any]:
    """What botocore adds to each answer, as far as pykcl looks at it."""
    return {"HTTPStatusCode": answer.status, "HTTPHeaders": answer.headers}


def _told(operation: str, answer: Answer) -> dict[str, Any]:
    return {
        "status_code": answer.status,
        "headers": HeadersDict(answer.headers),
        "body": _as_json(answer.body),
        "context": {"operation_name": operation},
    }


def _as_json(body: bytes) -> bytes:
    """An error that came as CBOR, in the form botocore can read."""
    try:
        document, end = decode(body)
    except (ValueError, OverflowError, RecursionError):
        return body
    if not isinstance(document, dict) or end != len(body):
        return body
    return json.dumps({name: value for name, value in document.items() if isinstance(value, str)}).encode()
