"""AWS errors: every exception of botocore sorted into pykcl's own, by what can be done about it.

Texts carry the error code and the action that was refused, never AWS' own message, which may quote what we
sent. botocore is not imported here: its classes are known by name, so that sorting costs nothing before the
first call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from pykcl.aws.instruments import ClientRaised, InstrumentRaised, raised_by
from pykcl.aws.network_errors import no_answer, note_way, proxy_before, refused_setting
from pykcl.errors import AnswerRefused, ConfigError, PyKclError, SetupError, TemporaryError, Throttled

P = ParamSpec("P")
T = TypeVar("T")

THROTTLING = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "LimitExceededException",
        "TooManyRequestsException",
        "KMSThrottlingException",
        "SlowDown",
    }
)
DENIED = frozenset(
    {"AccessDeniedException", "AccessDenied", "UnauthorizedOperation", "KMSAccessDeniedException"}
)
# Of Kinesis; the second where a text has not the form of what it should be, such as a shard id that somebody made up.
BAD_ARGUMENT = frozenset({"InvalidArgumentException", "ValidationException"})
BAD_CREDENTIALS = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "OptInRequired",
        "AuthFailure",
    }
)
EXPIRED_CREDENTIALS = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestExpired"})
REFUSED_KEYS = EXPIRED_CREDENTIALS | {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "InvalidToken",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
}
"""Codes of a refusal that other credentials may end: nothing was carried out. A key and a secret of two versions of a
file that was read while it was written do not fit together, either."""
_REFUSED_IDENTITIES = frozenset({"InvalidIdentityToken", "IDPRejectedClaim", "IDPCommunicationError"})
"""Codes with which STS gives no credentials for a token file. Its next token may be a good one."""
_INVALID = frozenset(
    {
        "ValidationException",
        "InvalidArgumentException",
        "SerializationException",
        "UnknownOperationException",
        "InvalidParameterValue",
        "InvalidParameterCombination",
        "MissingParameter",
    }
)

# Exception classes of botocore, by name.
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "ConfigNotFound",
        "ConfigParseError",
        "InvalidConfigError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
        "TokenRetrievalError",
        "NoAuthTokenError",
    }
)
_NO_CREDENTIALS_NOW = frozenset({"CredentialRetrievalError", "MetadataRetrievalError"})
_NO_REGION = frozenset({"NoRegionError", "InvalidRegionError"})
_REFUSED_SETTINGS = frozenset(
    {
        "EndpointProviderError",
        "InvalidChecksumConfigError",
        "InvalidDefaultsMode",
        "InvalidIMDSEndpointError",
        "InvalidIMDSEndpointModeError",
        "InvalidRetryConfigurationError",
        "InvalidSTSRegionalEndpointsConfigError",
    }
)
"""Classes with which botocore refuses settings before anything is sent. EndpointProviderError: settings that lead to no
endpoint, such as AWS_ACCOUNT_ID_ENDPOINT_MODE=required where the credentials name no account."""
_OUR_MISTAKE = frozenset({"ParamValidationError", "MissingParametersError", "UnknownParameterError"})

_READ_AGAIN = (
    "Files, profiles and services are read again within a minute; the environment of this process, and a session or "
    "client that was passed to pykcl, need a restart."
)

_CODE = re.compile(r"[A-Za-z0-9_.:#/-]{1,128}\Z")
_ACTION = re.compile(r"perform: ([a-z0-9-]{1,32}:[A-Za-z]{1,64})")


MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError)
"""What botocore's parser raises when it meets an answer that is not of the service's model (RuntimeError: a time
beyond the calendar, or too deep a nesting)."""

WORKER = "this worker"
OPERATOR = "whoever runs this command"
"""Who lacks a permission: a worker asks, or a command does."""


_SOURCES: Mapping[str, tuple[str, str]] = {
    "assume-role": ("STS", "check that STS can be reached from here, and the profile that names the role"),
    "assume-role-with-web-identity": (
        "STS",
        "check that STS can be reached from here, the token file and the trust policy of the role",
    ),
    "container-role": (
        "the credentials agent of the container",
        "check that the agent runs (EKS Pod Identity, ECS) and that AWS_CONTAINER_CREDENTIALS_FULL_URI leads to it",
    ),
    "iam-role": (
        "the metadata service of the instance (IMDS)",
        "set AWS_METADATA_SERVICE_TIMEOUT (seconds) and AWS_METADATA_SERVICE_NUM_ATTEMPTS, which are 1 by default; in "
        "a container, also raise the hop limit of the instance to 2",
    ),
    "custom-process": ("the credential_process of the profile", "run that command by hand"),
    "sso": ("IAM Identity Center (SSO)", "aws sso login"),
    "login": ("aws login", "aws login"),
}
"""METHOD of botocore's provider -> name of the source in messages, and what to do about it."""

_SOME_SOURCE = (
    "their source",
    "check their source: a token file, a command, a service or code of your own",
)

_SOURCE_OPERATIONS: Mapping[str, str] = {
    "AssumeRole": "assume-role",
    "AssumeRoleWithWebIdentity": "assume-role-with-web-identity",
    "GetRoleCredentials": "sso",
    "CreateToken": "sso",
    "CreateOAuth2Token": "login",
}
"""Operation with which botocore asks a source -> METHOD of its provider."""

_REFUSED_ROLES: Mapping[str, str] = {
    "assume-role": (
        "let the trust policy of the role name the identity that asks, and a policy of that identity permit "
        "sts:AssumeRole; role_arn names the role, in the AWS profile or the configuration file"
    ),
    "assume-role-with-web-identity": (
        "let the trust policy of the role name issuer, subject and audience of the token; AWS_ROLE_ARN, or role_arn of "
        "the AWS profile, names the role"
    ),
}

_SOURCE_PARAMETERS: Mapping[str, tuple[str, str]] = {
    "RoleArn": ("AWS_ROLE_ARN", "role_arn"),
    "RoleSessionName": ("AWS_ROLE_SESSION_NAME", "role_session_name (session_name)"),
    "WebIdentityToken": ("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file"),
    "ExternalId": ("", "external_id"),
    "DurationSeconds": ("", "duration_seconds"),
    "SerialNumber": ("", "mfa_serial"),
}
"""Parameter of STS -> the variable that it comes from, and the key of a profile or a file."""
_PARAMETER = re.compile(rf"\b({'|'.join(_SOURCE_PARAMETERS)})\b", re.IGNORECASE)

_FILE_ERRORS = frozenset({"FileNotFoundError", "PermissionError", "NotADirectoryError", "IsADirectoryError"})
_MISSING_FILE = (
    "AWS credentials could not be obtained ({}): a file that boto3 takes them from is missing or may not be read. "
    "Check AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, the AWS profile and the volumes that "
    "are mounted."
)
_REFUSED_VALUE = "correct the value: it may be empty, too short, or have characters that STS does not take"
_FILE_VARIABLES = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")


def _unreadable_files() -> str:
    """Return a sentence that names the files of the environment that cannot be read; "" where all can."""
    named = ((variable, os.environ.get(variable, "")) for variable in _FILE_VARIABLES)
    found = [f"{path!r} ({variable})" for variable, path in named if path and not os.access(path, os.R_OK)]
    return f" Not readable: {', '.join(found)}." if found else ""


class CredentialsFailed(ClientRaised):
    """A source of credentials gave none.

    method: METHOD of botocore's provider, or None. why: without anything that the source said. remedy: by default that
    for the source. is_final: only somebody's help ends it. is_none: there is no source. text: in the place of all that.
    """

    def __init__(
        self,
        method: str | None,
        why: str,
        *,
        is_final: bool = False,
        is_none: bool = False,
        remedy: str = "",
        text: str = "",
    ) -> None:
        super().__init__(why)
        self._method, self._why, self._text = method, why, text
        self._source, source_remedy = _SOURCES.get(method or "", _SOME_SOURCE)
        self._remedy = remedy or source_remedy
        self.is_none, self.is_final = is_none, is_final or is_none
        self.is_missing_file = is_final and why in _FILE_ERRORS

    @classmethod
    def of(cls, error: Exception, method: str, *, is_start: bool) -> CredentialsFailed:
        """The failure that an exception of a source comes to. is_start: there were no credentials before."""
        if isinstance(error, CredentialsFailed):
            return error
        name = str(error) if isinstance(error, ClientRaised) else type(error).__name__
        named = getattr(error, "kwargs", None)
        method = str(named.get("provider") or method) if isinstance(named, dict) else method
        code = error_code(error)
        why, remedy = (code or name, "") if code or isinstance(error, ClientRaised) else no_answer(error)
        text = ""
        if code in DENIED and method in _REFUSED_ROLES:
            why, remedy = f"it refused the role, {code}", _REFUSED_ROLES[method]
        if (parameter := _parameter_of(error)) is not None:
            method = method or "assume-role-with-web-identity"
            why, remedy = f"it does not take {_setting_of(parameter, method)}", _REFUSED_VALUE
            # A file may be empty for the moment in which it is written.
            is_final = is_start or parameter != "WebIdentityToken"
        elif isinstance(error, PyKclError):
            is_final, text = isinstance(error, SetupError), str(error)
        elif {kind.__name__ for kind in type(error).__mro__} & _NO_CREDENTIALS:
            is_final, text = True, _UNUSABLE.format(name)
        elif is_start and name in _FILE_ERRORS:
            is_final, text = True, _MISSING_FILE.format(name) + _unreadable_files()
        elif is_start and method == "container-role" and name == "ValueError":
            is_final = True  # the address is none that boto3 asks
        else:
            is_final = code not in (None, *_REFUSED_IDENTITIES) and bool(_for_setup(error, str(code), "", ""))
        return cls(method, why, is_final=is_final, text=text, remedy=remedy)

    def again(self) -> CredentialsFailed:
        """The same failure, to be raised: it has no traceback yet."""
        return CredentialsFailed(
            self._method,
            self._why,
            is_final=self.is_final,
            is_none=self.is_none,
            remedy=self._remedy,
            text=self._text,
        )

    def failure(self, doing: str) -> PyKclError:
        """The pykcl error, to be raised outside of the except block."""
        if self.is_none:
            return SetupError(NO_CREDENTIALS).about("E04")
        if self._text:
            kind = SetupError if self.is_final else TemporaryError
            return kind(self._text).about("E04")
        text = f"{doing} failed: AWS credentials could not be obtained from {self._source} ({self._why})."
        if self.is_final:
            return SetupError(f"{text} Do: {self._remedy}.").about("E04")
        return TemporaryError(f"{text} It may work later; if it does not, {self._remedy}.").about("E04")

    def of_renewal(self, ends: object) -> PyKclError:
        """The error for a renewal that is late. ends: when the credentials in use end, a datetime or None."""
        until = f", and those in use end at {ends:%Y-%m-%d %H:%M:%S %Z}" if isinstance(ends, datetime) else ""
        return TemporaryError(
            f"AWS credentials are not renewed: {self._source} ({self._why}){until}. It is asked again; meanwhile "
            f"{self._remedy}."
        ).about("E04")


NO_CREDENTIALS = (
    "No AWS credentials. boto3 searched AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the AWS "
    "profile and the role of the container or instance. Provide one, or pass a boto3 session. On an instance whose "
    "metadata service is slow, set AWS_METADATA_SERVICE_TIMEOUT and AWS_METADATA_SERVICE_NUM_ATTEMPTS."
)
_UNUSABLE = (
    "AWS credentials are needed, and boto3 found none it can use ({}). Set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a role of the container or instance, or pass a boto3 session."
)


def aws_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a boto3 client that is called by `calling`, for an `except` clause; anything else is a
    defect and must not be caught.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    return (BotoCoreError, ClientError, ClientRaised)


def calling(method: Callable[P, T], *, parses: bool = True, renews: bool = True) -> Callable[P, T]:
    """`method` of a boto3 client or session, with ClientRaised in the place of exceptions that are not botocore's.

    boto3 passes on whatever a source of credentials raises: the OSError of a token file that is missing for a moment,
    or the errors of somebody's own code that asks a secret store. Only the method itself is wrapped, so that a defect
    of pykcl is not taken for trouble with credentials; for the same reason an AssertionError passes.
    parses: the method reads an answer of AWS, so MALFORMED passes too. renews: it is called once more where AWS refused
    the credentials and there are others now.
    """
    passing = (*aws_errors(), PyKclError, AssertionError, *(MALFORMED if parses else ()))

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return once(*args, **kwargs)
        except passing as error:
            if not renews or not renewed(
                credentials_of(getattr(method, "__self__", None)), error_code(error)
            ):
                raise
        # Outside the except block: no error of this call may have the refusal in its chain.
        return once(*args, **kwargs)

    def once(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except passing as error:
            note_way(error, getattr(method, "__self__", None))
            raise
        except Exception as error:  # noqa: BLE001 - see above
            raised = raised_by(error)
        # Outside the except block: the exception may quote a path or a secret, and a traceback prints the whole chain.
        try:
            raise raised
        finally:
            del raised  # its traceback holds this frame: no cycle

    return call


def renewed(credentials: Any, code: str | None) -> bool:
    """Return whether credentials that AWS has just refused with this code are others now; see `RenewedCredentials`."""
    renew = getattr(credentials, "renew", None) if code in REFUSED_KEYS else None
    return callable(renew) and bool(renew())


def credentials_of(client: Any) -> Any:
    """Return the credentials that a client of boto3 signs with; what is no client, as it is."""
    return getattr(getattr(client, "_request_signer", None), "_credentials", client)


def error_code(error: Exception) -> str | None:
    """AWS' code, such as "ThrottlingException"; None when no answer of AWS came.

    "unreadable" for what is no code: whatever stands between this process and AWS may have written it.
    """
    fields = _answer(error).get("Error")
    code = fields.get("Code") if isinstance(fields, Mapping) else None
    if not code:
        return None
    return str(code) if _CODE.match(str(code)) else "unreadable"


def http_status(error: Exception) -> int | None:
    """The HTTP status of the answer; None when none came."""
    status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def sort_failure(error: Exception, *, doing: str, who: str = WORKER) -> PyKclError:
    """The pykcl error for `error`, to be raised `from` it. `doing` opens its text, such as "scanning lease
    table 'a'". who: the one whose IAM policy lacks a permission, as the text names it.

    Throttled and TemporaryError may pass; SetupError and ConfigError do not without someone changing
    something. A code nobody knows counts as temporary: giving up would be the greater harm. What a missing
    resource means (ResourceNotFoundException) is for the caller, who knows what was asked for; here it is a
    SetupError.
    """
    if isinstance(error, PyKclError):
        return error
    code, source = error_code(error), _SOURCE_OPERATIONS.get(getattr(error, "operation_name", ""))
    if code is None or source is not None:
        return _without_answer(error, source, doing)
    if code in THROTTLING:
        return Throttled(f"{doing} was throttled by AWS ({code}). Slow down, then try again.")
    found = _for_setup(error, code, doing, who)
    if found is not None:
        return found
    if code in EXPIRED_CREDENTIALS:
        return TemporaryError(
            f"{doing} failed: the AWS credentials have expired ({code}). "
            f"Renew them at their source. {_READ_AGAIN}"
        ).about("E04")
    return _for_now(error, code, doing)


def answer_of(
    doing: str,
    method: Callable[..., Mapping[str, Any]],
    request: Mapping[str, Any],
    *,
    who: str = WORKER,
    refusal: Callable[[str | None, PyKclError], PyKclError] = lambda _, failure: failure,
) -> Mapping[str, Any]:
    """Call a method of a boto3 client once, and return the answer. doing, who: as in `sort_failure`.

    refusal: called with AWS' code, if any, and the error to raise; returns the one that is raised instead.
    Raises TemporaryError, Throttled and SetupError, without what was sent.
    """
    try:
        return calling(method)(**request)
    except aws_errors() as error:
        failure = refusal(error_code(error), sort_failure(error, doing=doing, who=who))
    except MALFORMED as error:
        failure = unreadable(error, doing=doing)
    # Outside the except blocks: botocore's errors may quote the request, and a traceback prints the whole chain.
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def unreadable(error: Exception, *, doing: str) -> AnswerRefused:
    """Return the pykcl error for MALFORMED, to be raised outside of the except block."""
    return AnswerRefused(f"{doing} got an answer that cannot be read ({type(error).__name__}).")


def _for_setup(error: Exception, code: str, doing: str, who: str) -> SetupError | None:
    if code in DENIED:
        found = _ACTION.search(str(_answer(error)["Error"].get("Message", "")))
        action = f" {found.group(1)}" if found else ""
        return SetupError(
            f"{doing} is not permitted ({code}): the AWS identity lacks the permission{action}. "
            f"Grant it in the IAM policy of {who}."
        ).about("E02")
    if code in BAD_CREDENTIALS:
        return SetupError(
            f"{doing} failed: AWS does not accept the credentials ({code}). "
            f"Check access key, secret, session token and region. {_READ_AGAIN}"
        ).about("E04")
    if code in _INVALID:
        return SetupError(
            f"{doing} failed: AWS refused the request as invalid ({code}). Sending it again cannot help; "
            "check names and region, and report it if they are right."
        )
    if code == "ResourceNotFoundException":
        return SetupError(f"{doing} failed: it does not exist. Check its name, the region and the account.")
    return None


def _for_now(error: Exception, code: str, doing: str) -> TemporaryError:
    status = http_status(error) or "unknown"
    if not code.isdigit():
        return TemporaryError(f"{doing} failed at AWS ({code}, HTTP {status}). It may work later.")
    # botocore takes the status for the code where an answer has none, as a page in HTML.
    between = " or ".join(filter(None, map(proxy_before, ("https://", "http://")))) or "a proxy or gateway"
    return TemporaryError(
        f"{doing} got HTTP {status} without an error code of AWS; {between} may have answered in its place. "
        "It may work later; if it does not, check what stands between."
    )


def _parameter_of(error: Exception) -> str | None:
    """Return the parameter of STS that botocore, or STS, does not take; None for other errors."""
    named = getattr(error, "kwargs", None)
    if type(error).__name__ == "ParamValidationError" and isinstance(named, dict):
        text = named.get("report")
    elif (
        getattr(error, "operation_name", "") in _SOURCE_OPERATIONS and error_code(error) == "ValidationError"
    ):
        text = _answer(error)["Error"].get("Message")
    else:
        return None
    found = _PARAMETER.search(str(text))
    return found and next(name for name in _SOURCE_PARAMETERS if name.lower() == found[1].lower())


def _setting_of(parameter: str, method: str) -> str:
    """Return the setting that a parameter of STS comes from, as this provider of botocore finds it."""
    variable, key = _SOURCE_PARAMETERS[parameter]
    value = None if method == "assume-role" else os.environ.get(variable)
    if value is None:
        return f"{key} of the AWS profile or the configuration file"
    if parameter == "WebIdentityToken":
        return f"what is in the file {value}, which {variable} of the environment names"
    return f"{variable} of the environment"


def _without_answer(error: Exception, source: str | None, doing: str) -> PyKclError:
    """source: METHOD of botocore's provider of credentials that has answered: the service itself was not asked then."""
    if isinstance(error, InstrumentRaised):
        return error.failure(doing)
    if source is not None or _parameter_of(error) is not None or isinstance(error, CredentialsFailed):
        return CredentialsFailed.of(error, source or "", is_start=False).failure(doing)
    names = {kind.__name__ for kind in type(error).__mro__}
    name = type(error).__name__
    if isinstance(error, ClientRaised) or names & _NO_CREDENTIALS_NOW:
        why = str(error) if isinstance(error, ClientRaised) else name
        return TemporaryError(
            f"{doing} was not sent: AWS credentials could not be obtained ({why}). It may work later; if it does "
            "not, check their source: a token file, a command, a service or code of your own."
        ).about("E04")
    if names & _NO_REGION:
        return ConfigError(
            f"{doing} needs an AWS region and there is none. "
            "Pass region=..., use a stream ARN, or set AWS_DEFAULT_REGION."
        ).about("E01")
    if names & _NO_CREDENTIALS:
        return SetupError(
            f"{doing} needs AWS credentials and boto3 found none it can use ({name}). Set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a role of the container or instance, "
            "or pass a boto3 session."
        ).about("E04")
    return _unsent(error, names, doing) or _unanswered(error, doing)


def _unsent(error: Exception, names: set[str], doing: str) -> SetupError | None:
    if names & _REFUSED_SETTINGS:
        return SetupError(
            f"{doing} was not sent, as a setting of boto3 does not permit it: {refused_setting(error)}. Do: check "
            "AWS_ACCOUNT_ID_ENDPOINT_MODE with AWS_ACCOUNT_ID, AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT, "
            "other AWS_ variables and the AWS profile."
        )
    if names & _OUR_MISTAKE:
        return SetupError(
            f"{doing} failed before it was sent ({type(error).__name__}). This is a defect of pykcl; please report it."
        )
    return None


def _unanswered(error: Exception, doing: str) -> TemporaryError:
    reason, remedy = no_answer(error)
    later = f"It may work later; if it does not, {remedy}." if remedy else "It may work later."
    return TemporaryError(f"{doing} got no usable answer from AWS ({reason}). {later}")


def _answer(error: Exception) -> Mapping[str, Any]:
    response = getattr(error, "response", None)
    # botocore's HTTPClientError also has a `response`, which is not AWS' answer.
    return response if isinstance(response, dict) else {}
