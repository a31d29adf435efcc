"""C-18: a fleet of amazon_kclpy's own daemons with stock settings becomes one of pykcl, host by host, and goes back again."""

import java_jars
import kclpy_package
import pytest
from fleet_evidence import TABLE
from java_worker import make_leases
from kclpy_worker import DAEMON, IN_PROCESS, JARS, MULTILANGD
from native_fleet import Load, everybody_works, leader
from scenario_stories import has_index, table_of


@pytest.mark.timeout(1500)
def test_c18_stock_daemons_are_replaced_host_by_host_until_no_java_is_left_and_back(java, fleet, led):
    java(JARS)
    try:
        package = kclpy_package.unpacked()
    except kclpy_package.Unavailable as reason:
        pytest.skip(f"Java with the daemon of amazon_kclpy SKIPPED: {reason}")
    assert java_jars.resolved(JARS)
    with fleet(shards=8, aggregated=0.0) as run, table_of(run) as dynamodb, Load(run, 4) as load:
        make_leases(dynamodb, TABLE, run.open_ranges())
        first = run.kclpy("k1", package, DAEMON)
        run.wait_for("the index", lambda: has_index(dynamodb))  # two that make it at once fail
        second = run.kclpy("k2", package, DAEMON)
        everybody_works(run, first, second)
        if leader(run) == "k2":
            first, second = second, first

        third, fourth = (
            run.kclpy(*one) for one in (("m1", package, MULTILANGD), ("p1", package, IN_PROCESS))
        )
        replace(run, (second, first), (third, fourth))
        # The daemon does not release the lock when it is stopped, so it is free after two minutes.
        run.wait_for("pykcl to lead", lambda: leader(run) in ("m1", "p1"), 240)
        load_is_read(run, third, fourth)

        fifth, sixth = (run.kclpy(name, package, DAEMON) for name in ("k3", "k4"))
        replace(run, (third, fourth), (fifth, sixth))
        load_is_read(run, fifth, sixth)
        load.stop()
        run.wait_until_delivered()
        kinds = {one.worker: "kclpy" for one in (first, second, fifth, sixth)} | {
            "m1": "multilangd",
            "p1": "pykcl",
        }
        evidence, _ = led(
            run,
            "2 stock daemons of amazon_kclpy, replaced one by one, and back",
            kinds=kinds,
            leaders=[first.worker],
        )
        errors = [line for one in (first, second, fifth, sixth) for line in one.errors()]
    assert {life.worker for life in evidence.lives} == {"k1", "k2", "m1", "p1", "k3", "k4"}
    assert evidence.processes["m1"].code == evidence.processes["p1"].code == 0
    assert errors == []


def replace(run, olds, news):
    """Stop the old ones, host by host, once the new ones work beside them."""
    everybody_works(run, *olds, *news)
    for old in olds:
        run.terminate(old)
        run.wait_for(f"the leases of {old.worker} with others", run.all_begun, 240)


def load_is_read(run, *workers):
    before = {worker: run.delivered(worker) for worker in workers}
    run.wait_for("everybody to deliver", lambda: all(run.delivered(one) > before[one] for one in workers))
