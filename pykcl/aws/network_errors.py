"""Reasons for which no answer of AWS came, in words: TLS, proxies and addresses.

Texts name addresses, settings and paths. Of a URL they show scheme, host and port, never a password, and nothing that
the other side said. The classes of botocore and urllib3 are known by name, as in `errors`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pykcl.errors import printable

_UNREADABLE_FILE = frozenset(
    {"FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError"}
)
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or IP address."""
_OTHER_TIME = frozenset({9, 10})
"""OpenSSL's codes for a certificate that is not yet, or no more, valid."""
_NO_TLS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "HTTP_REQUEST",
        "UNKNOWN_PROTOCOL",
        "PACKET_LENGTH_TOO_LONG",
    }
)
_TUNNEL = re.compile(r"Tunnel connection failed: ([1-9][0-9]{2})\b")
_USER_IN_URL = re.compile(r"//[^/@\s]*@")
_LONGEST_CHAIN, _LONGEST_TEXT = 8, 400


class NoAnswer(NamedTuple):
    """reason: the name of the error with all that is known. remedy: what to do about it; "" where nothing is known."""

    reason: str
    remedy: str = ""


class Way(NamedTuple):
    """The way of a client's requests.

    trusts: the path of the authorities; True for boto3's own list; None where it is not known. proxy: its URL.
    """

    url: str
    trusts: Any = None
    proxy: str | None = None


def way_of(client: Any, url: str = "") -> Way | None:
    """Return the way of a boto3 client's requests; None for anything else. url: by default its endpoint."""
    try:
        url, sends = url or str(client.meta.endpoint_url), client._endpoint.http_session
        return Way(url, sends._verify, sends._proxy_config.proxy_url_for(url))
    except AttributeError:
        return None


def note_way(error: Exception, client: Any) -> None:
    """Keep in an error of botocore which way the request of this client went."""
    named = getattr(error, "kwargs", None)
    if isinstance(named, dict) and "way" not in named:
        named["way"] = way_of(client, str(named.get("endpoint_url") or ""))


def no_answer(error: Exception) -> NoAnswer:
    """Return the reason for an error that came in the place of an answer."""
    named = _named(error)
    address, name = address_of(named.get("endpoint_url", "")), type(error).__name__
    where = f"{name} at {address}" if address else name
    way = named.get("way") or _way_of_environment(address or "https://")
    causes = list(_causes(error))
    proxy = _proxy(way, named)
    if name == "ProxyConnectionError":
        return _proxy_failed(where, proxy, causes)
    if name == "SSLError":
        found = _tls_failed(where, way, causes)
    elif any(type(one).__name__ == "LocationParseError" for one in causes):
        found = NoAnswer(
            f"{where}: a URL cannot be read", "check HTTPS_PROXY, HTTP_PROXY and the URL of the endpoint"
        )
    else:
        found = NoAnswer(where)
    if not proxy or "endpoint_url" not in named:
        return found
    asked = [address_of(getattr(one, "url", "") or "") for one in causes]
    if address_of(way.proxy or "") in asked:
        return NoAnswer(f"{where}: {proxy} has not answered", _REACH_PROXY)
    return NoAnswer(f"{found.reason}; by way of {proxy}", found.remedy)


def proxy_before(url: str) -> str:
    """Return the words for the proxy that the environment names for this URL; "" without one."""
    return _proxy(_way_of_environment(url), {})


def refused_setting(error: Exception) -> str:
    """Return the text of an error with which botocore refuses a setting. What a URL holds of a user stays in it."""
    return printable(_USER_IN_URL.sub("//", str(error)))[:_LONGEST_TEXT].rstrip(".")


def address_of(url: object) -> str | None:
    """Return scheme, host and port of a URL, without its other parts: a password, say. None without a host."""
    try:
        parts = urlsplit(str(url))
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else None


# -- TLS ---------------------------------------------------------------------------------------------------------


def unreadable_bundle(error: BaseException) -> str:
    """Return why a file of authorities cannot be read, given an error of OpenSSL or the system; "" for others."""
    if type(error).__name__ in _UNREADABLE_FILE:
        return str(getattr(error, "strerror", None) or type(error).__name__)
    return "no certificate in it can be read" if getattr(error, "library", None) in ("X509", "PEM") else ""


def bundle_of(trusts: Any) -> str:
    """Return the words for the authorities that a client trusts: the setting that names them, and its value."""
    if trusts is True:
        return "boto3's own list, as AWS_CA_BUNDLE is not set"
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if trusts and trusts == os.environ.get(name):
            return f"{name}={trusts}"
    if trusts:
        return f"{trusts}, of ca_bundle in the AWS profile or of verify= of the client"
    return "ca_bundle of the AWS profile, REQUESTS_CA_BUNDLE or boto3's own list, as AWS_CA_BUNDLE is not set"


def _tls_failed(where: str, way: Way, causes: list[BaseException]) -> NoAnswer:
    for cause in causes:
        if unreadable := unreadable_bundle(cause):
            return NoAnswer(
                f"{where}: the authorities to trust cannot be read from {bundle_of(way.trusts)}: {unreadable}",
                "check that file",
            )
        code, reason = getattr(cause, "verify_code", None), getattr(cause, "reason", None)
        if code is not None or type(cause).__name__ == "CertificateError":
            return _certificate_refused(where, way, code, getattr(cause, "verify_message", ""))
        if reason in _NO_TLS:
            return NoAnswer(
                f"{where}: what listens there does not speak TLS ({reason})",
                "check the URL of the endpoint: http:// may be meant, or another port",
            )
        if isinstance(reason, str) and re.fullmatch("[A-Z0-9_]{1,64}", reason):
            return NoAnswer(f"{where}: TLS failed ({reason})")
    return NoAnswer(where)


def _certificate_refused(where: str, way: Way, code: int | None, message: str) -> NoAnswer:
    """code, message: OpenSSL's; None, "" where urllib3 has compared the names."""
    if code is None or code in _OTHER_NAME:
        return NoAnswer(
            f"{where}: the certificate is for other names than that host",
            "check the URL of the endpoint, and where its name leads",
        )
    why = f"{where}: the certificate is not accepted, {message}"
    if code in _OTHER_TIME:
        return NoAnswer(why, "check the certificate and the clock of this machine")
    return NoAnswer(
        f"{why}; the authorities that are trusted are in {bundle_of(way.trusts)}",
        "name by AWS_CA_BUNDLE a file that also has the authority of that server, or of a proxy that opens TLS",
    )


# -- proxies -----------------------------------------------------------------------------------------------------

_REACH_PROXY = "check that the proxy runs and can be reached, or name the host in NO_PROXY"


def _proxy(way: Way, named: dict[str, Any]) -> str:
    address = address_of(way.proxy or named.get("proxy_url") or "")
    if address is None:
        return ""
    first = urlsplit(way.url).scheme or "https"
    for name in (f"{first}_proxy", f"{first.upper()}_PROXY"):
        value = os.environ.get(name)
        if value and address_of(value if "://" in value else f"http://{value.lstrip('/')}") == address:
            return f"the proxy {address} of {name}"
    return f"the proxy {address}"


def _proxy_failed(where: str, proxy: str, causes: list[BaseException]) -> NoAnswer:
    proxy = proxy or "the proxy"
    for cause in causes:
        if isinstance(cause, OSError) and (found := _TUNNEL.match(str(cause))):
            remedy = (
                "put user and password into it: http://USER:PASSWORD@HOST:PORT"
                if found[1] == "407"
                else "see that the proxy lets the hosts of AWS through, or name them in NO_PROXY"
            )
            return NoAnswer(f"{where}: {proxy} answered HTTP {found[1]}", remedy)
    if any(getattr(cause, "verify_code", None) or getattr(cause, "library", None) for cause in causes):
        return NoAnswer(
            f"{where}: TLS with {proxy} failed", "check the scheme of its URL: http:// may be meant"
        )
    is_late = any("Timeout" in type(cause).__name__ for cause in causes[-1:])
    return NoAnswer(
        f"{where}: {proxy} {'has not answered' if is_late else 'cannot be reached'}", _REACH_PROXY
    )


def _way_of_environment(url: str) -> Way:
    """Return the way of a client that botocore has made by itself, as far as the environment says it."""
    from botocore.utils import get_environ_proxies

    proxies = get_environ_proxies(url)
    return Way(url, os.environ.get("AWS_CA_BUNDLE") or None, proxies.get(urlsplit(url).scheme))


# -- errors ------------------------------------------------------------------------------------------------------


def _named(error: BaseException) -> dict[str, Any]:
    named = getattr(error, "kwargs", None)
    return named if isinstance(named, dict) else {}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it was made of, the outermost first."""
    found: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if found is None:
            return
        yield found
        inner = (_named(found).get("error"), *found.args, found.__cause__)
        found = next((one for one in inner if isinstance(one, BaseException)), None)
