"""Packages that wrap botocore for the program, such as X-Ray, ddtrace and OpenTelemetry: calls that pass them by, and
what they raise."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from pykcl.errors import SetupError


def untraced(client: Any) -> Any:
    """Return the client, whose calls pass by what the program has wrapped botocore in, before or later.

    X-Ray, ddtrace and OpenTelemetry wrap two methods of botocore's classes. A worker calls in its own threads, in no
    segment or span of the program: X-Ray logs three lines for each such call, or raises, and each heartbeat would be a
    trace. The class of a client is its own, as botocore makes one for each.
    """
    from botocore.client import BaseClient

    if isinstance(client, BaseClient):
        type(client)._make_api_call = own_method(type(client), "_make_api_call")  # type: ignore[attr-defined]
        endpoint = type(client._endpoint)  # type: ignore[attr-defined]
        plain = {"prepare_request": own_method(endpoint, "prepare_request")}
        client._endpoint.__class__ = type(endpoint.__name__, (endpoint,), plain)  # type: ignore[attr-defined]
    return client


def own_method(kind: type, name: str) -> Any:
    """Return a method as botocore defines it. botocore itself wraps methods, too."""
    return inspect.unwrap(inspect.getattr_static(kind, name), stop=_is_botocores)


def _is_botocores(function: object) -> bool:
    # By its type: what wrapt makes passes for the function that it wraps.
    return type(function) is FunctionType and function.__globals__["__name__"].startswith("botocore.")


class ClientRaised(Exception):
    """An exception that is not botocore's came out of boto3. The text is the name of its type."""


_INSTRUMENTS: Mapping[str, str] = {
    "aws_xray_sdk": "AWS_XRAY_CONTEXT_MISSING=LOG_ERROR, or patch() without botocore",
    "ddtrace": "DD_TRACE_BOTOCORE_ENABLED=false",
    "opentelemetry": "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=botocore",
    "newrelic": "repair or remove it",
    "sentry_sdk": "repair or remove it",
    "elasticapm": "repair or remove it",
    "moto": "leave the mock, or create the worker in it",
    "wrapt": "repair or remove what wraps botocore with it",
}
"""Packages that patch botocore for a program -> what to do where they raise."""


class InstrumentRaised(ClientRaised):
    """A package that has patched botocore for the program raised, which has nothing to do with AWS."""

    def __init__(self, package: str, name: str) -> None:
        super().__init__(name)
        self._package, self._name = package, name

    def failure(self, doing: str) -> SetupError:
        """The pykcl error, to be raised outside of the except block."""
        return SetupError(
            f"{doing} failed: {self._package}, which has patched botocore in this process, raised {self._name}. It is "
            f"no trouble with AWS or its credentials. Do: {_INSTRUMENTS[self._package]}."
        )


def raised_by(error: Exception) -> ClientRaised:
    """Return what stands for an exception that is not botocore's: without its text, which may quote a secret."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    modules = [type(error).__module__, trace.tb_frame.f_globals.get("__name__", "") if trace else ""]
    packages = [str(module).partition(".")[0] for module in modules]
    found = next((package for package in packages if package in _INSTRUMENTS), None)
    name = type(error).__name__
    return ClientRaised(name) if found is None else InstrumentRaised(found, name)
