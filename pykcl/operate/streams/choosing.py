"""Which shards are read, and from where."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pykcl.errors import ConfigError, SetupError
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.lease import Lease, first_read
from pykcl.model.shard import Shard
from pykcl.operate.table_view import TableView
from pykcl.planning.shard_graph import FamilyTree

_NUMBER = re.compile(r"[0-9]{1,12}\Z")
_OLDEST = StartPosition("TRIM_HORIZON")


@dataclass(frozen=True, slots=True)
class Start:
    """Where to open one shard. after: what lies at or below this position is not shown."""

    shard: Shard
    read_from: ReadFrom
    after: Checkpoint | None = None


def starts_since(shards: Iterable[Shard], read_from: ReadFrom) -> list[Start]:
    """Every shard from one moment on; from LATEST only those without a listed child, where new records go."""
    shards = list(shards)
    if read_from.kind == "LATEST":
        leaves = FamilyTree.of(shards).open_leaves()
        shards = [shard for shard in shards if shard.shard_id in leaves]
    return [Start(shard, read_from) for shard in shards]


def starts_of_application(
    shards: Iterable[Shard], leases: Mapping[str, Lease], application: str
) -> list[Start]:
    """Every record the application has not checkpointed, as far as Kinesis still has it.

    A row's shard is opened at its checkpoint. Shards that ended in the table are left out, and so are those without a
    row above one with a row: they were read and their rows cleaned up. Others without a row are read from their oldest
    record: the fleet will do so, too, when their parents have ended.

    leases: by shard id. Raises SetupError where the table has no lease of any of these shards.
    """
    shards = list(shards)
    if leases.keys().isdisjoint(shard.shard_id for shard in shards):
        raise SetupError(
            f"The lease table of {application!r} has no lease of a shard of this stream. Check the application and "
            "the stream; without --from-app, --since says where to begin."
        )
    over = FamilyTree.of(shards, leases).ancestors_of(leases)
    starts = []
    for shard in shards:
        lease = leases.get(shard.shard_id)
        if lease is None and shard.shard_id not in over:
            starts.append(Start(shard, ReadFrom("TRIM_HORIZON")))
        elif lease is not None and not lease.is_ended:
            starts.append(Start(shard, first_read(lease, _OLDEST), lease.checkpoint))
    return starts


def leases_of_stream(view: TableView, stream: str) -> dict[str, Lease]:
    """By shard id, the leases of the stream of this name; in a table of several streams the others are left out."""
    found = {}
    for key, lease in view.leases.items():
        of = view.streams.get(key)
        if of is None:
            found[key] = lease
        # Account, stream name and creation time (Java KCL: StreamIdentifier.serialize).
        elif of.split(":")[1:2] == [stream]:
            bare = _bare(key)
            found[bare] = lease.with_(
                key=bare, parents=tuple(map(_bare, lease.parents)), children=tuple(map(_bare, lease.children))
            )
    return found


def _bare(key: str) -> str:
    return key.rpartition(":")[2]


def shards_named(wanted: Sequence[str], shards: Sequence[Shard]) -> list[Shard]:
    """The listed shards of these names; a number alone (3, 003) is the shard whose id ends in it.

    Raises ConfigError for one that is not listed.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    found: dict[str, Shard] = {}
    for name in wanted:
        shard_id = f"shardId-{int(name):012}" if _NUMBER.match(name) else name
        if shard_id not in by_id:
            raise ConfigError(_unknown(name, shard_id, sorted(by_id)))
        found[shard_id] = by_id[shard_id]
    return [found[shard_id] for shard_id in sorted(found)]


def _unknown(name: str, shard_id: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(shard_id, known, n=3, cutoff=0.9)
    shown = ", ".join(near or known[:5]) + (" …" if not near and len(known) > 5 else "")
    return (
        f"There is no shard {name[:140]!r} in this stream, or its records have expired. "
        f"{'Near' if near else 'There are'}: {shown or 'none'}. `pykcl streams describe` lists all."
    )
