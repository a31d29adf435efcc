"""Real Java workers alone and beside pykcl: every record arrives, in order, whoever comes and goes."""

import pytest
from interop_verdict import duplicates, handovers, problems_of
from java_worker import COMPATIBLE, PHASE_1

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("version", "mode"),
    [("2.7.2", None), ("3.1.3", COMPATIBLE), ("3.5.1", PHASE_1), ("3.5.1", COMPATIBLE)],
    ids=["2.7.2", "3.1.3-compatible", "3.5.1-phase-1", "3.5.1-compatible"],
)
def test_a_java_worker_alone_consumes_three_shards_through_a_split_and_a_merge(
    java, fleet, judged, version, mode
):
    java(version)
    with fleet(shards=3) as run:
        run.put(30)
        alone = run.java("j1", version, mode=mode)
        run.wait_until_started(alone)
        run.wait_until_delivered()
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(30)
            run.wait_until_delivered()
        evidence = judged(run)
    assert problems_of(evidence) == []
    assert sum(map(len, evidence.records.values())) == 90
    assert len(evidence.parents) == 6
    assert duplicates(evidence) == 0


def test_a_pykcl_worker_joins_a_java_worker_and_takes_all_when_that_is_stopped(java, fleet, judged):
    java("2.7.2")
    with fleet(shards=4) as run:
        run.put(40)
        first = run.java("j1", "2.7.2")
        run.wait_until_started(first)
        run.wait_until_delivered()
        run.producer.start()
        second = run.pykcl("p1")
        run.wait_until_started(second)
        run.wait_until_balanced()
        before = [run.delivered(first), run.delivered(second)]
        run.wait_for(
            "both to deliver at balance",
            lambda: run.delivered(first) > before[0] and run.delivered(second) > before[1],
        )
        assert run.balanced()
        run.terminate(first)
        run.wait_for("all leases with p1", lambda: len(run.leases_of(second)) == 4)
        run.put(40)
        run.producer.stop()
        run.wait_until_delivered()
        evidence = judged(run)
    assert problems_of(evidence) == []
    assert {life.worker for life in evidence.lives} == {"j1", "p1"}


def test_deaths_of_both_kinds_and_a_frozen_pykcl_worker_lose_nothing(java, fleet, judged):
    java("2.7.2")
    with fleet(shards=4, rate=60) as run:
        # pykcl makes the leases: Java waits up to 30 s, drawn by lot, before it fills an empty table.
        first, second = run.pykcl("p1", work=0.01), run.pykcl("p2", work=0.01)
        run.wait_until_started(first, second)
        run.wait_for("leases", lambda: len(run.rows.rows) == 4)
        third, fourth = run.java("j1", "2.7.2", policy="every:7"), run.java("j2", "2.7.2")
        run.producer.start()
        run.wait_until_started(third, fourth)
        run.wait_until_balanced()
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(40)
        run.wait_for("children begun", lambda: len(run.rows.rows) >= 6)
        run.wait_until_balanced()
        for victim in (third, first):
            run.kill(victim)
            run.wait_until_balanced()
        with run.frozen(second):
            run.wait_for("nothing left to p2", lambda: not run.leases_of(second))
        run.wait_until_balanced()
        run.terminate(fourth)
        run.wait_until_balanced()
        run.producer.stop()
        run.wait_until_delivered()
        evidence = judged(run)
    assert problems_of(evidence) == []
    assert {(one.what, one.worker) for one in handovers(evidence)} >= {
        ("killed", "j1"), ("killed", "p1"), ("frozen", "p2"), ("terminated", "j2"),
    }  # fmt: skip


@pytest.mark.parametrize("first", ["java", "pykcl"])
def test_a_checkpoint_inside_an_aggregate_is_where_the_other_kind_goes_on(java, fleet, judged, first):
    """To the record: what follows the checkpoints is repeated, and nothing else is."""
    java("2.7.2")
    with fleet(shards=2, aggregated=1.0, seed=5) as run:
        maker = run.pykcl("p0")  # Java would wait up to 30 s, drawn by lot, before it makes leases
        run.wait_until_started(maker)
        run.wait_for("leases", lambda: len(run.rows.rows) == 2)
        run.terminate(maker)
        if first == "java":
            killed = run.java("j1", "2.7.2", policy="inside:2")
        else:
            killed = run.pykcl("p1", policy="inside:2", checkpoint="manual")
        run.wait_until_started(killed)
        run.put(200)
        run.wait_for("all records finished", lambda: run.missing() == 0)
        run.wait_for(
            "checkpoints inside", lambda: all(row.checkpoint[1] == 2 for row in run.rows.rows.values())
        )
        run.kill(killed)
        follower = run.pykcl("p2") if first == "java" else run.java("j2", "2.7.2")
        run.wait_until_started(follower)
        run.wait_until_delivered()
        evidence = judged(run)
    began = [life for life in evidence.lives if life.worker == follower.worker]
    stood = {life.shard: life.start for life in began}
    assert {at[1] for at in stood.values()} == {2}
    behind = sum(item.at > stood[shard] for shard, items in evidence.records.items() for item in items)
    assert problems_of(evidence) == []
    assert duplicates(evidence) == behind > 0
