"""Gathers the facts from AWS and this process. Everything here only reads."""

from __future__ import annotations

import difflib
import platform
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import metadata, util
from typing import Any, cast

from pykcl import __version__
from pykcl.aws.clients import connections_for
from pykcl.aws.errors import answer_of
from pykcl.aws.kinesis import KinesisStream
from pykcl.aws.table_admin import read_state, state_table_of
from pykcl.config import Config
from pykcl.errors import ConfigError, PyKclError, WrongTable
from pykcl.model.lease import JavaState, Lease
from pykcl.model.shard import Shard
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.iam import Prober, Simulation, identity_of, simulate
from pykcl.operate.aws.lease_table import OwnTableNames, TableScanner, describe
from pykcl.operate.aws.streams import StreamAdmin
from pykcl.operate.doctor.consumers import DESCRIBE_CONSUMER, Watched, consumer_facts
from pykcl.operate.doctor.facts import (
    RENEWALS_SHOW,
    AccountFacts,
    ConsumerFacts,
    Facts,
    FileFacts,
    ProcessFacts,
    Program,
    StreamFacts,
    TableFacts,
    WatchFacts,
    consumer_of,
    needed_policy,
)
from pykcl.operate.doctor.letters import letter_facts
from pykcl.operate.doctor.puts import dry_put, throttled_puts
from pykcl.operate.fleet import fleet_of
from pykcl.operate.lag import KinesisLag, ShardLag, with_unleased
from pykcl.operate.snapshot import Observation, Sampler, TableSnapshot, everybody_moved
from pykcl.operate.states import owner_kinds
from pykcl.operate.unleased import Unleased, unleased_shards
from pykcl.planning.fleet_protocol import Fleet, sense_fleet
from pykcl.planning.membership import why_not_to_follow
from pykcl.producer.encode import Compression, compressor_of
from pykcl.runtime import Runtime

NO_SUCH_LEASE = "pykcl-doctor-asks"
_LIBRARIES = (
    "boto3", "botocore", "protobuf", "tenacity", "click", "moto", "hypercorn", "cbor2", "rich", "starlette",
    "javaproperties", "prometheus-client", "opentelemetry-api",
)  # fmt: skip
_MAX_WATCH = 30.0
_DEFAULT_WATCH = 6.0
_NEEDED_BY = {"prometheus": "prometheus_client", "otel": "opentelemetry"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The scope of a diagnosis.

    program: whose needs are checked; of a producer, which has no application, those of its stream. compression: of it.
    application, table, stream (name or ARN), failover (seconds): None if not given. named_regions: as in
    `AccountFacts`. watch: wait for heartbeats. lag: measure the lag in Kinesis (one read of each shard). simulate_iam:
    simulate the policy of the program. file: facts about the .properties file.
    """

    config: Config
    clients: OperatorClients = field(repr=False)
    program: Program = "worker"
    compression: str | None = None
    application: str | None = None
    table: str | None = None
    stream: str | None = None
    failover: float | None = None
    named_regions: Mapping[str, str] = field(default_factory=dict)
    watch: bool = True
    lag: bool = True
    simulate_iam: bool = False
    file: FileFacts | None = None


def gather(question: Question, runtime: Runtime) -> Facts:
    """Gather all facts. Errors of AWS, credentials and regions are facts, too, and not raised."""
    facts = Facts(
        config=question.config,
        program=question.program,
        application=question.application,
        process=replace(process_facts(), missing=_missing(question)),
        account=AccountFacts(named_regions=question.named_regions),
        knows_failover=question.failover is not None,
        connections=connections_for(question.config),
        file=question.file,
    )
    account = _account(question, facts.account)
    facts = replace(facts, account=account)
    if not account.can_ask:
        return facts
    gatherer = _Gatherer(question, runtime)
    return gatherer.all(facts) if question.program == "worker" else gatherer.of_producer(facts)


def process_facts() -> ProcessFacts:
    """Return the facts about this process, without missing packages."""
    return ProcessFacts(
        python=platform.python_version(),
        pykcl=__version__,
        implementation=platform.python_implementation(),
        free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions=_installed_versions(),
        open_files=_open_files(),
    )


def _missing(question: Question) -> tuple[tuple[str, str], ...]:
    """Return the packages that are not installed, and the option that needs each."""
    if question.program == "worker":
        config = question.config
        wanted = [_NEEDED_BY[sink] for sink in config.metrics_sinks if sink in _NEEDED_BY]
        return tuple((name, f"metrics={config.metrics!r}") for name in wanted if util.find_spec(name) is None)
    try:
        compressor_of(cast(Compression | None, question.compression))
    except ConfigError:
        return (("zstandard", f"compression={question.compression!r}"),)
    return ()


def _installed_versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _open_files() -> int | None:
    try:
        import resource
    except ModuleNotFoundError:
        return None  # Windows
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _account(question: Question, account: AccountFacts) -> AccountFacts:
    clients = question.clients
    services = ("kinesis", "dynamodb") if question.program == "worker" else ("kinesis",)
    try:
        regions = {service: clients.region_of(service) for service in services}
        identity = identity_of(clients, "kinesis")
    except PyKclError as error:
        if error.code == "E01":
            return replace(account, no_region=str(error))
        if error.code == "E04":
            return replace(account, no_credentials=str(error))
        return replace(account, no_clients=str(error))
    return replace(account, regions=regions, identity=identity)


class _Gatherer:
    """Used once, by one thread."""

    def __init__(self, question: Question, runtime: Runtime) -> None:
        self._question, self._runtime = question, runtime
        self._prober = Prober(runtime)
        self._kinesis = self._open("kinesis")
        self._listed: tuple[Shard, ...] = ()

    @cached_property
    def _dynamodb(self) -> Any:
        return self._open("dynamodb")

    def _open(self, service: str) -> Any:
        client = self._question.clients.client(service)
        self._question.clients.note_hosts(client)
        return client

    def of_producer(self, facts: Facts) -> Facts:
        """Return the facts of a program that puts into the stream."""
        stream = self._stream(self._question.stream)
        throttled: int | None = None
        if stream is not None and stream.arn is not None:
            tried = dry_put(self._kinesis, {"StreamARN": stream.arn}, self._runtime)
            # There is one dry run a second for each stream, whoever asks: one that is throttled shows nothing.
            if tried is not None and (tried.trouble is None or tried.trouble.kind != "throttled"):
                self._prober.probes.append(tried)
            with suppress(PyKclError):
                throttled = throttled_puts(self._open("cloudwatch"), stream.name, self._runtime)
        return self._ended(replace(facts, stream=stream, throttled_puts=throttled))

    def all(self, facts: Facts) -> Facts:
        table = self._table(self._question.table) if self._question.table is not None else None
        view = table.watch.snapshot if table is not None and table.watch is not None else None
        stream = self._stream(self._question.stream or (view.stream_arn if view is not None else None))
        unleased = self._unleased(view)
        lags = self._lags(stream, view, unleased)
        consumers = self._consumers(stream, table)
        letters = letter_facts(self._question.config, self._question.clients, self._runtime)
        return self._ended(
            replace(
                facts,
                table=table,
                stream=stream,
                unleased=unleased,
                lags=lags,
                consumers=consumers,
                letters=letters,
            )
        )

    def _ended(self, facts: Facts) -> Facts:
        """Return the facts with those that all requests gave."""
        account = replace(facts.account, skew=self._prober.skew)
        facts = replace(facts, account=account, probes=tuple(self._prober.probes))
        facts = replace(facts, simulation=self._simulation(facts))
        hosts = {host: tuple(sorted(asked)) for host, asked in sorted(self._question.clients.hosts.items())}
        return replace(facts, account=replace(facts.account, hosts=hosts))

    # -- the table ---------------------------------------------------------------------------------------------

    def _table(self, name: str) -> TableFacts:
        answer = self._prober.ask(
            "dynamodb:DescribeTable", lambda: self._dynamodb.describe_table(TableName=name)
        )
        table = TableFacts(name=name)
        trouble = self._prober.trouble_of("dynamodb:DescribeTable")
        if trouble is not None and trouble.kind == "missing":
            return replace(table, exists=False)
        if trouble is not None and trouble.kind != "denied":
            return table
        try:
            known = describe(self._dynamodb, name, self._runtime)
        except WrongTable as error:
            return replace(table, exists=True, foreign=str(error).partition(" Nothing was read")[0])
        except PyKclError:
            return table  # The probe has the reason, or the next run will.
        described = (answer or {}).get("Table") or {}
        table = replace(
            table,
            exists=True if answer is not None else None,
            status=described.get("TableStatus"),
            provisioned=known.provisioned,
            read_units=known.read_units,
            index_status=known.index_status,
            expires_by=self._expires_by(name),
            write_units=float((described.get("ProvisionedThroughput") or {}).get("WriteCapacityUnits") or 0),
        )
        return self._rows(table, has_index=known.has_owner_index)

    def _expires_by(self, name: str) -> str:
        """Return the attribute of the time to live; "" without one, and where it cannot be asked for: a lease table
        has none, and few may call this."""
        try:
            answer = answer_of(
                f"Describing the time to live of {name}",
                self._dynamodb.describe_time_to_live,
                {"TableName": name},
            )
        except PyKclError:
            return ""
        found = answer.get("TimeToLiveDescription") or {}
        is_on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
        return str(found.get("AttributeName", "")) if is_on else ""

    def _rows(self, table: TableFacts, *, has_index: bool) -> TableFacts:
        name = table.name
        self._prober.ask("dynamodb:Scan", lambda: self._dynamodb.scan(TableName=name, Limit=1))
        self._prober.ask(
            "dynamodb:GetItem",
            lambda: self._dynamodb.get_item(TableName=name, Key={"leaseKey": {"S": NO_SUCH_LEASE}}),
        )
        if self._prober.trouble_of("dynamodb:Scan") is not None:
            return table
        try:
            observation, first = self._watch(name)
        except PyKclError as error:
            self._prober.note("dynamodb:Scan", error)
            return table
        watch = watch_facts(observation, first)
        kinds = owner_kinds(watch.snapshot, observation.renewed_after_end)
        fleet = self._fleet(watch, has_index)
        mode, rows = self._question.config.fleet_mode, watch.snapshot.rows
        why_not = why_not_to_follow(fleet, mode, rows, has_owner_index=has_index) if fleet.why_native else ""
        return replace(table, watch=watch, kinds=kinds, fleet=fleet, why_not_to_follow=why_not)

    def _watch(self, table: str) -> tuple[Observation, TableSnapshot]:
        views: list[TableSnapshot] = []
        question, config = self._question, self._question.config
        own = OwnTableNames.of(
            question.application or table, config.coordinator_state_table, config.worker_metrics_table
        )
        scanner = TableScanner(self._dynamodb, table, self._runtime, own)

        def scan() -> TableSnapshot:
            views.append(scanner.scan())
            return views[-1]

        sampler = Sampler(scan, self._runtime)
        if not self._question.watch:
            return sampler.poll(), views[0]
        failover = self._question.failover
        longest = _DEFAULT_WATCH
        if failover is not None:
            # In this order they show: the renewal interval of owners, who is silent, who is alive.
            watches = (RENEWALS_SHOW * failover + 0.2, failover + 0.2, 0.6 * failover)
            longest = next((watch for watch in watches if watch <= _MAX_WATCH), watches[-1])
        found = sampler.poll_until_moved(failover, longest=longest, until=_nobody_to_wait_for)
        return found, views[0]

    def _fleet(self, watch: WatchFacts, has_index: bool) -> Fleet:
        config = self._question.config
        name = config.coordinator_state_table or (
            state_table_of(self._question.application) if self._question.application else None
        )
        state = JavaState(unread="its name is not known")
        if name is not None:
            try:
                state = read_state(self._dynamodb, name)
            except PyKclError:
                state = JavaState(unread="not answered")
        return sense_fleet(
            watch.snapshot.rows,
            worker=config.worker_id or "",
            state=replace(state, has_owner_index=has_index),
        )

    # -- the stream --------------------------------------------------------------------------------------------

    def _stream(self, stream: str | None) -> StreamFacts | None:
        if stream is None:
            return None
        name = stream.rpartition("/")[2]
        named = {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}
        answer = self._prober.ask(
            "kinesis:DescribeStreamSummary", lambda: self._kinesis.describe_stream_summary(**named)
        )
        admin = StreamAdmin(self._kinesis)
        if answer is None:
            trouble = self._prober.trouble_of("kinesis:DescribeStreamSummary")
            is_missing = trouble is not None and trouble.kind == "missing"
            return StreamFacts(name=name, nearby=_nearby(admin, name) if is_missing else ())
        try:
            summary = admin.summary(stream)
        except PyKclError:
            return StreamFacts(name=name)
        found = StreamFacts(**asdict(summary))
        return found if summary.status in ("CREATING", "DELETING") else self._shards(found, admin)

    def _shards(self, found: StreamFacts, admin: StreamAdmin) -> StreamFacts:
        # By its ARN, as a worker: the requests may then go to other hosts.
        stream = found.arn or found.name
        try:
            shards = admin.shards(stream)
        except PyKclError:
            # Once more, for what AWS says to it.
            named = admin.address(stream)
            self._prober.ask("kinesis:ListShards", lambda: self._kinesis.list_shards(**named))
            return found
        self._prober.note("kinesis:ListShards", None)
        is_open = [shard.shard_id for shard in shards if shard.is_open]
        if is_open and self._question.program == "worker":
            self._read_one(is_open[0], admin.address(stream))
        self._listed = tuple(shards)
        ids = frozenset(shard.shard_id for shard in shards)
        return replace(found, shards=ids, open_shards=len(is_open))

    def _read_one(self, shard: str, named: Mapping[str, str]) -> None:
        """Read at the tip of one shard, so that no record is fetched.

        Not with DryRun: it needs an iterator too, and checks neither the key of an encrypted stream nor whether other
        readers have used up the five reads a second. It would spare one read of one shard.
        """
        opened = self._prober.ask(
            "kinesis:GetShardIterator",
            lambda: self._kinesis.get_shard_iterator(**named, ShardId=shard, ShardIteratorType="LATEST"),
        )
        iterator = (opened or {}).get("ShardIterator")
        arn = {key: value for key, value in named.items() if key == "StreamARN"}
        if iterator:
            self._prober.ask(
                "kinesis:GetRecords",
                lambda: self._kinesis.get_records(**arn, ShardIterator=iterator, Limit=1),
            )

    def _consumers(self, stream: StreamFacts | None, table: TableFacts | None) -> ConsumerFacts | None:
        arn = stream.arn if stream is not None else None
        own = consumer_of(self._question.config, table)
        if arn is not None and own is not None:
            # SubscribeToShard is not tried: it would end the subscription of a worker.
            self._prober.ask(
                DESCRIBE_CONSUMER,
                lambda: self._kinesis.describe_stream_consumer(StreamARN=arn, ConsumerName=own),
            )
        if arn is None or stream is None or not stream.consumers:
            return None
        watched = Watched(self._dynamodb, self._runtime, table if self._question.watch else None)
        return consumer_facts(StreamAdmin(self._kinesis), arn, watched)

    def _unleased(self, view: TableSnapshot | None) -> tuple[Unleased, ...]:
        if view is None or view.streams:
            return ()
        start = self._question.config.start_position
        return tuple(unleased_shards(start, self._listed, view.leases, view.unreadable.keys()))

    def _lags(
        self, stream: StreamFacts | None, view: TableSnapshot | None, unleased: tuple[Unleased, ...]
    ) -> Mapping[str, ShardLag] | None:
        wanted = self._question.lag and stream is not None and view is not None and not view.streams
        if not wanted or stream is None or view is None or stream.shards is None:
            return None
        if self._prober.trouble_of("kinesis:GetRecords") is not None:
            return None
        leases = [
            one for key, one in sorted(view.leases.items()) if key in stream.shards and not one.is_ended
        ]
        adapter = KinesisStream(self._kinesis, stream.arn or stream.name, self._runtime)
        try:
            adapter.describe()
            start = self._question.config.start_position
            source = KinesisLag(adapter, self._runtime, start=start)
            lags = source.lags([*leases, *(one.lease for one in unleased)])
            return with_unleased(unleased, lags, view.leases, adapter.server_time_millis())
        except PyKclError:
            return None

    def _simulation(self, facts: Facts) -> Simulation | None:
        if not self._question.simulate_iam:
            return None
        who = facts.account.identity
        if who is None or who.arn is None:
            return Simulation(why_not="the identity of the credentials is unknown")
        try:
            iam = self._question.clients.client("iam", attempts=2)
        except PyKclError as error:
            return Simulation(why_not=str(error))
        return simulate(iam, who.arn, needed_policy(facts))


def watch_facts(found: Observation, first: TableSnapshot) -> WatchFacts:
    """Return the facts of watching. first: the first scan."""
    beats: dict[str, int] = {}
    quiet: dict[str, int] = {}
    for key, moved in found.moved.items():
        lease, before = found.snapshot.leases.get(key), first.leases.get(key)
        if lease is None or before is None or lease.is_ended or not _is_same_owner(lease, before):
            continue
        owner = str(lease.actual_owner)
        beats[owner] = max(beats.get(owner, 0), moved)
        if lease.checkpoint == before.checkpoint:
            quiet[owner] = max(quiet.get(owner, 0), moved)
    return WatchFacts(
        snapshot=found.snapshot,
        span=found.span,
        alive=frozenset(key for key in found.alive if key in found.snapshot.leases),
        unmoved_for=found.unmoved_for,
        heartbeats=beats,
        quiet_heartbeats=quiet,
        overview=fleet_of(found),
    )


def _is_same_owner(lease: Lease, before: Lease) -> bool:
    return lease.actual_owner is not None and lease.actual_owner == before.actual_owner


def _nobody_to_wait_for(found: Observation) -> bool:
    """Return True if no lease has an owner; otherwise the whole time is needed to measure the rate of heartbeats."""
    return everybody_moved(found) and not found.alive


def _nearby(admin: StreamAdmin, name: str) -> tuple[str, ...]:
    """Return similar or other stream names; none if the streams cannot be listed."""
    try:
        names = [one.name for one in admin.streams()]
    except PyKclError:
        return ()
    return tuple(difflib.get_close_matches(name, names, n=3, cutoff=0.6) or names[:5])
