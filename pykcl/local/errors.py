"""Error of the local AWS: the one exception of all its services."""

from __future__ import annotations

ACCOUNT = "000000000000"
REGION = "us-east-1"


class AwsError(Exception):
    """An error response of AWS. code: as in `__type`; message: free text; status: the HTTP status.

    The fault hook of a test raises it, too, to make one operation fail.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_argument(message: str) -> AwsError:
    return AwsError("InvalidArgumentException", message)


def not_found(message: str) -> AwsError:
    return AwsError("ResourceNotFoundException", message)


def in_use(message: str) -> AwsError:
    return AwsError("ResourceInUseException", message)


def invalid(message: str) -> AwsError:
    return AwsError("ValidationException", message)


def limit_exceeded(message: str) -> AwsError:
    return AwsError("LimitExceededException", message)


def throttled(shard_id: str, stream: str) -> AwsError:
    return AwsError(
        "ProvisionedThroughputExceededException",
        f"Rate exceeded for shard {shard_id} in stream {stream} under account {ACCOUNT}.",
    )
