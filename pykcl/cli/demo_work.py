"""What each record processor of the demo does with a batch, under a Python worker and under a Java one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pykcl.cli.demo_ledger import LedgerFile
from pykcl.model.record import Record

WORK_SECONDS = 0.12
"""How long a batch takes, whatever its size: the time in which a kill -9 finds it half done."""
PARTS = 4


def work_on(ledger: LedgerFile, run: int, records: Sequence[Record]) -> None:
    """Works on a batch in four parts and writes down each part when it is done. run: see `demo_ledger.Delivery`."""
    ledger.note("Batch", shard=records[0].shard_id, records=len(records))
    size = -(-len(records) // PARTS)
    for start in range(0, len(records), size):
        time.sleep(WORK_SECONDS / PARTS)
        ledger.delivered(run, records[start : start + size])
