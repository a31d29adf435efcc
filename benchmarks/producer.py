"""CPU per user record of what puts records from Python, side by side; the rate of one shard, latency and memory of pykcl.

    python -m benchmarks.producer [--count 20000] [--rounds 5] [--cases 0,1,2,3] [--seconds 10] [--latencies 100]
                                  [--outage 20] [--without-tls] [--without-peers]

CPU is that of the whole process by the kernel's clock (user and system, all threads), from the first put until each record
has its result. The server is a process of its own, behind TLS, with prepared answers and no limits; so pykcl, async-kinesis
and aiokpl are given no rates to hold themselves to. All put the same records with the same 512 keys into one shard, and
aggregates are of 51,200 bytes at most. aws-kinesis-agg and boto3 are a loop that a user writes: no futures, no threads, no
memory of what was put. The producers are started and warm. Rounds are interleaved, and a ratio is between neighbours of
one round.

Then pykcl alone, on the local AWS with its limits: bytes a second of one shard once its burst is spent, beside boto3; and
from put to result, of one record after the other, beside the call of put_record. At last memory while the endpoint is dead.
What is not there is skipped, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import peer_environment
from benchmarks.canned import certificate_in
from benchmarks.figures import Ratio, Spread, quantile
from benchmarks.live_shards import Control, bodies_of, live_server
from benchmarks.local_stream import local_aws
from benchmarks.machine import busy, described, machine
from benchmarks.processes import Child
from benchmarks.producer_goals import (
    AGG,
    AIOKPL,
    ASYNC,
    BOTO3,
    CASES,
    MIB,
    PUT_RECORD,
    PYKCL,
    RECORD_OVERHEAD,
    Case,
    Rate,
    judge_cpu,
    judge_latency,
    judge_memory,
    judge_rate,
)
from benchmarks.readers import REGION, surroundings
from benchmarks.results import Results

PROGRAMS = Path(__file__).parent / "peer_programs"
STREAM = "orders"
SINGLE_OF = 50
"""A call for each record is so slow that so many times fewer records are put."""
RATE_SIZE = 100
RECORDS_A_SECOND = 8500
"""Of 100 bytes, aggregated, by one shard; boto3's loop puts 1,000."""
BURST_SECONDS = 2
MAX_PENDING_BYTES = 64 * MIB
SIZE_WHILE_DEAD = 100
KINDS_OF = {
    PYKCL: (False, True),
    BOTO3: (False,),
    AGG: (True,),
    ASYNC: (False, True),
    AIOKPL: (False, True),
}
"""Whether it puts plain records, aggregated ones, or both."""


class Run:
    """A server and the programs that put there, started."""

    def __init__(self, stack: ExitStack, *, tls: bool, with_peers: bool) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack = stack
        self._certificate = Path(certificate_in(self._folder)) if tls else None
        self.server: Control = stack.enter_context(live_server(bodies_of((), 1), (), 1, self._certificate))
        self.versions, self.missing = machine(), dict[str, str]()
        self.children = {
            PYKCL: self._child(PYKCL, Path(sys.executable), "pykcl_producer.py", "without-limits")
        }
        if with_peers:
            self._start_peers()

    def _start_peers(self) -> None:
        self.children[BOTO3] = self._child(BOTO3, Path(sys.executable), "boto3_producer.py")
        where = (self.server.url, REGION)
        boto3 = f"boto3=={self.versions['boto3']}"
        self._peer(
            AGG, "aws-kinesis-agg", (*peer_environment.AWS_KINESIS_AGG, boto3), "boto3_producer.py", ()
        )
        self._peer(ASYNC, "async-kinesis", peer_environment.ASYNC_KINESIS, "async_kinesis_producer.py", where)
        self._peer(AIOKPL, "aiokpl", peer_environment.AIOKPL, "aiokpl_producer.py", where)

    def _peer(
        self, name: str, package: str, requirements: Sequence[str], program: str, arguments: Sequence[str]
    ) -> None:
        try:
            if name == AGG and importlib.util.find_spec("aws_kinesis_agg"):
                python = Path(sys.executable)
            else:
                python = peer_environment.python_of(package, requirements)
        except peer_environment.Unavailable as reason:
            self.missing[name] = str(reason)
            return
        self.versions |= peer_environment.versions(python, (package,))
        if name in (ASYNC, AIOKPL):
            found = peer_environment.versions(python, ("aiobotocore", "botocore"))
            self.versions |= {f"{each} ({name})": text for each, text in found.items()}
        self.children[name] = self._child(name, python, program, *arguments)

    def _child(self, name: str, python: Path, program: str, *arguments: str) -> Child:
        environment = surroundings(self.server.url, self._certificate)
        child = Child(name, [str(python), str(PROGRAMS / program), *arguments], environment, self._folder)
        self._stack.callback(child.end)
        return child

    def sample(self, name: str, case: Case, count: int) -> float:
        """Microseconds of CPU per user record. Raises RuntimeError where the program ends, or nothing is put."""
        child = self.children[BOTO3 if name == PUT_RECORD else name]
        kind = "single" if name == PUT_RECORD else "aggregated" if case.is_aggregated else "plain"
        if name == PUT_RECORD:
            count = max(1, count // SINGLE_OF)
        put, cpu = self.server.puts(), child.cpu
        child.ask(f"{kind} {count} {case.size}")
        spent, put = child.cpu - cpu, self.server.puts() - put
        is_right = 0 < put < count / 2 if case.is_aggregated else put >= count
        if not is_right:
            raise RuntimeError(f"{name} put {put} Kinesis records for {count} of {case.name}")
        return spent / count * 1e6


def names_for(case: Case, children: Sequence[str]) -> list[str]:
    """Programs, by name, that take part in a case."""
    found = [name for name in children if case.is_aggregated in KINDS_OF[name]]
    return [*found, PUT_RECORD] if BOTO3 in found and PUT_RECORD in case.against else found


def measure(results: Results, run: Run, case: Case, count: int, rounds: int) -> None:
    """One case: a warm-up, then rounds in which each has its turn."""
    times: dict[str, list[float]] = {name: [] for name in names_for(case, list(run.children))}
    for number in range(rounds + 1):
        for name in list(times):
            try:
                found = run.sample(name, case, count if number else max(100, count // 10))
            except RuntimeError as problem:
                # The others go on.
                run.missing[name] = str(problem)
                del times[name]
                print(f"*** {name} is NOT MEASURED for {case.name}: {problem}", flush=True)
                continue
            if number:
                times[name].append(found)
    ratios = judge_cpu(results, case, times)
    print(f"\n{case.name}, {count:,} records, {rounds} rounds, us of CPU per user record", flush=True)
    for line in lines_of(times, ratios):
        print(line, flush=True)


def lines_of(times: dict[str, list[float]], ratios: dict[str, Ratio]) -> list[str]:
    """The rows of a table: the median, the quartiles, and how many times what pykcl takes."""
    lines = []
    for name, found in times.items():
        spread = Spread.of(found)
        line = f"  {name:26}{spread.median:9.2f}{spread.low:10.2f}-{spread.high:<10.2f}"
        lines.append(line + (f"  {ratios[name]} what pykcl takes" if name in ratios else ""))
    return lines


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--count", type=int, default=20_000, help="user records of one program in one round")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--cases", default="0,1,2,3", help="which, by number; empty for none")
    options.add_argument("--seconds", type=float, default=10.0, help="of the rate of one shard")
    options.add_argument("--latencies", type=int, default=100, help="records, one after the other")
    options.add_argument("--outage", type=float, default=20.0, help="seconds of the dead endpoint")
    options.add_argument("--without-tls", action="store_true")
    options.add_argument("--without-peers", action="store_true")
    chosen = options.parse_args()
    with ExitStack() as stack:
        run = Run(stack, tls=not chosen.without_tls, with_peers=not chosen.without_peers)
        results = Results("producer", run.versions)
        print(described(run.versions), busy(), sep="\n")
        for name, reason in run.missing.items():
            print(f"*** {name} is NOT MEASURED: {reason}", flush=True)
        for number in filter(None, chosen.cases.split(",")):
            measure(results, run, CASES[int(number)], chosen.count, chosen.rounds)
    with limited_shard() as (ours, theirs):
        rate_of_a_shard(results, ours, theirs, chosen.seconds)
        latency(results, ours, theirs, chosen.latencies)
    with ExitStack() as stack:
        memory_of_an_outage(results, stack, chosen.outage)
    results.print_goals()
    results.save()
    return results.exit_code


@contextmanager
def limited_shard() -> Iterator[tuple[Child, Child]]:
    """pykcl and boto3, each with the one shard of a local AWS of its own, which has the limits of Kinesis."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        children = []
        for name, program in ((PYKCL, ("pykcl_producer.py", "with-limits")), (BOTO3, ("boto3_producer.py",))):
            url = stack.enter_context(local_aws((STREAM,), 1, limits=True)).url
            command = [sys.executable, str(PROGRAMS / program[0]), *program[1:]]
            children.append(Child(name, command, surroundings(url, None), folder))
            stack.callback(children[-1].end)
        yield children[0], children[1]


def rate_of_a_shard(results: Results, ours: Child, theirs: Child, seconds: float) -> None:
    """Records come faster than the shard takes them; its burst is spent before."""
    print("\none shard of the local AWS with its limits, 100 B", flush=True)
    count = round(seconds * RECORDS_A_SECOND)
    ours.ask(f"aggregated {BURST_SECONDS * RECORDS_A_SECOND} {RATE_SIZE}")
    found = ours.ask(f"counted {count} {RATE_SIZE}")
    rate = Rate(found["put_seconds"], count, found["wire_bytes"], found["again"])
    judge_rate(results, rate)
    print(
        f"  {PYKCL:26}{count / rate.seconds:9,.0f} user records/s{rate.bytes / rate.seconds / MIB:8.3f} MiB/s"
        f"{rate.again_percent:8.2f} % sent again",
        flush=True,
    )
    theirs.ask(f"plain {BURST_SECONDS * 1000} {RATE_SIZE}")
    count = round(seconds * 1000)
    found = theirs.ask(f"plain {count} {RATE_SIZE}")
    print(
        f"  {BOTO3:26}{count / found['seconds']:9,.0f} user records/s, {found['refused']} times one was refused",
        flush=True,
    )


def latency(results: Results, ours: Child, theirs: Child, count: int) -> None:
    ours.ask(f"latency 3 {RATE_SIZE}")
    theirs.ask(f"latency 3 {RATE_SIZE}")
    millis = ours.ask(f"latency {count} {RATE_SIZE}")["millis"]
    calls = theirs.ask(f"latency {count} {RATE_SIZE}")["millis"]
    print("\nfrom put to result, one record after the other, ms: p50, p99", flush=True)
    for name, found in ((f"{PYKCL}, linger 0.1 s", millis), (PUT_RECORD, calls)):
        print(f"  {name:26}{quantile(found, 0.5):9.1f}{quantile(found, 0.99):9.1f}", flush=True)
    judge_latency(results, millis, quantile(calls, 0.5))


def memory_of_an_outage(results: Results, stack: ExitStack, seconds: float) -> None:
    """Start a producer, let its server die, and put until there is no room, and again after a while."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    with live_server(bodies_of((), 1), (), 1, None) as server:
        command = [sys.executable, str(PROGRAMS / "pykcl_producer.py"), "with-limits"]
        child = Child(PYKCL, command, surroundings(server.url, None), folder)
        stack.callback(child.end)
        child.ask(f"fill 1 {SIZE_WHILE_DEAD}")
        before = child.memory
    enough = MAX_PENDING_BYTES // RECORD_OVERHEAD
    found = child.ask(f"fill {enough} {SIZE_WHILE_DEAD}")
    time.sleep(seconds)
    found = child.ask(f"fill {enough} {SIZE_WHILE_DEAD}")
    if not found["is_full"]:
        raise RuntimeError("the producer took more records than max_pending_bytes has room for")
    pending = found["pending"] * (SIZE_WHILE_DEAD + found["key"] + RECORD_OVERHEAD)
    grown = child.peak_memory - before
    print(
        f"\ndead endpoint, {seconds:g} s: {found['pending']:,} records of {SIZE_WHILE_DEAD} B pending, counted as "
        f"{pending / MIB:.1f} of {MAX_PENDING_BYTES / MIB:.0f} MiB; RSS grew by {grown / MIB:.0f} MiB",
        flush=True,
    )
    judge_memory(results, pending, MAX_PENDING_BYTES, grown)


if __name__ == "__main__":
    sys.exit(main())
