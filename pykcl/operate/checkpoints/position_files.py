"""Positions of shards from a file: a backup, or lines of "shard,sequence number[,sub-sequence number]"."""

from __future__ import annotations

import csv

from pykcl.errors import ConfigError
from pykcl.operate.checkpoints.backup import is_backup, positions_in, read_backup
from pykcl.operate.checkpoints.times import full_shard_id, position_of

Positions = dict[str, tuple[str, int | None]]
_HEADS = ("shard", "leasekey")


def read_positions(text: str, source: str) -> Positions:
    """By shard id. Raises ConfigError with source and line."""
    if is_backup(text):
        return positions_in(read_backup(text, source))
    found: Positions = {}
    for number, fields in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in fields]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells[0].lower() in _HEADS):
            continue
        place = f"{source}, line {number}"
        if len(cells) not in (2, 3):
            raise ConfigError(f"{place}: write shard,sequence number[,sub-sequence number].")
        key = full_shard_id(cells[0])
        if key in found:
            raise ConfigError(f"{place}: {key[:80]!r} is there twice.")
        try:
            found[key] = position_of(":".join(cells[1:]).rstrip(":"))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    if not found:
        raise ConfigError(
            f"{source} names no shard. Write lines of shard,sequence number[,sub-sequence number]."
        )
    return found
