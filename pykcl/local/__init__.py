"""The embedded local AWS for demos and tests: our Kinesis, moto's DynamoDB and CloudWatch, one loopback port.

`stream.py` is the in-memory stream model, usable without a socket; the rest is its wire.
May import `model` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pykcl.local.server import LocalAws as LocalAws

__all__ = ["LocalAws", "local_environment"]


def local_environment(url: str) -> dict[str, str]:
    """Environment variables that point AWS clients to a local AWS. It accepts any credentials."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }


def __getattr__(name: str) -> object:
    # Lazily, so that the stream model can be used without loading the wire.
    if name == "LocalAws":
        from pykcl.local.server import LocalAws

        return LocalAws
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
