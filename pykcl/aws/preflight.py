"""Questions that do no harm: each asked once, and what came of it remembered, refusals included.

Nothing here writes. GetCallerIdentity of STS needs no permission at all; every other call is a plain read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from pykcl.aws.clients import client_config, create_client
from pykcl.aws.errors import (
    BAD_CREDENTIALS,
    DENIED,
    EXPIRED_CREDENTIALS,
    MALFORMED,
    aws_errors,
    calling,
    error_code,
    sort_failure,
)
from pykcl.aws.operator_clients import OperatorClients
from pykcl.errors import AnswerRefused, PyKclError, SetupError, Throttled
from pykcl.runtime import Runtime

TroubleKind = Literal["denied", "key", "credentials", "missing", "throttled", "unreachable", "refused"]

_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """code: AWS', such as "AccessDeniedException"; None where none came. text: for people."""

    kind: TroubleKind
    text: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """action: as IAM calls it, such as "kinesis:ListShards". trouble: None: it was answered."""

    action: str
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose credentials a client has.

    arn, account: None where STS could not be asked; why_not says why. source: where boto3 found them, in botocore's
    words ("env", "iam-role"). expires_at: text, UTC. is_fixed: a session token that nothing renews.
    """

    source: str
    arn: str | None = None
    account: str | None = None
    expires_at: str | None = None
    is_fixed: bool = False
    why_not: str = ""


class Prober:
    """Asks; used by one thread. skew: seconds by which AWS' clock is ahead of ours, from the last answer that told."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.probes: list[Probe] = []
        self.skew: float | None = None

    def ask(self, action: str, call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The answer; None where there was trouble, which is then the last of `probes`. Raises nothing of AWS'."""
        answer, trouble = self._once(action, call)
        if trouble is not None and trouble.kind == "throttled":
            # Once more: a shard's five reads a second are everybody's, and one refusal means little.
            self._runtime.event().wait(_PAUSE)
            answer, trouble = self._once(action, call)
        self.probes.append(Probe(action, trouble))
        return answer

    def note(self, action: str, error: PyKclError) -> None:
        """What came of a call that one of our adapters made."""
        self.probes.append(Probe(action, trouble_from(error, action)))

    def trouble_of(self, action: str) -> Trouble | None:
        return next((probe.trouble for probe in reversed(self.probes) if probe.action == action), None)

    def _once(
        self, action: str, call: Callable[[], Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any] | None, Trouble | None]:
        try:
            answer = calling(call)()
            self._note_clock(answer)
            return dict(answer), None
        except aws_errors() as error:
            self._note_clock(getattr(error, "response", None))
            return None, trouble_from(error, action)
        except MALFORMED as error:
            failure = AnswerRefused(f"{action} got an answer that cannot be read ({type(error).__name__}).")
            return None, Trouble("refused", str(failure))

    def _note_clock(self, answer: Any) -> None:
        metadata = answer.get("ResponseMetadata") if isinstance(answer, Mapping) else None
        headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
        date = headers.get("date") if isinstance(headers, Mapping) else None
        if not isinstance(date, str):
            return
        try:
            there = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        # A Date is cut to the second: half of one is the better guess.
        self.skew = there + 0.5 - self._runtime.utcnow_millis() / 1000


def trouble_from(error: Exception, action: str) -> Trouble:
    """What an error of botocore, or one of ours, means for the one who asked."""
    code = error_code(error)
    failure = sort_failure(error, doing=action, who="whoever runs this")
    return Trouble(_kind(code, failure), str(failure), code)


def _kind(code: str | None, failure: PyKclError) -> TroubleKind:
    if code is not None:
        # Before DENIED, in which one of these is.
        if code.startswith("KMS") and "Throttling" not in code:
            return "key"
        for codes, kind in _KINDS:
            if code in codes:
                return kind
    if isinstance(failure, Throttled):
        return "throttled"
    return "refused" if isinstance(failure, SetupError) else "unreachable"


_KINDS: tuple[tuple[frozenset[str], TroubleKind], ...] = (
    (DENIED, "denied"),
    (frozenset({"ResourceNotFoundException"}), "missing"),
    (BAD_CREDENTIALS | EXPIRED_CREDENTIALS, "credentials"),
)


def identity_of(clients: OperatorClients, service: str) -> Identity:
    """Whose credentials the clients of this service have. Asks STS unless only one of the two is AWS itself.

    Raises ConfigError, SetupError and TemporaryError as `OperatorClients.client`; what STS says is in the answer.
    """
    endpoint = str(clients.client(service).meta.endpoint_url)
    session = clients.session(service)
    credentials = session.get_credentials()
    known = _known(credentials)
    sts = create_client(
        session,
        "sts",
        region_name=clients.region(service),
        endpoint_url=clients.access.endpoint,
        config=client_config(connect_timeout=3.0, read_timeout=5.0, connections=1),
    )
    if _is_aws(endpoint) != _is_aws(str(sts.meta.endpoint_url)):
        return Identity(**known, why_not=f"{service} has an endpoint of its own, and STS has not")
    try:
        answer = sts.get_caller_identity()
        return Identity(**known, arn=str(answer["Arn"]), account=str(answer["Account"]))
    except aws_errors() as error:
        return Identity(**known, why_not=trouble_from(error, "sts:GetCallerIdentity").text)
    except (*MALFORMED, unreadable_xml()) as error:
        return Identity(**known, why_not=f"STS' answer cannot be read ({type(error).__name__})")


def unreadable_xml() -> type[Exception]:
    """What botocore raises where STS or IAM answers with something that is no XML: a proxy may have written it."""
    from botocore.parsers import ResponseParserError

    found: type[Exception] = ResponseParserError
    return found


def _known(credentials: Any) -> dict[str, Any]:
    """Of botocore's credentials what is no secret. Asks for them, where that was put off. Raises PyKclError."""
    failure: PyKclError
    try:
        has_token = bool(calling(credentials.get_frozen_credentials)().token)
    except aws_errors() as error:
        failure = sort_failure(error, doing="getting AWS credentials")
    except MALFORMED as error:
        failure = SetupError(f"Getting AWS credentials failed ({type(error).__name__}). Check their source.")
    else:
        expires = getattr(credentials, "_expiry_time", None)
        return {
            "source": str(getattr(credentials, "method", None) or "given"),
            "expires_at": expires.strftime("%Y-%m-%dT%H:%M:%SZ") if expires is not None else None,
            "is_fixed": has_token and not hasattr(credentials, "refresh_needed"),
        }
    # Outside the except blocks: what boto3 says may quote a line of a credentials file.
    raise failure


def _is_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".amazonwebservices.com.cn"))
