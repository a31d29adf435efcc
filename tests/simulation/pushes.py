"""Simulations of enhanced fan-out: subscriptions that end, break, fall silent, are refused or taken over.

The faults are those of reading by polls, as far as they have a like: what refuses an iterator ends a subscription, and
what lets a page wait for ever lets a subscription say nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pykcl.errors import SubscriptionOver, TemporaryError
from pykcl.interfaces import Fetched, Subscription
from pykcl.model.checkpoint import ReadFrom
from pykcl.runtime import Runtime
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.service_faults import FaultyStream
from tests.simulation.checkers.observer import Observer
from tests.simulation.clients import InstrumentedStream
from tests.simulation.world import CheckedWorld

_SUBSCRIPTION_SECONDS = (8.0, 30.0, 300.0)


class FaultySubscription:
    """A Subscription of one host. check: raises what stands against an answer. shortened: as of FaultyStream.

    is_silent: it says nothing, not even that it has ended.
    """

    def __init__(
        self,
        inner: Subscription,
        faults: Faults,
        shard_id: str,
        check: Callable[[], None],
        shortened: Callable[[Fetched], Fetched],
        *,
        is_silent: bool,
    ) -> None:
        self._inner, self._faults, self._shard_id = inner, faults, shard_id
        self._check, self._shortened, self._is_silent = check, shortened, is_silent

    def poll(self) -> Fetched | None:
        if self._is_silent:
            return None
        self._check()
        if self._faults.happens("F10.expired", self._shard_id):
            if self._faults.rng("F10.expired").random() < 0.5:
                raise SubscriptionOver("early")
            raise TemporaryError("the connection was reset")
        fetched = self._inner.poll()
        return None if fetched is None else self._shortened(fetched)

    def close(self) -> None:
        self._inner.close()


class PushingStream(FaultyStream):
    """FaultyStream that pushes."""

    def prepare_consumer(self) -> None:
        self._fail_perhaps("DescribeStreamConsumer")
        self._inner.prepare_consumer()

    def subscribe(self, shard_id: str, start: ReadFrom, on_ready: Callable[[], None]) -> Subscription:
        self._fail_perhaps("SubscribeToShard")
        self._refuse_if_locked(shard_id)
        self._deny_perhaps(shard_id)
        faults = self._faults
        is_silent = faults.happens("F10.slow", shard_id)
        inner = self._inner.subscribe(
            shard_id, self._lengthened(start), (lambda: None) if is_silent else on_ready
        )
        if faults.happens("F5.kinesis", f"the answer of SubscribeToShard to {self._host}"):
            # Kinesis pushes, and nobody listens: the next call comes too early.
            raise TemporaryError("ReadTimeout")

        def check() -> None:
            if self._outages.is_down("kinesis", self._host, self._now()):
                raise TemporaryError("InternalFailure")
            self._refuse_if_locked(shard_id)

        def shortened(fetched: Fetched) -> Fetched:
            if fetched.next_iterator is not None:
                fetched.next_iterator = self._numbers.shorten(fetched.next_iterator)
            return self._shortened(shard_id, fetched)

        return FaultySubscription(inner, faults, shard_id, check, shortened, is_silent=is_silent)


class _ReportedSubscription:
    """A Subscription whose events are reported to the checkers."""

    def __init__(self, inner: Subscription, observer: Observer, host: str) -> None:
        self._inner, self._observer, self._host = inner, observer, host

    def poll(self) -> Fetched | None:
        fetched = self._inner.poll()
        if fetched is not None:
            self._observer.was_given_a_page(self._host)
        return fetched

    def close(self) -> None:
        self._inner.close()


class InstrumentedPushes(InstrumentedStream):
    """InstrumentedStream that pushes."""

    _inner: PushingStream

    def prepare_consumer(self) -> None:
        self._metered("consumer", "", self._inner.prepare_consumer)

    def subscribe(self, shard_id: str, start: ReadFrom, on_ready: Callable[[], None]) -> Subscription:
        found = self._metered("subscribe", shard_id, lambda: self._inner.subscribe(shard_id, start, on_ready))
        return _ReportedSubscription(found, self._observer, self._host)


class PushWorld(CheckedWorld):
    """CheckedWorld whose workers read by enhanced fan-out, some with polling to fall back to."""

    streams = PushingStream

    def _create_checkers(self) -> None:
        rng = random.Random(f"{self.simulation.seed}/pushes")
        # In every other world records are polled where they cannot be pushed.
        choice = random.Random(f"{self.simulation.seed}/retrieval")
        self.options["retrieval"] = choice.choice(("fanout", "fanout-or-polling"))
        self.kinesis.subscription_seconds = rng.choice(_SUBSCRIPTION_SECONDS)
        super()._create_checkers()

    def _stream(self, name: str, runtime: Runtime) -> InstrumentedPushes:
        stream = self._streams[name] = self._faulty_stream(
            name,
            runtime,
            lambda shard: self.violations.expect(
                False, Guarantee.BUDGETS, f"{name} reads {shard} more than five times a second"
            ),
        )
        return InstrumentedPushes(stream, name, self.observer)
