"""Reading by enhanced fan-out: pushed records, subscriptions that end, are taken over or say nothing, and hand-overs."""

from pykcl.testing.fleet import STREAM


def push(fleet, name="w1", **options):
    return fleet.start(name, retrieval="fanout", **options)


def test_records_are_pushed_and_delivered_as_they_come(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(20)
    push(fleet)
    fleet.wait_delivered(put)
    for _ in range(5):
        began = fleet.simulation.now
        fleet.wait_delivered(fleet.put(1))
        assert fleet.simulation.now - began < 0.05
    assert fleet.ledger.duplicates == 0
