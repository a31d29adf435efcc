"""What one request of botocore's teaches: where to, as whom, with which headers, signed how.

Endpoint rules, FIPS, dual stack, account endpoints, user agent and signing name are botocore's business, and change
with its versions. So none of it is computed here: botocore makes one real request, `before-send` (the one event of
botocore's that is documented to see what is sent) shows it, and the same is sent from then on. The proof that
nothing was misunderstood: our signature of that request must be botocore's, letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pykcl.aws.lean.signing import ALGORITHM, Signer, canonical_request

JSON_TYPES = frozenset({"application/x-amz-json-1.0", "application/x-amz-json-1.1"})
SIGNED = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")
"""In the order of their names. The token only where the credentials have one."""

_AUTHORIZATION = re.compile(
    ALGORITHM
    + r" Credential=(?P<key>[^/,]+)/(?P<day>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)/aws4_request, "
    r"SignedHeaders=(?P<names>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})\Z"
)
_EXPECTED = frozenset({*SIGNED, "user-agent", "authorization", "content-length"})
_LEFT_OUT = frozenset({"amz-sdk-invocation-id", "amz-sdk-request"})
"""botocore's count of its own attempts: nobody signs it, nobody needs it."""


class NotLearned(Exception):
    """Something in the request is not understood. The text says what, without any value of it."""


@dataclass(frozen=True, slots=True)
class Learned:
    """host: as the Host header says it, with a port that is not the scheme's own. target: of one operation, as
    X-Amz-Target has it. account: whose credentials signed it, as far as botocore knows; the host may be theirs alone.
    """

    url: str
    is_tls: bool
    hostname: str
    port: int
    host: str
    path: str
    target: str
    content_type: str
    user_agent: str
    account: str | None
    signer: Signer = field(repr=False)


def learn(request: Any, credentials: Any, operation: str) -> Learned:
    """request: botocore's AWSPreparedRequest, signed. credentials: frozen ones of the client. operation: what it asks
    for, such as "GetRecords". Raises NotLearned.
    """
    url = urlsplit(request.url)
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    if request.method != "POST" or url.query or url.username or url.scheme not in ("http", "https"):
        raise NotLearned("its URL or method is not of the usual form")
    if unknown := sorted(headers.keys() - _EXPECTED - _LEFT_OUT):
        raise NotLearned(f"it has the header {unknown[0]}")
    target = headers.get("x-amz-target", "")
    if headers.get("content-type") not in JSON_TYPES or not re.fullmatch(
        rf"[A-Za-z0-9_]+\.{operation}", target
    ):
        raise NotLearned("it is not in the JSON protocol")
    found = _AUTHORIZATION.match(headers.get("authorization", ""))
    if found is None:
        raise NotLearned("it is not signed with Signature Version 4")
    host, path = url.netloc, url.path or "/"
    if not isinstance(request.body, bytes) or any(mark in request.url for mark in "\r\n %"):
        raise NotLearned("its URL or body is not of the usual form")
    learned = Learned(
        request.url,
        url.scheme == "https",
        url.hostname or "",
        url.port or (443 if url.scheme == "https" else 80),
        _without_default_port(host, url.scheme),
        path,
        target,
        headers["content-type"],
        headers.get("user-agent", ""),
        account_of(credentials),
        Signer(found["region"], found["service"]),
    )
    _prove(learned, headers, request.body, credentials, found)
    return learned


def sign_anew(request: Any, credentials: Any, epoch_seconds: int) -> None:
    """Put another time, and the signature that belongs to it, into a request that botocore has signed.

    Raises NotLearned where our signature of the request as it is would not be botocore's; nothing is changed then.
    """
    url = urlsplit(request.url)
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    found = _AUTHORIZATION.match(headers.get("authorization", ""))
    body = request.body
    if found is None or request.method != "POST" or url.query or not isinstance(body, bytes):
        raise NotLearned("it is not signed in the usual form")
    told = {"host": _without_default_port(url.netloc, url.scheme), **headers}
    names = found["names"].split(";")
    if credentials is None or found["key"] != credentials.access_key or not told.keys() >= set(names):
        raise NotLearned("it is signed with other credentials or headers")
    signed = {name: told[name] for name in names}
    signer, path = Signer(found["region"], found["service"]), url.path or "/"

    def signature() -> str:
        return signer.signature(
            credentials.secret_key, signed["x-amz-date"], canonical_request(path, signed, body)
        )

    if "x-amz-date" not in signed or signature() != found["signature"]:
        raise NotLearned("it is signed in a way that cannot be repeated")
    signed["x-amz-date"] = signer.amz_date(epoch_seconds)
    authorization = (
        f"{ALGORITHM} Credential={credentials.access_key}/{signer.scope(signed['x-amz-date'])}, "
        f"SignedHeaders={found['names']}, Signature={signature()}"
    )
    for name, value in (("X-Amz-Date", signed["x-amz-date"]), ("Authorization", authorization)):
        del request.headers[name]
        request.headers[name] = value


def _prove(
    learned: Learned, headers: Mapping[str, str], body: bytes, credentials: Any, found: re.Match[str]
) -> None:
    """Raise NotLearned unless we sign the same to the same."""
    told = {**headers, "host": learned.host}
    signed = {name: told[name] for name in SIGNED if name in told}
    if credentials is None or found["key"] != credentials.access_key or found["names"] != ";".join(signed):
        raise NotLearned("it is signed with other credentials or headers")
    date = told["x-amz-date"]
    ours = learned.signer.signature(
        credentials.secret_key, date, canonical_request(learned.path, signed, body)
    )
    if ours != found["signature"] or signed.get("x-amz-security-token") != (credentials.token or None):
        raise NotLearned("it is signed in a way that cannot be repeated")


def account_of(credentials: Any) -> str | None:
    """Whose frozen credentials these are; older versions of botocore do not know, and have no hosts of accounts."""
    account: str | None = getattr(credentials, "account_id", None)
    return account


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _without_default_port(netloc: str, scheme: str) -> str:
    return netloc.removesuffix({"http": ":80", "https": ":443"}[scheme])
