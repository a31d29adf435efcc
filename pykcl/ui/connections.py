"""A listening socket with a limit: who opens connections and asks nothing must not keep everybody else out.

Its server reads a head before it asks anybody, so those connections are counted where they are accepted.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

MOST_CONNECTIONS = 128
"""Five browsers have less than half as many. A process may usually open 1,024 files."""

Place = tuple[str, int]


class Connections(socket.socket):
    """Takes the place of `listener`. Where there are too many connections, the oldest one without a session is ended,
    or the oldest one if all have one. Used by the thread of the event loop.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self.setblocking(False)
        self._open: dict[Place, socket.socket] = {}
        self._with_session: set[Place] = set()

    def accept(self) -> tuple[socket.socket, Any]:
        opened, address = super().accept()
        self._open = {place: one for place, one in self._open.items() if one.fileno() >= 0}
        self._with_session &= self._open.keys()
        if len(self._open) >= MOST_CONNECTIONS:
            self._end_one()
        place = address[:2]
        self._with_session.discard(place)
        self._open[place] = opened
        return opened, address

    def keep(self, client: Any) -> None:
        """A request with a session came over it. client: as ASGI has it."""
        place = tuple(client or ())
        if place in self._open:
            self._with_session.add(place)

    def _end_one(self) -> None:
        place = next((one for one in self._open if one not in self._with_session), next(iter(self._open)))
        # The server sees the end of it, and closes it.
        with suppress(OSError):
            self._open.pop(place).shutdown(socket.SHUT_RDWR)
