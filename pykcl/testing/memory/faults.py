"""The exceptions a boto3 DynamoDB client raises when things go wrong, for `memory.dynamodb.Fault`."""

from __future__ import annotations

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from pykcl.testing.memory.values import aws_error

_ENDPOINT = "http://dynamodb.invalid"


def timed_out() -> Exception:
    """No answer came in time; nobody knows whether the request was applied."""
    return ReadTimeoutError(endpoint_url=_ENDPOINT)


def unreachable() -> Exception:
    """No connection could be made."""
    return EndpointConnectionError(endpoint_url=_ENDPOINT)


def throttled(operation: str = "UpdateItem") -> ClientError:
    return aws_error("ProvisionedThroughputExceededException", "Rate exceeded", operation)


def failing(operation: str = "UpdateItem") -> ClientError:
    """HTTP 500: the request may have been applied."""
    return aws_error("InternalServerError", "Internal server error", operation, status=500)


def denied(operation: str = "UpdateItem") -> ClientError:
    message = f"User: arn:aws:iam::123456789012:user/u is not authorized to perform: dynamodb:{operation}"
    return aws_error("AccessDeniedException", message, operation)
