"""The consumer of enhanced fan-out that all shards of a worker share."""

from __future__ import annotations

from math import inf

from pykcl.errors import ConfigError, FatalError, SetupError, TemporaryError
from pykcl.events import FanOutRestored, FanOutUnavailable
from pykcl.interfaces import Events, PushStream, Stream
from pykcl.planning.push_schedule import REGISTERED_EVERY, consumer_again_at
from pykcl.runtime import Runtime

_TRIED_EVERY = 5.0
"""Seconds between two attempts to register a consumer without which no shard is read."""


class FanOutConsumer:
    """The consumer, with the stream that pushes to it. Thread-safe. Raises ConfigError for a stream that does not.

    may_poll: shards are polled while there is no consumer.
    """

    def __init__(self, stream: Stream, runtime: Runtime, events: Events, *, may_poll: bool) -> None:
        if not isinstance(stream, PushStream):
            raise ConfigError(
                f"retrieval='fanout' needs a stream that pushes records, and {type(stream).__name__} only answers "
                "reads. Do: retrieval='polling'."
            )
        self.stream: PushStream = stream
        self.may_poll = may_poll
        self._runtime, self._events = runtime, events
        self._one_asks = runtime.lock()
        self._is_there = self._is_reported = False
        self._prepared_at = self._again_at = -inf

    def prepare(self) -> bool:
        """Find or register the consumer; return True. Raises as `PushStream.prepare_consumer`.

        With `may_poll` only FatalError is raised.
        """
        if self.may_poll:
            self._prepare_or_poll()
        else:
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
            # Not when that began. It may take ten seconds, and calls that failed meanwhile are to be repeated now.
            self._prepared_at = self._runtime.monotonic()
            self._again_at = self._prepared_at + REGISTERED_EVERY

    # -- while shards may be polled ------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """True while nothing is known that stands against subscribing."""
        return self._is_there

    @property
    def again_at(self) -> float:
        """Time from which on `is_found` asks for a consumer that is not there, monotonic seconds."""
        return -inf if self._is_there else self._again_at

    def is_found(self) -> bool:
        """Return True if the consumer is there. It is asked for again first, if that is due. Raises FatalError.

        One thread asks, which may take ten seconds. The others do not wait for it.
        """
        with self._one_asks:
            now = self._runtime.monotonic()
            if self._is_there or now < self._again_at:
                return self._is_there
            self._again_at = now + REGISTERED_EVERY
        self._prepare_or_poll()
        return self._is_there

    def is_gone(self, gone_at: float, cause: str) -> None:
        """Note that a call at that time, monotonic seconds, found the consumer to be deleted."""
        with self._one_asks:
            if not self._is_there or self._prepared_at >= gone_at:
                return
            self._is_there, self._is_reported = False, True
            self._again_at = max(self._runtime.monotonic(), self._prepared_at + REGISTERED_EVERY)
        self._events.emit(FanOutUnavailable(shard=None, cause=cause))

    def _prepare_or_poll(self) -> None:
        try:
            self.stream.prepare_consumer()
        except FatalError:
            raise
        except (TemporaryError, SetupError) as error:
            needs_a_person = isinstance(error, SetupError)
            with self._one_asks:
                self._again_at = consumer_again_at(self._runtime.monotonic(), needs_a_person=needs_a_person)
                was_reported, self._is_reported = self._is_reported, True
            if not was_reported:
                self._events.emit(FanOutUnavailable(shard=None, cause=str(error)))
        else:
            with self._one_asks:
                self._is_there, self._prepared_at = True, self._runtime.monotonic()
                was_reported, self._is_reported = self._is_reported, False
            if was_reported:
                self._events.emit(FanOutRestored(shard=None))
