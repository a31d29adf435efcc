"""Read one shard by enhanced fan-out: subscribe at the checkpoint, take the events as they are pushed, subscribe again.

A subscription lives for five minutes, and the one after it goes on behind the last event that was *delivered*: what was
pushed and not delivered comes again. The place of an event is no record's number, so it is never written down; another
owner of the lease begins at the checkpoint, as with polling.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pykcl.errors import (
    ConsumerGone,
    IteratorExpired,
    PositionRefused,
    PyKclError,
    SubscriptionOver,
    SubscriptionTaken,
    TemporaryError,
)
from pykcl.events import SubscriptionContested
from pykcl.interfaces import Fetched, Subscription
from pykcl.metrics import catalog
from pykcl.model.shard import Shard
from pykcl.planning.push_schedule import (
    CALL_INTERVAL,
    SILENCE,
    PushSchedule,
    after_break,
    after_call,
    after_event,
    after_refusal,
    after_silence,
    after_subscribing,
    after_taking,
    is_given_up,
)
from pykcl.planning.read_schedule import PollWindow
from pykcl.runtime import Event as Flag
from pykcl.worker.context import Context
from pykcl.worker.fan_out_consumer import FanOutConsumer
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.prefetch import Answer, UnreadBytes, bytes_kept
from pykcl.worker.reading_place import Page, ReadingPlace


class PushReader:
    """Reader of one shard, with the methods of ShardReader. Used by one thread; `_on_ready` is called by any.

    place, reserve: as of ShardReader. wake: set when there is something to read.
    """

    def __init__(
        self,
        context: Context,
        consumer: FanOutConsumer,
        held: HeldLease,
        place: ReadingPlace,
        wake: Flag,
        reserve: Callable[[int, Callable[[], bool]], bool] | None = None,
    ) -> None:
        self._context, self._consumer, self._held, self._wake = context, consumer, held, wake
        self._shard_id = held.key
        self._stream = consumer.stream
        # Whether the stream is known to be the same one. After a sound subscription the next one needs no proof of it,
        # and an account may ask twenty times a second.
        self._is_confirmed = False
        # When the consumer was found to be deleted, monotonic seconds.
        self.gone_at: float | None = None
        self._reserve = reserve or context.memory.reserve_page
        self._place = place
        self._schedule = PushSchedule()
        self._subscription: Subscription | None = None
        self._unread: UnreadBytes | None = None
        # Whether `poll` may have something: True until it had nothing.
        self._is_ready = False
        self._lacks_space = False
        self._reserved = 0
        self.children: tuple[Shard, ...] = ()

    def read(self, give_up: Callable[[], bool]) -> Page | None:
        """Return the next event. None: there is none now; `awaited` says what to wait for.

        give_up: polled while waiting for buffer space; True ends the wait. Raises TemporaryError, Throttled, ShardGone,
        SetupError, LeaseLostError. The page must be passed to `finish`.
        """
        self._lacks_space = False
        if self._place.is_doubtful:
            return self._resolve()
        if self._subscription is None and (self.too_soon or not self._subscribe()):
            return None
        fetched = self._next_event(give_up)
        if fetched is None:
            return None
        # By the clock of Kinesis. 1) A machine whose other clock stands still is suspended for a day; 2) the next
        # subscription steps over what was trimmed meanwhile.
        now = self._stream.server_time_millis() / 1000
        return self._page(fetched) if self._place.arrived(fetched, now) else None

    def _resolve(self) -> Page | None:
        """Check an event before which records may be missing. None: call again."""
        try:
            held = self._place.resolve()
        except IteratorExpired as error:
            raise TemporaryError(
                f"Kinesis refused an iterator of {self._shard_id} that it had just given."
            ) from error
        return None if held is None else self._page(held)

    def _page(self, fetched: Fetched) -> Page:
        meter = self._context.meter
        if meter.is_on and fetched.records:
            # Not by the clock of Kinesis as its answers show it, which is cut to the second.
            delay = self._context.runtime.utcnow_millis() - fetched.records[-1].arrived_at_millis
            meter.summary(self._shard_id, ((catalog.EVENT_DELAY, max(0.0, float(delay))),))
        return Page(fetched, self._now, self._place.batches(fetched))

    # -- subscribing ---------------------------------------------------------------------------------------------

    def _subscribe(self) -> bool:
        """Subscribe behind what was delivered; return False if that is to be tried again at `call_at`."""
        context = self._context
        if not self._is_confirmed:
            context.identity.confirm_before_opening()
        if self.gone_at is not None:
            self._consumer.prepare_again(self.gone_at)
            self.gone_at = None
        start = self._place.start
        # Before the call: also one without an answer may have begun to push.
        self._place.opened(context.stream.server_time_millis())
        called_at, self._is_ready = self._now, True
        try:
            with context.meter.timed(catalog.SUBSCRIBE_TO_SHARD, self._shard_id):
                subscription = self._stream.subscribe(self._shard_id, start, self._on_ready)
        except SubscriptionTaken:
            self._note_another(after_refusal(self._schedule, self._now, context.runtime.random()))
            return False
        except PyKclError as error:
            self._is_confirmed = False
            self.gone_at = called_at if isinstance(error, ConsumerGone) else None
            self._schedule = after_call(self._schedule, self._now, context.runtime.random())
            if isinstance(error, PositionRefused) and self._place.is_replaced():
                return False
            raise
        self._subscription = subscription
        self._unread = UnreadBytes(subscription, context.memory, context.runtime.lock())
        self._held.subscribed_at = now = self._now
        self._schedule = after_subscribing(self._schedule, now, context.runtime.random())
        self._is_confirmed = True
        return True

    def _note_another(self, schedule: PushSchedule) -> None:
        """Go on by a schedule that another subscription has made. Raises LeaseLostError.

        Perhaps it is that of a new owner of the lease. A heartbeat shows it, sooner than the next one that is due.
        """
        before, self._schedule = self._schedule, schedule
        if schedule.taken == before.taken:
            return
        if schedule.is_contested and not before.is_contested:
            self._context.events.emit(SubscriptionContested(shard=self._shard_id))
        # An outcome that is unknown is the renewer's business.
        with suppress(TemporaryError):
            self._held.renew()

    def _on_ready(self) -> None:
        # What comes before `_unread` is there is counted by the first poll.
        unread = self._unread
        if unread is not None:
            unread.update()
        self._is_ready = True
        self._wake.set()

    def _end(self) -> None:
        """End the subscription: what it has pushed and was not delivered comes again."""
        subscription, self._subscription = self._subscription, None
        unread, self._unread = self._unread, None
        self._is_ready, self._held.subscribed_at = False, None
        if subscription is not None:
            subscription.close()
        if unread is not None:
            unread.close()

    # -- events --------------------------------------------------------------------------------------------------

    def _next_event(self, give_up: Callable[[], bool]) -> Fetched | None:
        """Return the next event, with exactly its bytes reserved. None: there is none, or no buffer space.

        They were counted before as unread ones of the subscription. So nothing more is reserved for it: where all
        bytes are taken by what nobody has read, somebody has to read.
        """
        is_idle = self._now >= self._schedule.idle_until
        if not self._is_ready and not is_idle:
            return None
        if not self._reserve(0, give_up):
            self._lacks_space = True
            return None
        fetched = self._poll()
        if fetched is not None:
            self._reserved = bytes_kept((fetched, 0.0))
            self._context.memory.count(self._reserved)
        if self._unread is not None:
            self._unread.update()
        if fetched is not None:
            self._schedule, self._held.silent_since = after_event(self._schedule, self._now), None
        elif is_idle and self._subscription is not None:
            self._end_idle()
        return fetched

    def _end_idle(self) -> None:
        """End a subscription that is to be renewed, or is silent. Raises TemporaryError for the latter."""
        self._end()
        if self._now < self._schedule.silent_from:
            return
        self._schedule = after_silence(self._schedule)
        if self._held.silent_since is None:
            self._held.silent_since = self._schedule.heard_at
        self._context.meter.measure(self._shard_id, (catalog.SUBSCRIPTION_SILENT, 1.0))
        raise TemporaryError(
            f"The subscription to {self._shard_id} said nothing for {SILENCE:g} s, and Kinesis reports progress also "
            "where nothing is written. Subscribing again."
        )

    def _poll(self) -> Fetched | None:
        if self._subscription is None:
            return None
        # Cleared before the poll: an event that comes after it sets it again.
        self._is_ready = False
        try:
            fetched = self._subscription.poll()
        except SubscriptionOver:
            self._end()
            return None
        except SubscriptionTaken:
            self._end()
            self._note_another(after_taking(self._schedule, self._now, self._context.runtime.random()))
            return None
        except PyKclError:
            self._is_confirmed = False
            self._schedule = after_break(self._schedule, self._now, self._context.runtime.random())
            self._end()
            raise
        if fetched is not None:
            self._is_ready = True
        return fetched

    def finish(self, page: Page, keep: Callable[[int], int] = lambda reserved: 0) -> float:
        """Continue after a delivered event; 0: the next one need not be waited for.

        keep: called with the reserved bytes; returns how many of them stay reserved, for its caller to release.
        """
        fetched = page.fetched
        if fetched.records:
            self._place.delivered(fetched.records)
        if fetched.next_iterator is not None:
            self._place.passed(fetched.next_iterator)
        self._place.is_overtaken_soon(fetched)
        self.children = fetched.children
        self._reserved -= keep(self._reserved)
        self.drop()
        return 0.0

    def is_given_up(self, *, is_trial: bool) -> bool:
        """Return True once the shard is better read by polls; see `push_schedule`."""
        return is_given_up(self._schedule, self._now, is_trial=is_trial)

    # -- waiting -------------------------------------------------------------------------------------------------

    def awaited(self) -> Callable[[], float] | None:
        """Return a function that returns the seconds to sleep, unless woken, after a read that brought no page.

        None: the read is to be tried again.
        """
        return None if self._lacks_space or self._place.is_doubtful else self._left

    def delegate(
        self,
        may_ask: Callable[[], bool],
        on_empty_page: Callable[[Answer], tuple[str, PollWindow] | None],
        wake: Flag,
    ) -> Callable[[], float] | None:
        """Return a function that returns the seconds to sleep, unless woken, before `read` is called."""
        return self._left

    def _left(self) -> float:
        if self._subscription is None:
            return self._schedule.call_at - self._now
        return 0.0 if self._is_ready else self._schedule.idle_until - self._now

    @property
    def _now(self) -> float:
        return self._context.runtime.monotonic()

    @property
    def too_soon(self) -> float:
        """Seconds for which Kinesis would refuse a call."""
        return max(0.0, self._schedule.call_at - self._now) if self._subscription is None else 0.0

    def throttled(self) -> float:
        """A call, or reading, was refused for its rate. Returns the seconds to wait before the next.

        With a subscription it was the read that searches for trimmed records: those who poll have used the shard up.
        """
        return max(self.too_soon, self._context.runtime.random().uniform(1.0, 2.0) * CALL_INTERVAL)

    def accept_empty_page(self, answer: Answer) -> tuple[str, PollWindow] | None:
        """Return None: no other thread reads for this one."""
        return None

    # -- leaving -------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Give the buffer space back; the page, if any, must not be used any more."""
        self._context.memory.release(self._reserved)
        self._reserved = 0

    def stop_others(self) -> None:
        """End the subscription, before the lease is let go: the next owner is not refused for it."""
        self._end()

    def close(self) -> None:
        """The end of this reading: everything is given back."""
        self.drop()
        self._end()
        self._held.silent_since = None

    def reopen(self) -> None:
        """Subscribe again, behind what was delivered."""
        self._place.forget_doubt()
        self._is_confirmed = False
        self.drop()
        self._end()
