"""The consumers of enhanced fan-out that the stream has: what they cost, and which of them nobody reads by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pykcl.errors import PyKclError, WrongTable
from pykcl.model.lease import Lease
from pykcl.operate.aws.lease_table import TableMissing, TableScanner
from pykcl.operate.aws.streams import StreamAdmin
from pykcl.operate.doctor.facts import ConsumerFacts, Facts, TableFacts
from pykcl.operate.doctor.findings import Finding, command, found, listed, many
from pykcl.operate.snapshot import Observation, Sampler, TableSnapshot, known_failover
from pykcl.planning.fleet_protocol import is_of_pykcl
from pykcl.runtime import Runtime

DESCRIBE_CONSUMER = "kinesis:DescribeStreamConsumer"
_SHORTEST, _LONGEST = 6.0, 30.0
"""Seconds for which leases of other applications are watched."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The means to see applications live. dynamodb: a client. table: of this one; None: nothing is watched."""

    dynamodb: Any
    runtime: Runtime
    table: TableFacts | None


def consumer_facts(admin: StreamAdmin, stream_arn: str, watched: Watched) -> ConsumerFacts | None:
    """List the consumers, and find out by which of them live applications read. None if they cannot be listed."""
    try:
        names = tuple(one.name for one in admin.consumers(stream_arn))
    except PyKclError:
        return None
    table = watched.table
    if table is None or table.watch is None:
        return ConsumerFacts(names=names)
    watch = table.watch
    alive = [watch.snapshot.leases[key] for key in watch.alive]
    rest = [name for name in names if not reads_by(name, table.name, alive)]
    others = [name for name in rest if name != table.name]
    unused = set(rest) - _used_by_others(others, watched)
    return ConsumerFacts(names=names, unused=tuple(name for name in names if name in unused))


def reads_by(consumer: str, application: str, alive: Iterable[Lease]) -> bool:
    """Return True if an owner of these leases reads by the consumer, or may.

    alive: leases of one application whose counters move. A pykcl worker notes its consumer in the row. Any other owner
    is taken for a Java worker, whose default is the consumer that is called like the application.
    """
    return any(
        lease.consumer == consumer if is_of_pykcl(lease) else consumer == application for lease in alive
    )


def _used_by_others(names: Iterable[str], watched: Watched) -> set[str]:
    """Return those by which an application of that very name reads, or of which that cannot be seen."""
    used: set[str] = set()
    samplers: dict[str, Sampler] = {}
    seconds = _SHORTEST
    for name in names:
        sampler = Sampler(TableScanner(watched.dynamodb, name, watched.runtime).scan, watched.runtime)
        first = _polled(sampler)
        if first is None:
            used.add(name)
        elif any(lease.actual_owner is not None for lease in first.snapshot.leases.values()):
            samplers[name] = sampler
            failover, is_known = known_failover(None, first.snapshot.leases.values())
            # A worker renews twice in it.
            seconds = max(seconds, min(0.6 * failover if is_known else 0.0, _LONGEST))
    if samplers:
        watched.runtime.event().wait(seconds)
    for name, sampler in samplers.items():
        last = _polled(sampler)
        if last is None or reads_by(name, name, [last.snapshot.leases[key] for key in last.alive]):
            used.add(name)
    return used


def _polled(sampler: Sampler) -> Observation | None:
    """Return the scan of a table, an empty one where there is none; None if it is not permitted, or failed."""
    try:
        return sampler.poll()
    except (TableMissing, WrongTable):
        return Observation(TableSnapshot())
    except PyKclError:
        return None


def check_consumers(facts: Facts) -> Iterator[Finding]:
    """Return the findings about the consumers. Pure."""
    stream, consumers, own = facts.stream, facts.consumers, facts.consumer
    if stream is None:
        return
    if consumers is not None and consumers.names:
        number = len(consumers.names)
        yield found(
            "consumers-billed",
            f"{many(number, 'consumer')} of enhanced fan-out: {listed(consumers.names)}. {stream.bill(number)} Each is "
            "billed from its registration on, also while nobody reads.",
            command("pykcl", "fanout", "list", stream.name),
        )
    for name in consumers.unused if consumers is not None else ():
        yield found(
            "consumer-unused",
            f"No live application was found that reads by the consumer {name!r}: neither this one nor one with a lease "
            f"table of that name. {stream.bill(1)} Readers of other kinds (Flink, Lambda, Firehose) are not seen.",
            command("pykcl", "fanout", "deregister", stream.name, "--consumer", name)
            + "   (shows a plan first)",
        )
    asked = [
        probe for probe in facts.probes if probe.action == DESCRIBE_CONSUMER and probe.trouble is not None
    ]
    is_missing = any(probe.trouble is not None and probe.trouble.kind == "missing" for probe in asked)
    if is_missing and own is not None and not facts.config.register_consumer:
        yield found(
            "consumer-missing",
            f"Stream {stream.name!r} has no consumer {own!r}, and register_consumer is off: a worker would not start.",
            command("pykcl", "fanout", "register", stream.name, "--consumer", own),
        )
