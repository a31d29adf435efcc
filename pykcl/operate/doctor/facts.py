"""What the doctor found out, as values: all that the checks know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pykcl.aws.preflight import Identity, Probe
from pykcl.aws.simulate_policy import Simulation
from pykcl.config import Config
from pykcl.model.lease import Lease
from pykcl.operate.lag import ShardLag
from pykcl.operate.owner_kind import OwnerKind
from pykcl.operate.table_view import TableView
from pykcl.planning.fleet_protocol import Fleet

RENEWALS_SHOW = 1.5
"""Fail-over times after which whoever renews twice in each has been seen doing so more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """versions: installed distribution -> version, of those that pykcl uses. missing: packages that the configured
    metrics need and that are not there. open_files: the soft limit; None where there is none, or no way to ask.
    """

    python: str
    pykcl: str
    implementation: str = ""
    free_threaded: bool = False
    platform: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    open_files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Of a .properties file. name: as it was told.

    unfit: why executableName cannot be started on this host, and what mends it; None where it can, or there is none.
    unknown: (place, key, what is known of it) of each key that nothing reads. notice: of enhanced fan-out, "" where
    Java does not use it, or polling is accepted.
    """

    name: str
    unfit: tuple[str, str] | None = None
    unknown: tuple[tuple[str, str, str], ...] = ()
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """regions: service -> region. told_regions: name of a source ("AWS_REGION") -> the region it names.

    no_region, no_credentials: why there is none, as the error said; "" where there is. identity: of the credentials for
    Kinesis. skew: seconds by which AWS' clock is ahead of ours; None: no answer told.
    """

    regions: Mapping[str, str] = field(default_factory=dict)
    told_regions: Mapping[str, str] = field(default_factory=dict)
    no_region: str = ""
    no_credentials: str = ""
    identity: Identity | None = None
    skew: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """created_at: epoch milliseconds. shards: ids of every shard the stream lists; None where they were not listed.

    consumers: registered for enhanced fan-out. nearby: other streams there, where there is none of
    this name. name is known, whether or not the stream is.
    """

    name: str
    arn: str | None = None
    status: str | None = None
    mode: str | None = None
    created_at: int | None = None
    retention_hours: int | None = None
    open_shards: int = 0
    consumers: int = 0
    shards: frozenset[str] | None = None
    nearby: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFacts:
    """What watching the table showed.

    view: the last look. span: seconds. alive: leases that were seen moving. unmoved_for: seconds, by lease. heartbeats:
    worker identifier -> the most that one of its leases moved. quiet_heartbeats: the same, of leases only whose
    checkpoint stood still, so that every move was a heartbeat.
    """

    view: TableView
    span: float = 0.0
    alive: frozenset[str] = frozenset()
    unmoved_for: Mapping[str, float] = field(default_factory=dict)
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    quiet_heartbeats: Mapping[str, int] = field(default_factory=dict)

    @property
    def live_owners(self) -> frozenset[str]:
        leases = self.view.leases
        return frozenset(owner for key in self.alive if (owner := leases[key].actual_owner) is not None)

    @property
    def open_leases(self) -> list[Lease]:
        """Those not read to the end, by key."""
        return [lease for _, lease in sorted(self.view.leases.items()) if not lease.is_ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """exists: None where DescribeTable was not answered. foreign: why it is no lease table; "" where it is one.

    provisioned: None where unknown. watch: None where it could not be scanned. fleet: None without a watch.
    """

    name: str
    exists: bool | None = None
    status: str | None = None
    foreign: str = ""
    provisioned: bool | None = None
    read_units: float = 0.0
    write_units: float = 0.0
    watch: WatchFacts | None = None
    fleet: Fleet | None = None
    kinds: Mapping[str, OwnerKind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """config: with defaults for what nobody told; knows_failover: whether the fail-over time was told.

    connections: that one client of a worker has room for. lags: by lease key; None where they were not asked for.
    """

    config: Config
    application: str | None
    process: ProcessFacts
    account: AccountFacts
    knows_failover: bool = False
    connections: int = 0
    stream: StreamFacts | None = None
    table: TableFacts | None = None
    probes: tuple[Probe, ...] = ()
    simulation: Simulation | None = None
    file: FileFacts | None = None
    lags: Mapping[str, ShardLag] | None = None

    @property
    def watch(self) -> WatchFacts | None:
        return self.table.watch if self.table is not None else None

    @property
    def stream_word(self) -> str:
        """The stream for a command; a placeholder where it is not known."""
        return self.stream.name if self.stream is not None else "STREAM"

    @property
    def application_word(self) -> str:
        return self.application or (self.table.name if self.table is not None else "NAME")

    @property
    def shards_to_read(self) -> int:
        """Open shards, or the leases not read to the end where those are not known."""
        if self.stream is not None and self.stream.open_shards:
            return self.stream.open_shards
        return len(self.watch.open_leases) if self.watch is not None else 0
