"""`python -m pykcl.cli.demo_java_processor LEDGER WORKER`: what the demo's Java worker starts for each shard."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pykcl.cli.demo_ledger import LedgerFile
from pykcl.cli.demo_work import work_on
from pykcl.cli.java.multilang import MultiLangProcessor, payload_of, position_of
from pykcl.model.record import Record


class DemoProcessor(MultiLangProcessor):
    """Works as the Python workers do, and checkpoints each batch when it is done."""

    def __init__(self, ledger: LedgerFile) -> None:
        self._ledger = ledger
        self._shard = ""

    def initialize(self, shard: str, sequence_number: str, sub_sequence_number: int) -> None:
        self._shard = shard

    def process(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        # A process of its own for each time the worker owns the shard: its number tells them apart.
        work_on(self._ledger, os.getpid(), [self._record(record) for record in records])
        self.checkpoint(*position_of(records[-1]))

    def _record(self, record: dict[str, Any]) -> Record:
        sequence, sub = position_of(record)
        return Record(
            payload_of(record),
            record["partitionKey"],
            sequence,
            shard_id=self._shard,
            sub_sequence_number=sub,
        )


if __name__ == "__main__":
    DemoProcessor(LedgerFile(Path(sys.argv[1]), sys.argv[2])).serve()
