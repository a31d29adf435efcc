"""The consumer of enhanced fan-out that all shards of a worker share."""

from __future__ import annotations

from math import inf

from pykcl.errors import ConfigError, TemporaryError
from pykcl.interfaces import PushStream, Stream
from pykcl.runtime import Runtime

_REGISTERED_EVERY, _TRIED_EVERY = 60.0, 5.0
"""Seconds. Whoever deletes a consumer may do so again and again, and each one is billed."""


class FanOutConsumer:
    """The consumer, with the stream that pushes to it. Thread-safe. Raises ConfigError for a stream that does not."""

    def __init__(self, stream: Stream, runtime: Runtime) -> None:
        if not isinstance(stream, PushStream):
            raise ConfigError(
                f"retrieval='fanout' needs a stream that pushes records, and {type(stream).__name__} only answers "
                "reads. Do: retrieval='polling'."
            )
        self.stream: PushStream = stream
        self._runtime = runtime
        self._one_asks = runtime.lock()
        self._prepared_at = self._again_at = -inf

    def prepare(self) -> bool:
        """Find or register the consumer; return True. Raises as `PushStream.prepare_consumer`."""
        self.stream.prepare_consumer()
        return True

    def prepare_again(self, gone_at: float) -> None:
        """Find or register the consumer once more, if nobody has since it was found to be deleted.

        gone_at: when that was, monotonic seconds. Raises TemporaryError while it is too soon, and as
        `PushStream.prepare_consumer`.
        """
        with self._one_asks:
            now = self._runtime.monotonic()
            if self._prepared_at >= gone_at:
                return
            if now < self._again_at:
                raise TemporaryError(
                    "The consumer of enhanced fan-out was deleted. It is registered once a minute at most. Do: let "
                    "nobody deregister it while a worker runs."
                )
            self._again_at = now + _TRIED_EVERY
            self.prepare()
            self._prepared_at, self._again_at = now, now + _REGISTERED_EVERY
