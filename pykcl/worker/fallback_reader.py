"""Read one shard by enhanced fan-out, and by polling while that cannot be: `retrieval="fanout-or-polling"`.

Both readers go on at the same `ReadingPlace`, one after the other, so that nothing is skipped or out of order. Polling
ends behind a page with records, of which the last is pushed once more and dropped, or at the tip of the shard.
"""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import FatalError, SetupError, TemporaryError
from pykcl.events import FanOutRestored, FanOutUnavailable
from pykcl.model.shard import Shard
from pykcl.planning.push_schedule import tried_again_at
from pykcl.planning.read_schedule import PollWindow
from pykcl.runtime import Event as Flag
from pykcl.worker.context import Context
from pykcl.worker.fan_out_consumer import FanOutConsumer
from pykcl.worker.prefetch import Answer
from pykcl.worker.push_reader import PushReader
from pykcl.worker.reading_place import Page, ReadingPlace
from pykcl.worker.shard_reader import ShardReader

_SILENCE = "no event came of its subscriptions"


class FallbackReader:
    """Reader of one shard, with the methods of ShardReader, each of the reader that reads at the time.

    place: of both. push, poll: make a reader there.
    """

    def __init__(
        self,
        context: Context,
        consumer: FanOutConsumer,
        shard_id: str,
        place: ReadingPlace,
        push: Callable[[], PushReader],
        poll: Callable[[], ShardReader],
    ) -> None:
        self._context, self._consumer, self._shard_id, self._place = context, consumer, shard_id, place
        self._new_push, self._new_poll = push, poll
        # None while the shard is polled.
        self._push = push() if consumer.is_there else None
        self._reader: PushReader | ShardReader = self._push or poll()
        self._is_trial = self._is_reported = False
        self._cause = _SILENCE
        self._again_at = context.runtime.monotonic()

    def read(self, give_up: Callable[[], bool]) -> Page | None:
        """Return and raise as the two readers do."""
        push = self._push
        if push is None:
            return self._read_polled(give_up)
        try:
            page = push.read(give_up)
        except FatalError:
            raise
        except (TemporaryError, SetupError) as error:
            self._cause = str(error)
            is_over = push.gone_at is not None or isinstance(error, SetupError)
            if not (is_over or push.is_given_up(is_trial=self._is_trial)):
                raise
        else:
            if page is not None or not push.is_given_up(is_trial=self._is_trial):
                return page
        self._poll(push)
        return self._reader.read(give_up)

    def _read_polled(self, give_up: Callable[[], bool]) -> Page | None:
        try:
            return self._reader.read(give_up)
        except FatalError:
            raise
        except (TemporaryError, SetupError):
            # A worker may be permitted to subscribe, and not to poll: no page would ever come.
            self._subscribe_if_due()
            raise

    def _poll(self, push: PushReader) -> None:
        """Read by polls from now on, and report why, once until records are pushed again."""
        runtime = self._context.runtime
        if push.gone_at is not None:
            self._consumer.is_gone(push.gone_at, self._cause)
        else:
            self._again_at = tried_again_at(runtime.monotonic(), runtime.random())
            if not self._is_reported:
                self._context.events.emit(FanOutUnavailable(shard=self._shard_id, cause=self._cause))
            self._is_reported = True
        self._reader.reopen()
        self._reader.close()
        self._push, self._reader = None, self._new_poll()
        self._place.change_clock(-self._clocks_apart)

    def _subscribe_if_due(self) -> bool:
        """Let records be pushed from now on, if that is to be tried again; return True then. Raises FatalError."""
        if self._due_in > 0 or not self._consumer.is_found():
            return False
        self._place.forget_doubt()
        self._reader.close()
        self._push = self._reader = self._new_push()
        self._place.change_clock(self._clocks_apart)
        self._is_trial = True
        return True

    @property
    def _clocks_apart(self) -> float:
        """Seconds that the clock of Kinesis, of pushed events, is ahead of ours, of polled pages."""
        return self._context.stream.server_time_millis() / 1000 - self._context.runtime.monotonic()

    def finish(self, page: Page, keep: Callable[[int], int] = lambda reserved: 0) -> float:
        """Continue after a delivered page, or event. Returns as ShardReader does. Raises FatalError."""
        pause = self._reader.finish(page, keep)
        if self._push is None:
            return 0.0 if self._may_end_polling(page) and self._subscribe_if_due() else pause
        if self._is_reported:
            self._context.events.emit(FanOutRestored(shard=self._shard_id))
        self._is_trial, self._is_reported, self._cause = False, False, _SILENCE
        return pause

    @staticmethod
    def _may_end_polling(page: Page) -> bool:
        # Not at the tip alone: a shard that always has records would be polled for ever. Nor amid empty pages before
        # it: each trial would begin them anew.
        fetched = page.fetched
        return not page.is_last and (bool(fetched.records) or fetched.millis_behind_latest == 0)

    @property
    def _due_in(self) -> float:
        """Seconds until a shard that is polled is subscribed to again."""
        return max(self._again_at, self._consumer.again_at) - self._context.runtime.monotonic()

    @property
    def children(self) -> tuple[Shard, ...]:
        return self._reader.children

    def awaited(self) -> Callable[[], float] | None:
        return self._reader.awaited()

    def delegate(
        self,
        may_ask: Callable[[], bool],
        on_empty_page: Callable[[Answer], tuple[str, PollWindow] | None],
        wake: Flag,
    ) -> Callable[[], float] | None:
        """Return as the two readers do; but polling ends when the shard is to be subscribed to."""
        left = self._reader.delegate(may_ask, on_empty_page, wake)
        if self._push is not None or left is None:
            return left
        return lambda: min(left(), self._due_in)

    @property
    def too_soon(self) -> float:
        return self._reader.too_soon

    def throttled(self) -> float:
        return self._reader.throttled()

    def accept_empty_page(self, answer: Answer) -> tuple[str, PollWindow] | None:
        return self._reader.accept_empty_page(answer)

    def drop(self) -> None:
        self._reader.drop()

    def stop_others(self) -> None:
        self._reader.stop_others()

    def close(self) -> None:
        self._reader.close()

    def reopen(self) -> None:
        self._reader.reopen()
