"""Processors that a test of the testing kit runs: a good one, and one for each mistake a user may make."""

from __future__ import annotations

from typing import ClassVar

from pykcl import Batch, RecordProcessor, ShardEndedInput


class Orders(RecordProcessor):
    """The good one: appends the text of each record to `done`, which each test empties."""

    done: ClassVar[list[str]] = []

    def process_records(self, batch: Batch) -> None:
        for record in batch:
            self.done.append(record.text())


class ByHand(Orders):
    """Checkpoints by itself, behind each record."""

    def process_records(self, batch: Batch) -> None:
        for record in batch:
            self.done.append(record.text())
            batch.checkpointer.checkpoint(record)

    def shard_ended(self, end: ShardEndedInput) -> None:
        end.checkpointer.checkpoint()


class Drops(Orders):
    def process_records(self, batch: Batch) -> None:
        self.done.extend(record.text() for record in batch if record.text() != "b")


class ChecksTooEarly(Orders):
    """Checkpoints the whole batch before its work."""

    def process_records(self, batch: Batch) -> None:
        batch.checkpointer.checkpoint()
        super().process_records(batch)


class ChecksTooEarlyAndRaises(Orders):
    def process_records(self, batch: Batch) -> None:
        batch.checkpointer.checkpoint()
        raise ValueError("too late")


class Reorders(Orders):
    def process_records(self, batch: Batch) -> None:
        self.done.extend(sorted((record.text() for record in batch), reverse=True))


class Swallows(Orders):
    """Takes an error of its own for nothing."""

    def process_records(self, batch: Batch) -> None:
        for record in batch:
            try:
                self.done.append(str(record.json()))
            except ValueError:
                continue


class Raises(Orders):
    """Raises at each record that is no JSON."""

    def process_records(self, batch: Batch) -> None:
        for record in batch:
            self.done.append(str(record.json()))


class Fails(Orders):
    """Raises, once per shard, at its first batch."""

    failed = False

    def process_records(self, batch: Batch) -> None:
        if not self.failed:
            self.failed = True
            raise ConnectionError("not yet")
        super().process_records(batch)
