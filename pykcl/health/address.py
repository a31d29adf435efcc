"""Where to listen: HOST:PORT as people write it, and a socket there."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from pykcl.errors import ConfigError, SetupError

LOOPBACK = "127.0.0.1"
_BACKLOG = 64
_FORM = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]:|(?P<host>[^\s:\[\]/@]*):)?(?P<port>[0-9]{1,5})\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """host: a name or an IP address; without one in the text 127.0.0.1. port: 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """`8080`, `:8080`, `HOST:8080` or `[::1]:8080`. Raises ConfigError."""
        found = _FORM.match(text.strip())
        if found is None or int(found["port"]) > 65_535:
            raise ConfigError(
                f"{text[:200]!r} is no address. Use PORT for 127.0.0.1 only, HOST:PORT, or [::1]:PORT."
            )
        return cls(found["six"] or found["host"] or LOOPBACK, int(found["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. is_loopback: nobody but this machine can reach it."""

    socket: socket.socket
    address: Address
    is_loopback: bool


def listen(address: Address) -> Listener:
    """Raises SetupError where that cannot be had: a name nobody knows, a port that is taken, or one of the system's."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # One of them: a name with several addresses is listened on at its first, which is told.
        family, kind, protocol, _, place = found[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unusable(address, error) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise _unusable(address, error) from None
    host, port = str(place[0]), int(made.getsockname()[1])
    return Listener(made, Address(host, port), ipaddress.ip_address(host.partition("%")[0]).is_loopback)


def _unusable(address: Address, error: OSError) -> SetupError:
    return SetupError(
        f"Cannot listen on {address}: {error.strerror or type(error).__name__}. Do: name another port or address."
    )
