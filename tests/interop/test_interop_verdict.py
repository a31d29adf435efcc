"""The verdict notices: a small fleet of one Java and one pykcl worker, told rightly, and then with one fact changed."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_evidence import TABLE, Evidence, Item, Life, Process
from fleet_ownership import ownerships
from fleet_rows import SHARD_END, START, LeaseRows
from interop_figures import (
    BEGIN,
    END,
    error_lines,
    errors_beyond,
    figures_of,
    markdown,
    report,
    summary,
    written_into,
)
from interop_verdict import checks_of, duplicates, duplicates_by_kind, handovers, problems_of
from java_worker import LogLine

FIXTURES = Path(__file__).parents[1] / "fixtures"
JAVA = "aws-sdk-java/2.33.0 md/io#sync app/j1"
PYTHON = "Boto3/1.44.5 md/Botocore#1.44.5 app/p1 pykcl/0.1.0"


def items(*numbers):
    return [Item((number, 0), number) for number in numbers]


class Table:
    """Requests as Java workers and pykcl send them, folded into writes."""

    def __init__(self, log):
        self.rows = LeaseRows(log, TABLE)

    def _ask(self, t, operation, user_agent=JAVA, **params):
        self.rows.take(
            {"operation": operation, "at_millis": t, "status": 200, "error_code": None, "user_agent": user_agent,
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
            t, "UpdateItem", PYTHON, Key={"leaseKey": {"S": shard}},
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


def figures(evidence, **more):
    facts = {"made": {"plain": 4, "pykcl": 1, "aws-kinesis-agg": 2}, "balances": [{"j1": 1}, {"j1": 1, "p1": 3}],
             "errors": ["j1 Scheduler: oh"], "beyond": ["j1 Scheduler: oh"]}  # fmt: skip
    return figures_of(evidence, "j and p", {"j1": "Java 2.7.2", "p1": "pykcl"}, **{**facts, **more})


def test_the_report_counts_what_there_was(evidence):
    text = report(evidence, figures(evidence))
    assert "records put 5 (4 plain, 1 aggregates by pykcl, 2 aggregates by aws-kinesis-agg), lost 0" in text
    assert "duplicates 1 (1 after a crash), explained by tails without a checkpoint 1, unexplained 0" in text
    assert "leases per worker at balance j1=1 · j1=1 p1=3" in text
    assert "writes by pykcl 2, to what is no lease 0" in text
    assert "Java ERROR lines 1, beyond those of Java alone 1\n    j1 Scheduler: oh" in text
    assert "kill -9, Java → pykcl: 4.1 s" in text


def test_the_summary_has_a_line_per_fleet_and_per_way_of_a_lease(evidence):
    told = [line.split() for line in summary([figures(evidence), figures(evidence)]).splitlines()]
    assert told.count(["j", "and", "p", "5", "0", "0", "1", "0", "2", "0", "1"]) == 2
    assert ["kill", "-9", "Java", "→", "pykcl", "2", "4.1", "s", "4.1", "s"] in told


def test_the_tables_of_the_page_are_replaced_and_nothing_else_is(evidence):
    page = written_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", [figures(evidence)])
    assert page == f"before\n{BEGIN}\n{markdown([figures(evidence)])}\n{END}\nafter\n"
    with pytest.raises(ValueError, match="interop: begin"):
        written_into("before", [figures(evidence)])


def test_figures_count_what_is_lost_out_of_order_unexplained_or_foreign(evidence):
    evidence.lives[2].done.clear()
    evidence.lives[0].given[0][1].reverse()
    evidence.lives[1].done.insert(0, (5_101, items(2)[0]))
    evidence.elsewhere = ("fleet-app-WorkerMetricStats",)
    told = figures(evidence)
    assert (told.lost, told.out_of_order, told.unexplained, told.foreign) == (1, 3, 1, 1)


def test_a_lease_that_was_taken_from_a_living_owner_is_a_steal(evidence):
    evidence.processes["j1"].killed = evidence.processes["j1"].exited = None
    (one,) = handovers(evidence)
    assert (one.what, one.worker, one.successor, one.seconds) == ("stolen", "j1", "p1", 0.1)
    evidence.processes["j1"].terminated = 4_000
    (one,) = handovers(evidence)
    assert (one.what, one.seconds) == ("terminated", 1.1)


def test_only_errors_unlike_those_of_the_control_run_are_beyond_it():
    def of(worker, *texts):
        return error_lines(worker, [LogLine("ERROR", "Scheduler", text) for text in texts])

    control = of("j1", "shardId-000000000003 failed after 17 ms | java.lang.Oh: 1a2b3c4d")
    lines = of(
        "j3", "shardId-000000000001 failed after 5 ms | java.lang.Oh: 99887766", "shardId-000000000001 lost"
    )
    assert errors_beyond(lines, control) == lines[1:]


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
        "parameters": {**params, "TableName": TABLE}, "user_agent": JAVA,
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
    load = {
        "ExpressionAttributeNames": {"#AMZN_MAPPED_sup": "sup"},
        "UpdateExpression": "SET #AMZN_MAPPED_sup = :s",
    }
    rows.take(logged("UpdateItem", {"Key": {"leaseKey": {"S": "j2"}}, **load}))
    elsewhere = {**logged("PutItem", {"Item": metrics}), "parameters": {"TableName": "stats"}}
    rows.take(elsewhere)
    rows.take({**elsewhere, "user_agent": PYTHON})
    assert rows.elsewhere == ["stats"]
    assert [write.kind for write in rows.writes] == ["create", "end", "release", "other", "other", "other"]
    assert {name: (row.owner, row.counter, row.checkpoint) for name, row in rows.rows.items()} == {
        "A": (None, 2, SHARD_END)
    }
