"""One processor's time with one shard, as the judges follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pykcl.testing.storm.places import Place
from pykcl.testing.storm.promises import Promise


class Judging(Protocol):
    """Where broken promises are noted."""

    def expect(self, holds: bool, promise: Promise, what: str) -> None: ...


@dataclass(slots=True)
class Ownership:
    """after: what it was last given and returned from, or started at. began: virtual seconds.

    state: initialized, ended (shard_ended was called), shut down or lost. running: the batch last given. returned: when
    which batches returned, by their last places. told: how many losses of this shard the host had told of. in_calm:
    whether the last batch was given in calm weather. is_robbed: whether the next owner of the lease has begun.
    confirmed: up to where its processor checkpointed inside the running batch. perhaps: the same, but it raised.
    """

    host: str
    shard_id: str
    after: Place
    began: float = 0.0
    state: str = "initialized"
    busy: str = ""
    delivered: set[Place] = field(default_factory=set)
    running: list[Place] = field(default_factory=list)
    returned: list[tuple[float, Place]] = field(default_factory=list)
    told: int = 0
    in_calm: bool = False
    is_durable_end: bool = False
    is_robbed: bool = False
    confirmed: Place | None = None
    perhaps: Place | None = None

    @contextmanager
    def call(self, judge: Judging, method: str) -> Iterator[None]:
        where = f"{self.host} {self.shard_id}"
        judge.expect(not self.busy, Promise.LIFE_CYCLE, f"{where}: {method} while {self.busy} runs")
        self.busy = method
        try:
            yield
        finally:
            self.busy = ""

    @contextmanager
    def tried_again_if_it_raises(self) -> Iterator[None]:
        """What was delivered stays so, but the batch comes again from its first record that is not checkpointed."""
        before, told = self.after, self.told
        try:
            yield
        except BaseException:
            # Also where every record was delivered, and only its checkpoint was refused.
            self.after = before if self.confirmed is None else max(before, self.confirmed)
            if self.after == before:
                self.told = told
            raise

    def goes_on_with(self, given: list[Place]) -> None:
        """A batch begins. Where nobody knows whether a checkpoint was written, it shows that."""
        if self.perhaps is not None and given and given[0] > self.perhaps:
            self.after = max(self.after, self.perhaps)
        self.perhaps = self.confirmed = None
