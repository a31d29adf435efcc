"""The verdict notices: a small fleet of one Java and one pykcl worker, told rightly, and then with one fact changed."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_evidence import TABLE, Evidence, Item, Life, Process
from fleet_ownership import ownerships
from fleet_rows import SHARD_END, START, LeaseRows
from interop_verdict import checks_of, duplicates, duplicates_by_kind, handovers, problems_of, report

FIXTURES = Path(__file__).parents[1] / "fixtures"


def items(*numbers):
    return [Item((number, 0), number) for number in numbers]


class Table:
    """Requests as Java workers and pykcl send them, folded into writes."""

    def __init__(self, log):
        self.rows = LeaseRows(log, TABLE)

    def _ask(self, t, operation, **params):
        self.rows.take(
            {"operation": operation, "at_millis": t, "status": 200, "error_code": None,
             "parameters": {"TableName": TABLE, **params}}
        )  # fmt: skip

    def create(self, t, shard):
        row = {"leaseKey": {"S": shard}, "leaseCounter": {"N": "0"}, "checkpoint": {"S": "TRIM_HORIZON"}}
        self._ask(t, "PutItem", Item=row, Expected={"leaseKey": {"Exists": False}})

    def java(self, t, shard, **values):
        counter = self.rows.rows[shard].counter
        updates = {name: {"Value": value, "Action": "PUT"} for name, value in values.items()}
        updates["leaseCounter"] = {"Value": {"N": str(counter + 1)}, "Action": "PUT"}
        expected = {"leaseCounter": {"Value": {"N": str(counter)}}}
        self._ask(
            t, "UpdateItem", Key={"leaseKey": {"S": shard}}, AttributeUpdates=updates, Expected=expected
        )

    def pykcl_takes(self, t, shard, worker):
        counter = self.rows.rows[shard].counter
        self._ask(
            t, "UpdateItem", Key={"leaseKey": {"S": shard}},
            UpdateExpression="SET leaseOwner = :owner, leaseCounter = :counter",
            ExpressionAttributeValues={":owner": {"S": worker}, ":counter": {"N": str(counter + 1)}},
        )  # fmt: skip


def life(worker, shard, token, start, t, numbers, ends=()):
    found = Life(worker, shard, token, start, t, ends=list(ends))
    found.given = [(t + 1, items(*numbers))]
    found.done = [(t + 2, item) for item in items(*numbers)]
    return found


@pytest.fixture
def evidence(tmp_path):
    """j1 reads A to 3 with its checkpoint at 2 and is killed; p1 begins behind 2, ends A and goes on with its child B."""
    table = Table(tmp_path / "log")
    table.create(0, "A")
    table.java(10, "A", leaseOwner={"S": "j1"})
    table.java(20, "A", checkpoint={"S": "2"}, checkpointSubSequenceNumber={"N": "0"})
    table.java(30, "A")
    table.pykcl_takes(5_000, "A", "p1")
    table.java(6_000, "A", checkpoint={"S": "SHARD_END"}, checkpointSubSequenceNumber={"N": "0"})
    table.create(6_000, "B")
    table.pykcl_takes(6_010, "B", "p1")
    token = next(own.token for own in ownerships(of(table)) if own.worker == "p1")
    told = of(table)
    told.lives += [
        life("j1", "A", -77, START, 15, [1, 2, 3]),
        life("p1", "A", token, (2, 0), 5_100, [3, 4], ["ended"]),
        life("p1", "B", 1, START, 6_100, [5]),
    ]
    return told


def of(table):
    return Evidence(
        records={"A": items(1, 2, 3, 4), "B": items(5)},
        parents={"A": (), "B": ("A",)},
        lives=[],
        processes={"j1": Process("j1", 1, killed=1_000, exited=1_010), "p1": Process("p1", 1)},
        writes=table.rows.writes,
        actions=Counter(),
        faults={},
    )


def test_a_fleet_that_kept_every_promise_passes(evidence):
    assert [check.verdict for check in checks_of(evidence)] == ["ok"] * 8
    assert (duplicates(evidence), duplicates_by_kind(evidence)) == (1, {"D1": 1})
    (one,) = handovers(evidence)
    assert (one.what, one.worker, one.successor, one.seconds) == ("killed", "j1", "p1", 4.1)


def test_the_report_counts_what_there_was(evidence):
    text = report(evidence, {"j1": "java 2.7.2", "p1": "pykcl"}, ["j1 Scheduler: oh"])
    assert "records put 5, lost 0, out of order 0, duplicates 1 (D1 1), of them unexplained 0" in text
    assert "j1 (java 2.7.2): 3 records of 1 shards" in text
    assert "java 2.7.2 killed, pykcl goes on after 4.1 s" in text
    assert "Java ERROR lines: 1\n    j1 Scheduler: oh" in text


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda java, ended, child: child.done.clear(), "nothing lost"),
        (lambda java, ended, child: child.given.append((9, items(6))), "nothing but what was put"),
        (lambda java, ended, child: java.given[0][1].reverse(), "order per shard, no gaps"),
        (lambda java, ended, child: java.given[0][1].pop(0), "order per shard, no gaps"),
        (lambda java, ended, child: ended.after_end.append("a batch"), "life of a processor"),
        (lambda java, ended, child: setattr(child, "t", 5_050), "parents before children"),
        (lambda java, ended, child: setattr(ended, "start", (1, 0)), "start at the durable checkpoint"),
        (lambda java, ended, child: ended.done.insert(0, (5_101, items(2)[0])), "duplicates explained"),
    ],
    ids=["lost", "stranger", "order", "gap", "after the end", "child first", "start", "repeat"],
)
def test_each_check_notices_what_it_is_for(evidence, change, name):
    change(*evidence.lives)
    assert name in {problem.partition(":")[0] for problem in problems_of(evidence)}


def test_a_write_by_pykcl_to_what_is_no_lease_is_noticed(evidence):
    evidence.writes[-1] = replace(evidence.writes[-1], key="j1", by_java=False)
    evidence.elsewhere = ("fleet-app-WorkerMetricStats",)
    problems = [
        problem for problem in problems_of(evidence) if problem.startswith("pykcl writes leases only")
    ]
    assert len(problems) == 2


def test_a_processor_without_a_lease_is_noticed(evidence):
    evidence.lives[0] = replace(evidence.lives[0], worker="j9")
    assert any("began without an ownership" in problem for problem in problems_of(evidence))


# -- the table as Java writes it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["requests-java-2.7.2.jsonl", "requests-java-3.5.1-phase1.jsonl"])
def test_requests_of_real_java_workers_are_told_apart(tmp_path, name):
    kinds = Counter()
    for line in (FIXTURES / name).read_text("utf-8").splitlines():
        recorded = json.loads(line)
        request = recorded["request"]
        rows = LeaseRows(tmp_path / "log", TABLE)
        key = request.get("Key", {}).get("leaseKey", {}).get("S")
        counter = request.get("Expected", {}).get("leaseCounter", {}).get("Value", {"N": "0"})
        if key:
            row = {"leaseKey": {"S": key}, "leaseCounter": counter, "leaseOwner": {"S": "j1"}}
            rows.take(logged("PutItem", {"Item": row}))
        rows.take(logged(recorded["operation"], request, recorded["error"]))
        kinds.update((write.kind, write.applied, write.writer) for write in rows.writes[bool(key) :])
    told = {kind for kind, _, _ in kinds}
    assert {"create", "take", "renew", "checkpoint"} <= told
    assert all(writer == "j1" for kind, _, writer in kinds if kind in ("renew", "checkpoint"))
    assert any(not applied for _, applied, _ in kinds)


def logged(operation, params, error=None):
    return {
        "operation": operation, "at_millis": 1, "status": 400 if error else 200, "error_code": error,
        "parameters": {**params, "TableName": TABLE},
    }  # fmt: skip


def test_the_end_of_a_shard_a_release_and_rows_that_are_no_leases_are_told_apart(tmp_path):
    rows = LeaseRows(tmp_path / "log", TABLE)
    key = {"leaseKey": {"S": "A"}}
    rows.take(logged("PutItem", {"Item": {**key, "leaseCounter": {"N": "0"}, "leaseOwner": {"S": "j1"}}}))
    put = {"Action": "PUT"}
    end = {"checkpoint": {"Value": {"S": "SHARD_END"}, **put}, "leaseCounter": {"Value": {"N": "1"}, **put}}
    rows.take(logged("UpdateItem", {"Key": key, "AttributeUpdates": end}))
    gone = {"leaseOwner": {"Action": "DELETE"}, "leaseCounter": {"Value": {"N": "2"}, **put}}
    rows.take(logged("UpdateItem", {"Key": key, "AttributeUpdates": gone}))
    metrics = {"leaseKey": {"S": "j1"}, "entityType": {"S": "WORKER_METRIC_STATS"}}
    rows.take(logged("PutItem", {"Item": metrics}))
    rows.take(logged("UpdateItem", {"Key": {"leaseKey": {"S": "j2"}}, "AttributeUpdates": {}}))
    rows.take(
        {
            **logged("PutItem", {"Item": metrics, "Expected": {}}),
            "parameters": {"TableName": "stats", "Expected": {}},
        }
    )
    rows.take({**logged("PutItem", {"Item": metrics}), "parameters": {"TableName": "stats"}})
    assert rows.elsewhere == ["stats"]
    assert [write.kind for write in rows.writes] == ["create", "end", "release", "other", "other"]
    assert {name: (row.owner, row.counter, row.checkpoint) for name, row in rows.rows.items()} == {
        "A": (None, 2, SHARD_END)
    }
