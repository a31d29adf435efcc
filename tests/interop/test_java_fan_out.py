"""Enhanced fan-out, Java's default, beside polling, and by both sides with one consumer, on one lease table."""

import pytest
from fleet_evidence import REQUESTS
from fleet_recording import complete_lines
from interop_verdict import problems_of
from java_worker import PHASE_1

pytestmark = pytest.mark.timeout(900)

FAN_OUT, POLLING = {"retrievalMode": "FANOUT"}, {"retrievalMode": "POLLING"}
READS = {"GetRecords", "SubscribeToShard"}
BY_FAN_OUT = {"SubscribeToShard"}


@pytest.mark.parametrize(
    ("version", "mode", "properties", "retrieval"),
    [
        pytest.param("2.7.2", None, FAN_OUT, "polling", id="A-12-2.7.2"),
        pytest.param("3.5.1", PHASE_1, FAN_OUT, "polling", id="A-12-3.5.1"),
        pytest.param("2.7.2", None, POLLING, "fanout", id="A-13-2.7.2"),
        pytest.param("3.5.1", PHASE_1, FAN_OUT, "fanout", id="A-13-3.5.1-one-consumer"),
    ],
)
def test_leases_go_to_and_fro_between_fan_out_and_polling(
    java, fleet, judged, version, mode, properties, retrieval
):
    java(version)
    with fleet(shards=4, rate=60) as run:
        python = run.pykcl("p1", work=0.005, retrieval=retrieval)
        run.wait_until_started(python)
        run.wait_for("leases", run.all_known)
        jvm = run.java("j1", version, mode=mode, properties=properties)
        run.producer.start()
        run.wait_until_started(jvm)
        run.wait_until_balanced()
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(40)
            run.wait_for("all shards with a lease", run.all_known)
        run.wait_until_balanced()
        run.kill(python)
        run.wait_until_balanced()
        successor = run.pykcl("p2", work=0.005, retrieval=retrieval)
        run.wait_until_started(successor)
        run.wait_until_balanced()
        run.kill(jvm)
        run.wait_until_balanced()
        run.producer.stop()
        run.wait_until_delivered()
        how = "fan-out" if retrieval == "fanout" else "polling"
        evidence, figures = judged(
            run, f"pykcl by {how} + {version} {properties['retrievalMode']}", listed=False
        )
        asked: dict[bool, set[str]] = {True: set(), False: set()}
        for line in complete_lines(run.folder / REQUESTS):
            if line["service"] == "kinesis" and line["operation"] in READS:
                asked["java" in line["user_agent"].lower()].add(line["operation"])
    assert problems_of(evidence) == []
    assert (figures.lost, figures.out_of_order, figures.unexplained, figures.foreign) == (0, 0, 0, 0)
    assert asked[True] == (BY_FAN_OUT if properties is FAN_OUT else {"GetRecords"})
    assert asked[False] == (BY_FAN_OUT if retrieval == "fanout" else {"GetRecords"})
