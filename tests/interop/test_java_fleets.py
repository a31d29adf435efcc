"""Real Java workers alone and beside pykcl: every record arrives, in order, whoever comes and goes."""

import pytest
from interop_verdict import duplicates, problems_of
from java_alone import forms_of
from java_requests import is_seldom, recorded
from java_worker import COMPATIBLE, PHASE_1
from scenario_log import told_by
from scenario_owners import moved_once

pytestmark = pytest.mark.timeout(900)

KINDS = {
    "2.7.2": ("2.7.2", None),
    "3.1.3-compatible": ("3.1.3", COMPATIBLE),
    "3.5.1-phase-1": ("3.5.1", PHASE_1),
    "3.5.1-compatible": ("3.5.1", COMPATIBLE),
}
FLEETS = {
    "2 pykcl + 2 x 2.7.2": ["2.7.2", "2.7.2"],
    "2 pykcl + 3.5.1 COMPATIBLE_WITH_2X_PHASE1 + 2.7.2": ["3.5.1-phase-1", "2.7.2"],
    "2 pykcl + 3.1.3 COMPATIBLE_WITH_2X + 2.7.2": ["3.1.3-compatible", "2.7.2"],
    "2 pykcl + 3.5.1 COMPATIBLE_WITH_2X": ["3.5.1-compatible"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_java_workers_alone_lose_nothing_and_ask_what_they_were_recorded_asking(control, kind):
    alone = control(*KINDS[kind])
    assert problems_of(alone.evidence) == []
    known = recorded(*KINDS[kind])
    assert {form for form in known if not is_seldom(form)} <= alone.forms <= known


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_of_both_kinds_keeps_every_promise_through_deaths_stops_and_reshards(
    java, fleet, judged, control, name
):
    kinds = [KINDS[kind] for kind in FLEETS[name]]
    controls = {kind: control(*kind) for kind in kinds}
    with fleet(shards=4, rate=60) as run:
        story(run, kinds)
        evidence, figures = judged(run, name, [line for one in controls.values() for line in one.errors])
        asked = {kind: forms_of(run, *kind) for kind in kinds}
    assert problems_of(evidence) == []
    assert (figures.lost, figures.out_of_order, figures.unexplained, figures.foreign) == (0, 0, 0, 0)
    assert figures.pykcl_writes > 0
    assert {"plain", "pykcl", "aws-kinesis-agg"} <= figures.made.keys()
    assert figures.beyond == []
    for kind, forms in asked.items():
        assert forms
        assert forms <= recorded(*kind)
    done = {(what, figures.kinds[worker]) for what, worker in deeds(evidence)}
    java_kinds = {kind for kind in figures.kinds.values() if kind != "pykcl"}
    assert {("killed", "pykcl"), ("terminated", "pykcl"), ("frozen", "pykcl")} <= done
    assert {what for what, kind in done if kind in java_kinds} == {"killed", "terminated"}


def story(run, kinds):
    """One of each kind is killed and replaced, one of each kind is stopped, pykcl workers freeze; then the same once
    more with a single worker of each kind, so that leases go from pykcl to Java too."""
    # pykcl makes the leases: Java waits up to 30 s, drawn by lot, before it fills an empty table.
    first, second = run.pykcl("p1", work=0.005), run.pykcl("p2", work=0.005, policy="every:13")
    run.wait_until_started(first, second)
    run.wait_for("leases", run.all_known)
    java = [
        run.java(f"j{number}", version, mode=mode, policy="every:7" if number == 1 else "each")
        for number, (version, mode) in enumerate(kinds, 1)
    ]
    run.producer.start()
    run.wait_until_started(*java)
    run.wait_until_balanced()
    for what in ("split", "merge"):
        run.reshard(what)
        run.put(40)
        run.wait_for("all shards with a lease", run.all_known)
    run.wait_until_balanced()

    run.kill(first)
    run.wait_until_balanced()
    third = joined(run, run.pykcl("p3"))
    freeze(run, second)
    run.terminate(second)
    run.wait_until_balanced()
    run.kill(java[0])
    run.wait_until_balanced()
    version, mode = kinds[0]
    follower = joined(run, run.java("j3", version, mode=mode))
    for other in java[1:]:
        run.terminate(other)
        run.wait_until_balanced()

    freeze(run, third)
    run.kill(third)
    run.wait_until_balanced()
    fourth = joined(run, run.pykcl("p4"))
    run.terminate(fourth)
    run.wait_until_balanced()
    joined(run, run.pykcl("p5"))
    run.terminate(follower)
    run.wait_until_balanced()
    run.producer.stop()
    run.wait_until_delivered()


def joined(run, worker):
    run.wait_until_started(worker)
    run.wait_until_balanced()
    return worker


def freeze(run, worker):
    """Until all its leases have gone, and it has them again."""
    with run.frozen(worker):
        run.wait_for(f"all leases of {worker.worker} begun by others", run.all_begun)
    run.wait_until_balanced()


def deeds(evidence):
    """What was done to which worker."""
    for worker, process in evidence.processes.items():
        if process.killed:
            yield "killed", worker
        if process.terminated:
            yield "terminated", worker
        if process.freezes:
            yield "frozen", worker


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
        evidence, _ = judged(run)
    assert problems_of(evidence) == []
    assert moved_once(told_by(run.folder, evidence, {}), "p1", "j1") == []
    assert {life.worker for life in evidence.lives} == {"j1", "p1"}


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
            killed = run.pykcl("p1", policy="inside:2", checkpoint_mode="manual")
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
        evidence, _ = judged(run)
    began = [life for life in evidence.lives if life.worker == follower.worker]
    stood = {life.shard: life.start for life in began}
    assert {at[1] for at in stood.values()} == {2}
    behind = sum(item.at > stood[shard] for shard, items in evidence.records.items() for item in items)
    assert problems_of(evidence) == []
    assert duplicates(evidence) == behind > 0
