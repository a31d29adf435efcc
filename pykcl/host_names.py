"""The names a server of ours answers to, by the Host header of a request.

Loopback alone keeps no web page out: the page's own name can be made to point at this machine, and the browser then
sends its requests here and hands the answers to the page. It sends that name, too. So a server without a password
answers only to names that nobody else gives out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable

from pykcl.errors import ConfigError

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})"
_HOST = re.compile(rf"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>{_NAME}))(?::[0-9]{{1,5}})?\Z")


def allowed_names(given: Iterable[str] | None) -> frozenset[str]:
    """Names or IP addresses besides a server's own, as `is_own` takes them. Raises ConfigError."""
    names = set()
    for text in given or ():
        try:
            names.add(_plain(text))
        except ValueError:
            if re.fullmatch(_NAME, text) is None:
                raise ConfigError(
                    f"{text[:200]!r} is not a host name, so no request could come with it. "
                    "Give the name or the IP address alone, without http:// and port, such as pykcl.internal."
                ) from None
            names.add(text.lower())
    return frozenset(names)


def is_own(host: str | None, local_address: str, allowed: Collection[str] = ()) -> bool:
    """True for a Host header with localhost or a name below it, a loopback address, the address that the request came
    in on, or one of `allowed`; and for a request without one, which no browser sends.
    """
    if host is None:
        return True
    found = _HOST.match(host)
    if found is None:
        return False
    name = (found["six"] or found["name"]).lower()
    try:
        name = _plain(name)
    except ValueError:
        # Browsers and resolvers keep these on loopback (RFC 6761, 6.3).
        return name == "localhost" or name.endswith(".localhost") or name in allowed
    return ipaddress.ip_address(name).is_loopback or name in allowed or name == _plain_or_empty(local_address)


def _plain(text: str) -> str:
    """An IP address in its one form. Raises ValueError."""
    address = ipaddress.ip_address(text)
    # A socket for both versions shows an IPv4 address as ::ffff:192.0.2.1.
    return str(getattr(address, "ipv4_mapped", None) or address)


def _plain_or_empty(text: str) -> str:
    try:
        return _plain(text.partition("%")[0])
    except ValueError:
        return ""
