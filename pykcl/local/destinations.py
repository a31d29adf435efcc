"""SQS, SNS and S3 of the local AWS, by moto's request handlers: enough for dead letters and their redrive.

SQS is spoken in JSON, SNS as a form, S3 by paths (http://HOST/BUCKET/KEY). An owner that a request to S3 expects is
compared, which moto does not do. Message bodies and objects are in no log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pykcl.local.errors import ACCOUNT, REGION, AwsError

SERVICES = ("sqs", "sns", "s3")
SQS_PREFIX = "AmazonSQS."
_SNS_VERSION = b"Version=2010-03-31"
_S3_SCOPE = re.compile(r"Credential=[^,]*/s3/aws4_request")
_S3_OPERATIONS = {
    # Method, whether there is a key, and a word of the query that makes it another operation.
    ("PUT", True, ""): "PutObject",
    ("PUT", True, "copy"): "CopyObject",
    ("GET", True, ""): "GetObject",
    ("HEAD", True, ""): "HeadObject",
    ("DELETE", True, ""): "DeleteObject",
    ("PUT", False, ""): "CreateBucket",
    ("GET", False, "list-type"): "ListObjectsV2",
    ("GET", False, ""): "ListObjects",
    ("HEAD", False, ""): "HeadBucket",
    ("DELETE", False, ""): "DeleteBucket",
}


def is_sns(body: bytes) -> bool:
    """Return whether a form is a request of SNS."""
    return _SNS_VERSION in body


def is_s3(headers: Mapping[str, str]) -> bool:
    """Return whether a request is signed for S3."""
    return _S3_SCOPE.search(headers.get("authorization", "")) is not None


def s3_operation(method: str, path: str, query: bytes, headers: Mapping[str, str]) -> str:
    """Return the name of the operation; "" for one that the local AWS does not know by name."""
    bucket, _, key = path.lstrip("/").partition("/")
    if not bucket:
        return "ListBuckets" if method == "GET" else ""
    word = "copy" if "x-amz-copy-source" in headers else "list-type" if b"list-type=" in query else ""
    return _S3_OPERATIONS.get((method, bool(key), word), "")


def backends() -> tuple[Any, ...]:
    """Return moto's backends of these services. The first call imports them, which takes a while."""
    from moto.s3.models import s3_backends
    from moto.sns.models import sns_backends
    from moto.sqs.models import sqs_backends

    return sqs_backends, sns_backends, s3_backends


def place_of(service: str) -> str:
    """Return the key of the backend of an account: a region, or for S3 the partition."""
    return "aws" if service == "s3" else REGION


def handler_of(service: str, path: str) -> Any:
    """Return the function that serves a request."""
    if service == "sqs":
        from moto.sqs.responses import SQSResponse

        return SQSResponse.dispatch
    if service == "sns":
        from moto.sns.responses import SNSResponse

        return SNSResponse.dispatch
    from moto.s3.responses import S3Response

    bucket, _, key = path.lstrip("/").partition("/")
    if key:
        return S3Response.key_dispatch
    return S3Response.ambiguous_dispatch if bucket else S3Response.bucket_dispatch


def without_waiting(body: bytes) -> bytes:
    """Return a request to SQS that does not wait for messages: moto would serve no other request meanwhile."""
    if b'"WaitTimeSeconds"' not in body:
        return body
    try:
        params: Any = json.loads(body)
        return json.dumps({**params, "WaitTimeSeconds": 0}).encode()
    except (ValueError, TypeError):
        return body


def refuse_another_owner(headers: Mapping[str, str]) -> None:
    """Raise AwsError where a request to S3 expects that another account owns the bucket."""
    for name in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"):
        if headers.get(name, ACCOUNT) != ACCOUNT:
            raise AwsError("AccessDenied", "Access Denied", 403)
