"""Java workers that read by enhanced fan-out, Java's default, beside pykcl workers that poll, on one lease table."""

import pytest
from fleet_evidence import REQUESTS
from fleet_recording import complete_lines
from interop_verdict import problems_of
from java_worker import PHASE_1

pytestmark = pytest.mark.timeout(900)

FAN_OUT = {"retrievalMode": "FANOUT"}
READS = {"GetRecords", "SubscribeToShard"}


@pytest.mark.parametrize(("version", "mode"), [("2.7.2", None), ("3.5.1", PHASE_1)])
def test_leases_go_to_and_fro_between_fan_out_and_polling(java, fleet, judged, version, mode):
    java(version)
    with fleet(shards=4, rate=60) as run:
        polling = run.pykcl("p1", work=0.005)
        run.wait_until_started(polling)
        run.wait_for("leases", run.all_known)
        pushed = run.java("j1", version, mode=mode, properties=FAN_OUT)
        run.producer.start()
        run.wait_until_started(pushed)
        run.wait_until_balanced()
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(40)
            run.wait_for("all shards with a lease", run.all_known)
        run.wait_until_balanced()
        run.kill(polling)
        run.wait_until_balanced()
        successor = run.pykcl("p2", work=0.005)
        run.wait_until_started(successor)
        run.wait_until_balanced()
        run.kill(pushed)
        run.wait_until_balanced()
        run.producer.stop()
        run.wait_until_delivered()
        evidence, figures = judged(run, f"pykcl + {version} with fan-out", listed=False)
        asked = {
            line["operation"]
            for line in complete_lines(run.folder / REQUESTS)
            if line["service"] == "kinesis"
            and line["operation"] in READS
            and "java" in line["user_agent"].lower()
        }
    assert problems_of(evidence) == []
    assert (figures.lost, figures.out_of_order, figures.unexplained, figures.foreign) == (0, 0, 0, 0)
    assert asked == {"SubscribeToShard"}
