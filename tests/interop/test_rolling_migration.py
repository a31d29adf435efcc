"""A fleet of Java MultiLangDaemons becomes one of `pykcl multilangd` host by host, under load, and goes back again."""

import pytest
from fleet_recording import complete_lines
from interop_verdict import duplicates, problems_of

pytestmark = pytest.mark.timeout(600)

JAVA = "2.7.2"


def test_a_java_fleet_is_replaced_one_by_one_and_rolled_back_while_records_flow_and_a_shard_splits(
    java, fleet, judged
):
    java(JAVA)
    # Each checkpoint raises a counter, and a steal by Java is in vain if one comes between its scan and its write.
    with fleet(shards=4, rate=30, aggregated=0.6) as run:
        run.put(40)
        first = joined(run, run.java("j1", JAVA, policy="every:7"), balanced=False)
        run.wait_for("the first records", lambda: run.missing() == 0)
        run.producer.start()
        second = joined(run, run.java("j2", JAVA, policy="every:5"))

        run.terminate(first)
        third = joined(run, run.multilangd("m1", successor_of="j1", policy="every:7"))
        run.reshard("split")
        run.put(60)
        run.wait_for("all shards with a lease", run.all_known)
        run.wait_until_balanced()
        run.terminate(second)
        fourth = joined(run, run.multilangd("m2", successor_of="j2", policy="every:5"))
        settle(run, third, fourth)

        run.terminate(third)
        fifth = joined(run, run.java("j3", JAVA))
        run.terminate(fourth)
        sixth = joined(run, run.java("j4", JAVA))
        settle(run, fifth, sixth)
        run.producer.stop()
        run.wait_until_delivered()
        inside = {worker.worker: checkpoints_inside(run, worker) for worker in (first, second, third, fourth)}
        evidence, figures = judged(
            run, "2 x 2.7.2, replaced by multilangd one by one, and back", listed=False
        )
    assert problems_of(evidence) == []
    assert (figures.lost, figures.out_of_order, figures.unexplained, figures.foreign) == (0, 0, 0, 0)
    assert figures.duplicates == duplicates(evidence)
    assert {"plain", "pykcl", "aws-kinesis-agg"} <= figures.made.keys()
    assert all(inside.values()), f"checkpoints within an aggregate: {inside}"
    assert {life.worker for life in evidence.lives} == {"j1", "j2", "m1", "m2", "j3", "j4"}
    handed_over = {life.worker for life in evidence.lives if life.start[1] > 0}
    assert handed_over, "somebody went on within an aggregate"
    assert evidence.processes["m1"].code == evidence.processes["m2"].code == 0


def joined(run, worker, *, balanced=True):
    run.wait_until_started(worker)
    if balanced:
        run.wait_until_balanced()
    return worker


def settle(run, *workers):
    """Until each has delivered at balance."""
    before = {worker: run.delivered(worker) for worker in workers}
    run.wait_for(
        "all to deliver at balance", lambda: all(run.delivered(worker) > before[worker] for worker in workers)
    )
    assert run.balanced()


def checkpoints_inside(run, worker):
    """How many it was confirmed with a sub-sequence number."""
    found = complete_lines(run.folder / f"{worker.worker}.jsonl")
    return sum(line["what"] == "checkpoint" and not line["at"].endswith(":0") for line in found)
