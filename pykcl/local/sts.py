"""The one call of STS that the local AWS answers: whose credentials these are. It needs no permission at AWS, either.

STS speaks the query protocol: a form in, XML out.
"""

from __future__ import annotations

import uuid
from xml.sax.saxutils import escape

from pykcl.local.errors import ACCOUNT, AwsError

OPERATION = "GetCallerIdentity"
CONTENT_TYPE = "text/xml"
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


def identity(user: str = "local") -> bytes:
    """The answer: everybody is the same user of the account of the local streams."""
    return _xml(
        f'<GetCallerIdentityResponse xmlns="{_NAMESPACE}"><GetCallerIdentityResult>'
        f"<Arn>arn:aws:iam::{ACCOUNT}:user/{escape(user)}</Arn><UserId>LOCAL</UserId><Account>{ACCOUNT}</Account>"
        f"</GetCallerIdentityResult>{_metadata()}</GetCallerIdentityResponse>"
    )


def refusal(error: AwsError) -> bytes:
    """An error, as STS would word it."""
    return _xml(
        f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>Sender</Type><Code>{escape(error.code)}</Code>'
        f"<Message>{escape(error.message)}</Message></Error><RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    )


def _metadata() -> str:
    return f"<ResponseMetadata><RequestId>{uuid.uuid4()}</RequestId></ResponseMetadata>"


def _xml(text: str) -> bytes:
    return b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()
