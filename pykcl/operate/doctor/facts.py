"""Facts that the doctor gathers and the checks use, as values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pykcl.config import Config
from pykcl.model.dead_letter import Address
from pykcl.model.lease import Lease
from pykcl.model.shard import consumer_name
from pykcl.operate.aws.iam import Identity, Probe, Simulation, producer_policy, worker_policy
from pykcl.operate.aws.streams import StreamSummary
from pykcl.operate.doctor.findings import command
from pykcl.operate.fleet import FleetOverview
from pykcl.operate.lag import ShardLag
from pykcl.operate.snapshot import TableSnapshot
from pykcl.operate.states import OwnerKind
from pykcl.operate.unleased import Unleased
from pykcl.planning.fleet_protocol import Fleet

Program = Literal["worker", "producer"]
"""The program whose needs are checked."""
RENEWALS_SHOW = 1.5
"""Failover times of watching, after which an owner that renews twice in each has been seen renewing at least twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """This process. versions: installed distribution -> version, of those that pykcl uses. missing: packages that are
    not installed, and the option that needs each. open_files: the soft limit; None if unlimited or unknown.
    """

    python: str
    pykcl: str
    implementation: str = ""
    free_threaded: bool = False
    platform: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[tuple[str, str], ...] = ()
    open_files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A .properties file. name: as given.

    unfit: (reason, fix) if executableName cannot be started on this host. unknown: (place, key, note) of each key that
    nothing reads. literal: the same of each value that a shell would change. notice: on
    enhanced fan-out, "" if Java does not use it, or if polling is accepted.
    """

    name: str
    unfit: tuple[str, str] | None = None
    unknown: tuple[tuple[str, str, str], ...] = ()
    literal: tuple[tuple[str, str, str], ...] = ()
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """Credentials, regions and clock. regions: service -> region. named_regions: source ("AWS_REGION") -> its region.

    no_region, no_credentials: the error without one, else "". no_clients: that for another reason for which nothing can
    be asked. identity: of the credentials for Kinesis. skew: seconds by which AWS' clock is ahead of ours; None without
    an answer. hosts: that were asked -> the operations.
    """

    regions: Mapping[str, str] = field(default_factory=dict)
    named_regions: Mapping[str, str] = field(default_factory=dict)
    no_region: str = ""
    no_credentials: str = ""
    no_clients: str = ""
    identity: Identity | None = None
    skew: float | None = None
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def can_ask(self) -> bool:
        return not (self.no_region or self.no_credentials or self.no_clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts(StreamSummary):
    """The stream. shards: ids of all listed shards; None if they were not listed. nearby: other streams, if there is
    none of this name. A missing stream has only a name and `nearby`.
    """

    shards: frozenset[str] | None = None
    nearby: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFacts:
    """The result of watching the table.

    snapshot: the last scan. span: seconds. alive: leases whose counter moved. unmoved_for: seconds, by lease.
    heartbeats: worker identifier -> max change of a counter among its leases. quiet_heartbeats: the same, only of
    leases whose checkpoint did not change, so that every change of the counter was a heartbeat. overview: of a fleet of
    KCL 3.x; None for any other.
    """

    snapshot: TableSnapshot
    span: float = 0.0
    alive: frozenset[str] = frozenset()
    unmoved_for: Mapping[str, float] = field(default_factory=dict)
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    quiet_heartbeats: Mapping[str, int] = field(default_factory=dict)
    overview: FleetOverview | None = None

    @property
    def live_owners(self) -> frozenset[str]:
        leases = self.snapshot.leases
        return frozenset(owner for key in self.alive if (owner := leases[key].actual_owner) is not None)

    @property
    def shared_worker_ids(self) -> list[str]:
        """Identifiers of pykcl workers under which several processes renewed leases while the table was watched."""
        tokens: defaultdict[str, set[str]] = defaultdict(set)
        for key in self.alive:
            lease, metadata = self.snapshot.leases[key], self.snapshot.leases[key].metadata
            # A row that Java took from pykcl keeps the metadata of its former owner.
            if (
                metadata
                and metadata.owner
                and metadata.process_token
                and metadata.owner == lease.actual_owner
            ):
                tokens[metadata.owner].add(metadata.process_token)
        return sorted(owner for owner, found in tokens.items() if len(found) > 1)

    @property
    def open_leases(self) -> list[Lease]:
        """Leases not read to the end, by key."""
        return [lease for _, lease in sorted(self.snapshot.leases.items()) if not lease.is_ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The lease table. exists: None without an answer of DescribeTable. foreign: the reason why it is not a lease
    table, or "".

    provisioned: None if unknown. index_status: of KCL 3.x's index of owners; None without one. watch: None if it could
    not be scanned. fleet: None without a watch. expires_by: attribute of its time to live; "" without one, or unknown.
    why_not_to_follow: the reason for which a worker cannot follow the leader of a KCL 3.x fleet, or "".
    """

    name: str
    exists: bool | None = None
    status: str | None = None
    foreign: str = ""
    provisioned: bool | None = None
    read_units: float = 0.0
    write_units: float = 0.0
    index_status: str | None = None
    expires_by: str = ""
    watch: WatchFacts | None = None
    fleet: Fleet | None = None
    why_not_to_follow: str = ""
    kinds: Mapping[str, OwnerKind] = field(default_factory=dict)

    @property
    def knows_index(self) -> bool:
        """True if the table was described, so that an index would have been seen."""
        return self.provisioned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFacts:
    """The consumers of the stream. unused: names of those by which no application was seen reading."""

    names: tuple[str, ...]
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFacts:
    """The destination of dead letters. text: as configured. account: that it names. trouble: why it is of no use, or
    ""; is_tried: False if nothing short of a letter would show that, or for the reason in why_untried. proven: the
    action that a dry run permitted, or ""."""

    text: str
    account: str | None = None
    is_tried: bool = False
    trouble: str = ""
    why_untried: str = "that would write to it"
    proven: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts. config: with defaults for options not given; knows_failover: True if the failover time was given.

    Of a producer there are those of this process, the account, the stream and permissions. throttled_puts: records that
    the stream has refused of late; None if unknown.
    connections: of one client of a worker. unleased: shards that are still to be read and have no row. lags: by lease
    key, with those of `unleased`; None if they were not measured. consumers: None if the stream has none, or they could
    not be listed.
    """

    config: Config
    application: str | None
    process: ProcessFacts
    account: AccountFacts
    program: Program = "worker"
    knows_failover: bool = False
    connections: int = 0
    stream: StreamFacts | None = None
    table: TableFacts | None = None
    probes: tuple[Probe, ...] = ()
    simulation: Simulation | None = None
    file: FileFacts | None = None
    unleased: tuple[Unleased, ...] = ()
    lags: Mapping[str, ShardLag] | None = None
    letters: LetterFacts | None = None
    consumers: ConsumerFacts | None = None
    throttled_puts: int | None = None

    @property
    def consumer(self) -> str | None:
        """The consumer by which the workers read, as is configured here or noted in a row; None: they poll."""
        return consumer_of(self.config, self.table)

    @property
    def watch(self) -> WatchFacts | None:
        return self.table.watch if self.table is not None else None

    @property
    def stream_word(self) -> str:
        """The stream in a command to copy; a placeholder if unknown."""
        return self.stream.name if self.stream is not None else "STREAM"

    @property
    def application_word(self) -> str:
        return self.application or (self.table.name if self.table is not None else "NAME")

    @property
    def shards_to_read(self) -> int:
        """Number of open shards; of open leases if the shards are unknown."""
        if self.stream is not None and self.stream.open_shards:
            return self.stream.open_shards
        return len(self.watch.open_leases) if self.watch is not None else 0


def consumer_of(config: Config, table: TableFacts | None) -> str | None:
    """Return the name of the consumer by which the workers read; None: they poll."""
    if config.retrieval != "polling":
        return consumer_name(config.consumer, config.application)
    leases = table.watch.open_leases if table is not None and table.watch is not None else []
    return next((lease.consumer for lease in leases if lease.consumer is not None), None)


def address_of(config: Config) -> Address | None:
    """Return the destination that the configuration names; None for a function of the application, and for none."""
    return None if config.dead_letters in (None, "callable") else Address.parse(config.dead_letters)


def needed_policy(facts: Facts) -> dict[str, object]:
    """Return the policy of the program as configured here."""
    config, identity = facts.config, facts.account.identity
    arn = facts.stream.arn if facts.stream is not None else None
    parts = (arn or "arn:aws:kinesis:::").split(":")
    table, regions = facts.table, facts.account.regions
    places: dict[str, Any] = {
        "stream": facts.stream_word,
        "region": regions.get("dynamodb") or regions.get("kinesis") or "REGION",
        "account": (identity.account if identity is not None else None) or parts[4] or "ACCOUNT",
        "partition": parts[1],
    }
    if facts.program == "producer":
        return producer_policy(**places)
    return worker_policy(
        **places,
        table=table.name if table is not None else facts.application_word,
        create_table=config.create_table and (table is None or table.exists is not True),
        point_in_time_recovery=config.point_in_time_recovery,
        application=facts.application,
        coordinator_state_table=config.coordinator_state_table,
        worker_metrics_table=config.worker_metrics_table,
        dead_letters=address_of(config),
        follow_leader=config.fleet_mode == "3x",
        consumer=facts.consumer,
        metrics_namespace=(config.metrics_namespace or facts.application_word)
        if "cloudwatch" in config.metrics_sinks
        else None,
    )


def policy_command(facts: Facts) -> str:
    """Return the command that prints the policy of the program."""
    if facts.program == "producer":
        return command("pykcl", "iam", "--for", "producer", "--stream", facts.stream_word)
    table = facts.table.name if facts.table is not None else None
    own = table if facts.application is not None and table != facts.application else None
    return command(
        "pykcl", "iam", "--application", facts.application_word, "--stream", facts.stream_word,
        *(("--table", own) if own is not None else ()),
        *(("--fan-out", facts.consumer) if facts.consumer is not None else ()),
    )  # fmt: skip


def doctor_command(facts: Facts) -> str:
    """Return the command of this diagnosis."""
    whose = ("--application", facts.application_word) if facts.program == "worker" else ("--for", "producer")
    return command("pykcl", "doctor", *whose, "--stream", facts.stream_word)
