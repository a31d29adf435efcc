"""Decodes DynamoDB's answers with rows in one pass, around botocore's own parser.

botocore walks the service model for every attribute of every row: 38 ms of CPU for a scan of 1,000 leases. `decoded`
reads the JSON itself. What it does not understand it leaves alone, and botocore parses as always. Over botocore a
`before-parse` handler uses it for Scan, puts the result where botocore merges it in, and empties the body; a botocore
without that event parses all itself.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

_ROWS: Final = {"scan": "Items", "get_item": "Item", "update_item": "Attributes"}
"""Method of the client -> where its answer has the row or rows."""
_BESIDE: Final = {
    "scan": frozenset({"Items", "Count", "ScannedCount", "LastEvaluatedKey", "ConsumedCapacity"}),
    "get_item": frozenset({"Item", "ConsumedCapacity"}),
    "update_item": frozenset({"Attributes", "ConsumedCapacity"}),
}
METHODS: Final = tuple(_ROWS)


def decode_scans(client: Any) -> None:
    """Register the handler on a boto3 DynamoDB client; a client without events is left as it is."""
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register("before-parse.dynamodb.Scan", use_for_scans, unique_id="pykcl-decode-scans")


def use_for_scans(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """The handler."""
    if response_dict.get("status_code") != 200:
        return
    answer = decoded(response_dict.get("body", b""), "scan")
    if answer is not None:
        customized_response_dict.update(answer)
        response_dict["body"] = b"{}"


def decoded(body: bytes, method: str) -> dict[str, Any] | None:
    """What the client's method gives for the body of a good answer, without ResponseMetadata. None: ask botocore.

    An answer to get_item may be without a row, as there may be none.
    """
    part = _ROWS[method]
    try:
        answer: dict[str, Any] = json.loads(body)
        if not answer.keys() <= _BESIDE[method]:
            return None
        if method == "scan":
            if not isinstance(answer[part], list):
                return None
        elif not isinstance(answer.get(part, {}), dict):
            return None
        if b'"B"' in body or b'"BS"' in body:
            rows = answer.get(part, {})
            answer[part] = [with_bytes(row) for row in rows] if method == "scan" else with_bytes(rows)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return answer


def decoded_around(before: str, after: str) -> dict[str, Any] | None:
    """The answer to a scan, by what stands before its list of rows and behind it. Raises ValueError.

    None where that is not the answer's own list, but one inside of something else, or one of two; or where something is
    in the answer that none has.
    """
    # Longer than all the rest, so that it is nowhere else.
    here = "-" * (len(before) + len(after))
    answer = json.loads(f'{before}"Items":"{here}"{after}')
    is_known = isinstance(answer, dict) and answer.keys() <= _BESIDE["scan"]
    return answer if is_known and answer.get("Items") == here else None


def with_bytes(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item with what is binary in it as bytes. Raises ValueError, TypeError, AttributeError."""
    return {name: _value_with_bytes(value) for name, value in item.items()}


def _value_with_bytes(value: Mapping[str, Any]) -> Mapping[str, Any]:
    ((kind, content),) = value.items()
    if kind == "B":
        return {"B": binascii.a2b_base64(content)}
    if kind == "BS":
        return {"BS": [binascii.a2b_base64(member) for member in content]}
    if kind == "M":
        return {"M": with_bytes(content)}
    if kind == "L":
        return {"L": [_value_with_bytes(member) for member in content]}
    return value
