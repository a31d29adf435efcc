"""A reader of a shard under test, without a worker's threads and without a processor."""

from contextlib import suppress
from functools import partial
from types import SimpleNamespace

from pykcl.errors import TemporaryError
from pykcl.model.checkpoint import ReadFrom
from pykcl.worker.fallback_reader import FallbackReader
from pykcl.worker.push_reader import PushReader
from pykcl.worker.reading_place import ReadingPlace
from pykcl.worker.shard_reader import ShardReader

SHARD = "shardId-000000000000"
OLDEST = ReadFrom("TRIM_HORIZON")


class Reading:
    """The reader of one shard, whose thread is the test. way: the option `retrieval`, or "fallen back".

    options: of the worker, which is not started.
    """

    def __init__(self, fleet, way="polling", first=OLDEST, after=None, **options):
        retrieval = "fanout-or-polling" if way == "fallen back" else way
        self.fleet, self.worker = fleet, fleet.worker("w1", retrieval=retrieval, **options)
        self.context = context = self.worker._connect()
        if way == "fallen back":
            context.consumer.is_gone(context.runtime.monotonic(), "it is deleted")
        self.is_full = False
        place = ReadingPlace(context, SHARD, None, first, after)
        held = SimpleNamespace(key=SHARD, renew=lambda: None, subscribed_at=None, silent_since=None)
        poll = partial(ShardReader, context, SHARD, place, reserve=self._reserve)
        push = partial(
            PushReader, context, context.consumer, held, place, context.runtime.event(), self._reserve
        )
        if way == "polling":
            self.reader = poll()
        elif way == "fanout":
            self.reader = push()
        else:
            self.reader = FallbackReader(context, context.consumer, SHARD, place, push, poll)

    def _reserve(self, size, give_up):
        return not self.is_full and self.context.memory.reserve_page(size, give_up)

    def page(self, is_wanted=lambda page: page.fetched.records, seconds=60.0, pause=0.25):
        """Return the next page that is wanted. Others are finished. None: none came. pause: seconds before the next
        read where there was none."""
        until = self.fleet.simulation.now + seconds
        while self.fleet.simulation.now < until:
            with suppress(TemporaryError):
                page = self.reader.read(lambda: False)
                if page is not None and is_wanted(page):
                    return page
                if page is not None:
                    self.reader.finish(page)
            self.fleet.simulation.sleep(pause)
        return None

    def records(self, seconds=60.0, pause=0.25):
        """Return the payloads of the records that come in the time."""
        found, until = [], self.fleet.simulation.now + seconds
        while page := self.page(seconds=until - self.fleet.simulation.now, pause=pause):
            found += payloads(page)
            self.fleet.simulation.sleep(self.reader.finish(page))
        return found

    @property
    def reserved(self):
        """Bytes of the buffer that are taken."""
        return self.context.config.max_buffered_bytes - self.context.memory._free


def payloads(page):
    return [record.data for batch in page.batches for record in batch]
