"""The short lives of fleets that show the scenarios with a real Java worker: each leaves a `Told`.

They wait for conditions only. What must happen in a certain moment is made certain by the local AWS, which refuses one
write, or one shard's records, until the rest has come about.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import boto3
from botocore.config import Config
from fleet_evidence import STREAM, TABLE
from fleet_recording import number_of
from fleet_rows import SHARD_END
from fleet_stream import client
from interop_fleet import Fleet
from java_worker import COMPATIBLE
from scenario_log import Told, told_by
from scenario_owners import fenced_refusals
from scenario_server import (
    BUSY,
    OUTRUN,
    ScenarioServer,
    creates_row,
    creates_table,
    java_takes,
    pykcl_ends,
    reads,
)

from pykcl.model.kpl import aggregate
from pykcl.planning.leader import leader

NewFleet = Callable[..., Fleet]
JAVA = "2.7.2"
SLOW = {"policy": "every:1", "work": 0.05}
"""A worker that is always in the middle of something as long as there are records, and checkpoints each of them."""
OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"


@contextlib.contextmanager
def table_of(run: Fleet, says: str = "operator") -> Iterator[Any]:
    """The lease table's client, of somebody who is no worker. says: what it calls itself."""
    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name="us-east-1")
    with contextlib.closing(
        session.client("dynamodb", endpoint_url=run.server.url, config=Config(user_agent_extra=says))
    ) as dynamodb:
        yield dynamodb


def all_rows(dynamodb: Any) -> dict[str, dict[str, Any]]:
    return {row["leaseKey"]["S"]: row for row in dynamodb.scan(TableName=TABLE)["Items"]}


def made_by_pykcl(run: Fleet) -> None:
    """A worker makes table and leases and is stopped: Java waits up to 30 s, drawn by lot, before it does."""
    maker = run.pykcl("p0")
    run.wait_until_started(maker)
    run.wait_for("leases", run.all_known)
    run.terminate(maker)


def busy(run: Fleet, shards: Sequence[str] | None = None) -> None:
    """Whoever reads those shards, or any, has something to do for some seconds, if its work is SLOW."""
    for shard, keys in run.open_ranges().items():
        if (shards is None or shard in shards) and run.missing_of(shard) < 60:
            run.producer.burst(30, [keys])


def everywhere(run: Fleet, count: int) -> None:
    """So many user records into each open shard."""
    for keys in run.open_ranges().values():
        run.producer.burst(count, [keys])


# -- 3, 6, 7, 8, 10, 11, 12, 26 ------------------------------------------------------------------------------------------


def ownership_story(new_fleet: NewFleet) -> Told:
    notes: dict[str, Any] = {}
    with new_fleet(shards=4, aggregated=0.0, server=ScenarioServer) as run:
        java, first = both_make_the_table(run)
        java_steals(run, first)
        run.terminate(first)
        run.wait_for("all leases with j1", run.all_begun)
        frozen, killed, stopped = pykcl_steals(run, java)
        notes["frozen"], notes["killed"] = frozen.worker, killed.worker
        with run.frozen(frozen):
            run.kill(killed)
            run.terminate(stopped)
            run.wait_for("all leases with j1", run.all_begun)
        run.wait_for(f"{frozen.worker} to know", lambda: lost(frozen) >= 1)
        run.wait_until_balanced()
        run.wait_until_delivered()
        notes["deleted"], notes["leader"] = row_is_deleted(run, java.worker)
        run.wait_until_balanced()
        run.terminate(java)
        run.wait_for(f"all leases with {frozen.worker}", run.all_begun)
        everywhere(run, 5)
        run.wait_until_delivered()
        return told_by(run.folder, run.finish(), notes)


def both_make_the_table(run: Fleet) -> tuple[Any, Any]:
    """No write that makes the table or a row is done before each side has sent one. pykcl has all leases in the end."""
    server = run.server
    with server.refusing(java_takes, OUTRUN):
        with server.refusing(creates_row):
            with server.refusing(creates_table):
                java, first = run.java("j1", JAVA, **SLOW), run.pykcl("p1", **SLOW)
                run.wait_for("both to ask for the table", lambda: all(server.tried("CreateTable").values()))
            run.wait_for("both to ask for rows", lambda: all(server.tried("PutItem").values()))
        run.wait_for("all leases with p1", lambda: run.all_known() and len(run.leases_of(first)) == 4)
        busy(run)
        run.wait_for("p1 to be at work on all of them", lambda: len(first.in_hand) == 4)
    run.wait_until_started(java, first)
    return java, first


def java_steals(run: Fleet, first: Any) -> None:
    def stolen() -> bool:
        busy(run)
        return any(
            write.kind == "take" and write.applied and write.by_java and write.before and write.before.owner == "p1"
            and write.key not in first.processors
            for write in run.rows.writes
        )  # fmt: skip

    run.wait_for("Java to steal, and p1 to know", stolen)


def pykcl_steals(run: Fleet, java: Any) -> list[Any]:
    """Three of Java's four leases, of which two have records and two have none: so at least one of each. Returns the
    three pykcl workers.

    Java learns of a steal by the first of its writes that is refused, and sends no others for that lease. Of a lease
    with records that is nearly always a checkpoint, of one without it is a renewal. Nearly: hence the repetition.
    """
    numbers = iter(range(2, 11))
    while True:
        run.wait_for("nothing left to do", lambda: run.missing() == 0)
        shards = list(run.open_ranges())[:2]
        busy(run, shards)
        thieves = [run.pykcl(f"p{next(numbers)}") for _ in range(3)]

        def stolen(shards: Sequence[str] = shards, thieves: Sequence[Any] = thieves) -> bool:
            busy(run, shards)
            return all(
                run.leases_of(one) and set(run.leases_of(one)) <= set(one.processors) for one in thieves
            )

        run.wait_for("three steals", stolen)
        run.wait_for("Java to know", lambda: set(java.processors) == set(run.leases_of(java)))
        if fenced_refusals(run.rows.writes) == {"renew", "checkpoint"}:
            return thieves
        for one in thieves:
            run.terminate(one)
        run.wait_for("all leases with j1", run.all_begun)


def lost(worker: Any) -> int:
    """How many processors were told that the lease is gone."""
    return sum(json.loads(line)["what"] == "lost" for line in worker.recording.read_text().splitlines())


def row_is_deleted(run: Fleet, owner: str) -> tuple[str, str]:
    """Of an open shard that this worker owns; waits until it is read again. Returns it, and who leads meanwhile."""
    key = run.leases_of(run.workers[owner])[0]
    elected = leader(row.owner for row in run.rows.rows.values() if row.owner)
    with table_of(run) as dynamodb:
        dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": key}})
    made = run.wait_for(f"a new row of {key}", lambda: any(
        write.kind == "create" and write.applied and write.key == key
        for write in run.rows.writes[deleted_at(run, key) :]
    ))  # fmt: skip
    run.say(f"{elected} leads; the row was back after {made:.1f} s")
    run.wait_for(f"{key} to be begun", run.all_begun)
    everywhere(run, 5)
    run.wait_until_delivered()
    return key, str(elected)


def deleted_at(run: Fleet, key: str) -> int:
    return max(
        (write.index for write in run.rows.writes if (write.key, write.kind) == (key, "delete")),
        default=1 << 30,
    )


# -- 19, 20, 21, 26 ------------------------------------------------------------------------------------------------------


def reshard_story(new_fleet: NewFleet) -> Told:
    notes: dict[str, Any] = {"merges": []}
    with (
        new_fleet(shards=4, aggregated=0.0, server=ScenarioServer) as run,
        contextlib.closing(client(run.server.url)) as kinesis,
    ):
        notes["crashed"] = pykcl_dies_before_the_end(run, kinesis)
        java = run.java("j1", JAVA)
        run.wait_until_started(java)
        everywhere(run, 10)
        run.wait_until_delivered()
        second = run.pykcl("a2")
        run.wait_until_started(second)
        run.wait_until_balanced()
        notes["deleted"], notes["leader"] = row_is_deleted(run, java.worker)
        for slow in (second, java):
            run.wait_until_balanced()
            notes["merges"].append(merge(run, kinesis, java, second, slow))
            everywhere(run, 5)
            run.wait_until_delivered()
        run.wait_until_balanced()
        notes["split"] = split(run, kinesis, run.leases_of(second)[0])
        run.wait_for("its end", lambda: run.rows.rows[notes["split"]].checkpoint == SHARD_END)
        notes["ranges"] = {key: (str(one.first), str(one.last)) for key, one in run.open_ranges().items()}
        run.terminate(second)
        run.wait_for("all leases with j1", run.all_begun)
        everywhere(run, 5)
        run.wait_until_delivered()
        return told_by(run.folder, run.finish(), notes)


def pykcl_dies_before_the_end(run: Fleet, kinesis: Any) -> str:
    """Killed with the rows of both children in the table and its SHARD_END refused. Returns the parent."""
    worker = run.pykcl("a1")
    run.wait_until_started(worker)
    run.wait_for("leases", run.all_known)
    everywhere(run, 10)
    run.wait_until_delivered()
    with run.server.refusing(pykcl_ends):
        parent = split(run, kinesis, next(iter(run.open_ranges())))
        run.wait_for("the children's rows, and SHARD_END refused", lambda: run.all_known() and any(
            (write.key, write.kind, write.applied) == (parent, "end", False) for write in run.rows.writes
        ))  # fmt: skip
        run.kill(worker)
    return parent


def split(run: Fleet, kinesis: Any, key: str) -> str:
    keys = run.open_ranges()[key]
    middle = (keys.first + keys.last + 1) // 2
    kinesis.split_shard(StreamName=STREAM, ShardToSplit=key, NewStartingHashKey=str(middle))
    run.say(f"split {key}")
    return key


def merge(run: Fleet, kinesis: Any, java: Any, pykcl: Any, slow: Any) -> dict[str, Any]:
    """Two neighbours of which each side reads one; `slow` gets no records of its own until the other has ended. Returns
    the parents, the one that was ended first in front."""
    shards = list(run.open_ranges())
    owner = {key: one for one in (java, pykcl) for key in run.leases_of(one)}
    left, right = next(pair for pair in pairwise(shards) if owner[pair[0]] is not owner[pair[1]])
    late = left if owner[left] is slow else right
    early = right if late == left else left
    with run.server.refusing(reads(late), BUSY) as refused:
        kinesis.merge_shards(StreamName=STREAM, ShardToMerge=left, AdjacentShardToMerge=right)
        run.wait_for(f"the end of {early}", lambda: run.rows.rows[early].checkpoint == SHARD_END)
        everywhere(run, 5)
        seen = len(refused)
        run.wait_for(f"{late} to be asked for in vain", lambda: len(refused) >= seen + 2)
    run.wait_for(f"the end of {late}", lambda: run.rows.rows[late].checkpoint == SHARD_END)
    return {"first": early, "second": late}


# -- 16, 17 -------------------------------------------------------------------------------------------------------------


def aggregate_story(new_fleet: NewFleet) -> Told:
    """Java checkpoints record 100 of an aggregate of 200; pykcl goes on, checkpoints record 3 of one of 10; Java goes on.
    Behind those lie aggregates that are broken, or of another shard, read by both."""
    with new_fleet(shards=2) as run:
        made_by_pykcl(run)
        (shard, keys), (_, elsewhere) = run.open_ranges().items()
        java = run.java("j1", JAVA, policy="inside:99")
        run.wait_until_started(java)
        run.producer.aggregate(200, keys)
        run.wait_for("Java inside", lambda: run.missing() == 0 and run.rows.rows[shard].checkpoint[1] == 99)
        run.terminate(java)
        worker = run.pykcl("p1", policy="inside:2", checkpoint_mode="manual")
        run.wait_until_started(worker)
        run.producer.aggregate(10, keys)
        run.wait_for("pykcl inside", lambda: run.missing() == 0 and run.rows.rows[shard].checkpoint[1] == 2)
        odd_ones(run, keys, str(elsewhere.first))
        run.wait_for("the odd ones", lambda: run.missing() == 0)
        run.kill(worker)
        heir = run.java("j2", JAVA)
        run.wait_until_started(heir)
        run.wait_until_delivered()
        return told_by(run.folder, run.finish(), {"shard": shard})


def odd_ones(run: Fleet, keys: Any, outside: str) -> None:
    """A broken aggregate, which is the plain record it also is; one with a part that belongs into another shard, of which
    nobody is given anything; and a sound one."""
    (sound,) = aggregate([("k", str(keys.first), b'{"id": 0}')] * 2)
    broken = sound.data[:-1] + bytes([sound.data[-1] ^ 1])
    run.producer.put_as_it_is(broken, keys, (number_of(broken),))
    (misplaced,) = aggregate([("k", str(keys.first), b'{"id": 0}'), ("k", outside, b'{"id": 0}')])
    run.producer.put_as_it_is(misplaced.data, keys, ())
    run.producer.aggregate(2, keys)  # too few for a checkpoint of the record with sub-sequence number 2


# -- 30, 31 ----------------------------------------------------------------------------------------------------------------


def foreign_story(new_fleet: NewFleet) -> Told:
    """KCL 3.5.1 keeps its own rows and the index in the lease table; rows of the other kinds are put in its name."""
    planted = {
        "Leader": {"entityType": {"S": "LEADER"}, "leaderName": {"S": "j9"}, "leaseDuration": {"N": "120000"}},
        "TableMigration3.5": {"entityType": {"S": "TABLE_MIGRATION"}, "tm": {"S": "INIT"}, "mb": {"S": "j9"}},
        "000000000000:fleet:1790000000": {
            "entityType": {"S": "STREAM"}, "streamId": {"S": "000000000000:fleet:1790000000"},
        },
    }  # fmt: skip
    with new_fleet(shards=4) as run, table_of(run, "aws-sdk-java") as dynamodb:
        made_by_pykcl(run)
        java = run.java("j1", "3.5.1", mode=COMPATIBLE)
        run.wait_until_started(java)
        own = {"WORKER_METRIC_STATS", "CLIENT_VERSION_MIGRATION"}
        run.wait_for("Java's rows and the index", lambda: has_index(dynamodb) and own <= kinds_in(dynamodb))
        for key, row in planted.items():
            dynamodb.put_item(TableName=TABLE, Item={"leaseKey": {"S": key}, **row})
        shards = set(run.open_ranges())
        foreign = {key: row for key, row in all_rows(dynamodb).items() if key not in shards}
        run.wait_until_balanced()
        everywhere(run, 10)
        first, second = run.pykcl("p1"), run.pykcl("p2")
        run.wait_until_started(first, second)
        run.wait_until_balanced()
        notes: dict[str, Any] = {"planted": sorted(planted), "foreign": foreign, "shares": run.balances[-1]}
        everywhere(run, 10)
        run.wait_until_delivered()
        run.wait_for("ten rounds", lambda: scans(run, "p1") >= 12)
        run.terminate(first)
        run.kill(second)
        run.wait_for("all leases with j1", run.all_begun)
        everywhere(run, 5)
        run.wait_until_delivered()
        notes["rows"], notes["index"] = all_rows(dynamodb), has_index(dynamodb)
        notes["cycles"] = scans(run, "p1")
        return told_by(run.folder, run.finish(), notes)


def kinds_in(dynamodb: Any) -> set[str]:
    """entityType of the rows that have one."""
    return {row["entityType"]["S"] for row in all_rows(dynamodb).values() if "entityType" in row}


def has_index(dynamodb: Any) -> bool:
    table = dynamodb.describe_table(TableName=TABLE)["Table"]
    return OWNER_INDEX in {index["IndexName"] for index in table.get("GlobalSecondaryIndexes", [])}


def scans(run: Fleet, worker: str) -> int:
    log = (run.folder / "requests.jsonl").read_text("utf-8").splitlines()
    return sum('"operation":"Scan"' in line and f"app/{worker} " in f"{line} " for line in log)


# -- 40 --------------------------------------------------------------------------------------------------------------------


def soak_story(new_fleet: NewFleet, seed: int = 40) -> Told:
    """Three workers of each kind under traffic; kills, splits and merges in an order that is drawn."""
    random = Random(seed)
    deeds = ["kill java", "kill pykcl", "split", "split", "merge", "merge"]
    random.shuffle(deeds)
    with new_fleet(shards=8, rate=60, seed=seed) as run:  # six would cut the cells of aggregates
        pykcl = [run.pykcl(f"p{number}", policy="every:13") for number in (1, 2, 3)]
        run.wait_until_started(*pykcl)
        run.wait_for("leases", run.all_known)
        java = [run.java(f"j{number}", JAVA) for number in (1, 2, 3)]
        run.producer.start()
        run.wait_until_started(*java)
        run.wait_until_balanced()
        run.wait_for("all to read", lambda: all(run.delivered(one) for one in (*pykcl, *java)))
        for deed in deeds:
            if deed.startswith("kill"):
                run.kill(random.choice(java if deed == "kill java" else pykcl))
            else:
                run.reshard(deed)
            count = run.producer.count
            run.wait_for("more records", lambda count=count: run.producer.count > count + 60)
        run.wait_for("all shards with a lease", run.all_known)
        run.wait_for("all leases begun", run.all_begun)
        run.producer.stop()
        run.wait_until_delivered()
        return told_by(run.folder, run.finish(), {"deeds": deeds})
