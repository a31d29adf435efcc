"""The frequent calls on a lease table: over the direct transport when nothing stands against it, else over botocore.

Each call takes and gives what the boto3 client's method of that name takes and gives, and raises what it raises. A
write is sent once: what became of one that got no answer is for the caller to find out, as over botocore. One whose
signature was refused for its time was not carried out, and is sent once more.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from pykcl.aws.errors import error_code
from pykcl.aws.transport.connection import Answer
from pykcl.aws.transport.request_template import SigningClock
from pykcl.aws.transport.selector import TransportSelector
from pykcl.aws.transport.table_rows import METHODS, ScannedRows, decode_scans, decoded, use_for_scans
from pykcl.aws.transport.transport import (
    Transport,
    client_error,
    metadata_of,
    parsed_by_botocore,
    refuse_corrupt,
)
from pykcl.config import HttpTransport
from pykcl.runtime import Runtime

log = logging.getLogger("pykcl.dynamodb")


class TableRequests:
    """Calls of one client on one table. May be used by any number of threads at once.

    clock: what all requests of the client are to be signed with.
    """

    def __init__(self, client: Any, table: str, runtime: Runtime, transport: HttpTransport) -> None:
        self._client = client
        self._table = table
        self.clock = SigningClock(client, runtime, log=log, service="DynamoDB")
        self._selector = TransportSelector(
            client,
            runtime,
            transport,
            METHODS,
            self.clock,
            handlers=(use_for_scans,),
            log=log,
            doing="using the lease table",
        )
        decode_scans(client)

    @property
    def direct_methods(self) -> frozenset[str]:
        """The methods whose next call goes over the direct transport."""
        return frozenset(filter(self._selector.has_template, METHODS))

    def scan(self, seen: ScannedRows | None = None, **request: Any) -> dict[str, Any]:
        """seen: then its rows may be a ParsedPage. Raises `aws_errors`, what botocore's parser raises; SetupError where
        the direct transport is insisted on and cannot be."""
        answer = self._call("scan", request, may_repeat=True, seen=seen)
        self._selector.require_direct("scan")
        return answer

    def get_item(self, **request: Any) -> dict[str, Any]:
        """Raises `aws_errors`, what botocore's parser raises."""
        return self._call("get_item", request, may_repeat=True)

    def write(self, method: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """method: "put_item", "update_item" or "delete_item". Raises as `get_item`; never because of the transport
        that was chosen, for the write may have been carried out."""
        if method in METHODS:
            return self._call(method, request, may_repeat=False)
        named = {"TableName": self._table, **request}
        answer: dict[str, Any] = self.clock.calling(getattr(self._client, method))(**named)
        return answer

    def _call(
        self, method: str, request: Mapping[str, Any], *, may_repeat: bool, seen: ScannedRows | None = None
    ) -> dict[str, Any]:
        named = {"TableName": self._table, **request}
        transport = self._selector.direct(method, self._table)
        if transport is None:
            return self._selector.over_botocore(method, self._table, named)
        answer = self._direct(transport, method, named, may_repeat=may_repeat)
        return self._parsed(method, answer, seen)

    def _direct(
        self, transport: Transport, method: str, request: Mapping[str, Any], *, may_repeat: bool
    ) -> Answer:
        ahead, body = transport.clock_ahead_millis, _JSON.encode(request).encode()
        answer = transport.post(body, may_repeat=may_repeat, is_page=method == "scan")
        refuse_corrupt(answer)
        if answer.status >= 300:
            error = client_error(self._client, self._selector.operation(method), answer)
            if not self.clock.corrects(error_code(error), answer.status, answer.headers.get("date"), ahead):
                raise error
            answer = transport.post(body, may_repeat=may_repeat, is_page=method == "scan")
            refuse_corrupt(answer)
        if answer.status >= 300:
            raise client_error(self._client, self._selector.operation(method), answer)
        return answer

    def _parsed(self, method: str, answer: Answer, seen: ScannedRows | None) -> dict[str, Any]:
        found = None
        if answer.status == 200:
            found = (
                decoded(answer.body, method)
                if seen is None
                else seen.row_cache.answer_of(answer.body, seen.next_index)
            )
        if found is None:
            return parsed_by_botocore(self._client, self._selector.operation(method), answer)
        found["ResponseMetadata"] = metadata_of(answer)
        return found


def _as_base64(value: object) -> str:
    """Values of the types B and BS are bytes; nothing else that JSON does not know is in a request."""
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} in a request")


_JSON: Final = json.JSONEncoder(separators=(",", ":"), default=_as_base64)
