"""The PutRecords call: over the direct transport when nothing stands against it, else over botocore.

The first request of a stream always goes over botocore; what was sent for it is what the direct transport sends from
then on (`request_template`). Its body is made here, and so is what is read of the answer: botocore's serializer and
parser walk over the service model for each record, which is most of what a request of 500 small records costs.

A request is sent once. If no answer comes, records may be in the stream or not, and whoever puts them again has to say
so: see `interfaces.PutStream`. Only one that was refused for its signature is sent again here, as it was not carried
out.
"""

from __future__ import annotations

import json
import logging
from binascii import b2a_base64
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Final

from pykcl.aws.kinesis_decode import put_entry
from pykcl.aws.transport.transport import SigningClock, TransportSelector, metadata_of, parsed_by_botocore
from pykcl.config import HttpTransport
from pykcl.model.metered_json import NotJson, read_json
from pykcl.model.new_record import NewRecord
from pykcl.runtime import Runtime

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

log = logging.getLogger("pykcl.kinesis")

_METHOD: Final = "put_records"
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


class PutRequests:
    """PutRecords of one stream. May be used by any number of threads at once. clock: signs its requests."""

    def __init__(
        self, client: KinesisClient, runtime: Runtime, transport: HttpTransport, clock: SigningClock
    ) -> None:
        self._client = client
        self._selector = TransportSelector(
            client, runtime, transport, (_METHOD,), clock, handlers=(), log=log, doing="putting"
        )

    def put(self, records: Sequence[NewRecord], **stream: str) -> dict[str, Any]:
        """Return the answer as the client's `put_records` would. stream: StreamARN or StreamName.

        Raises `aws_errors`, what botocore's parser raises; never because of the transport that was chosen, for the
        records may have been put.
        """
        arn = stream.get("StreamARN")
        transport = self._selector.direct(_METHOD, arn)
        if transport is None:
            request = {**stream, "Records": [put_entry(record) for record in records]}
            return self._selector.over_botocore(_METHOD, arn, request)
        answer = self._selector.post(transport, _METHOD, body_of(stream, records), may_repeat=False)
        try:
            found = read_json(answer.body, max_depth=None)
        except NotJson:
            found = None
        if not isinstance(found, dict):
            return parsed_by_botocore(self._client, self._selector.operation(_METHOD), answer)
        return {**found, "ResponseMetadata": metadata_of(answer)}


def body_of(stream: dict[str, str], records: Sequence[NewRecord]) -> bytes:
    """Return the JSON of a request."""
    parts, separator = [_JSON.encode(stream)[:-1].encode()], b',"Records":[{"Data":"'
    for data, key, hash_key in records:
        explicit = "" if hash_key is None else f',"ExplicitHashKey":{quoted(hash_key)}'
        rest = f'","PartitionKey":{quoted(key)}{explicit}'
        # Joined once, as bytes: a text would be copied four times.
        parts += (separator, b2a_base64(data, newline=False), rest.encode())
        separator = b'},{"Data":"'
    return b"".join((*parts, b"}]}"))
