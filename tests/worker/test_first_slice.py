"""One record from put_record through process_records to a checkpoint row."""

from pykcl.testing.fleet import Fleet
from pykcl.testing.simulation import Simulation


def test_a_record_goes_from_put_record_through_the_processor_to_a_checkpoint_row():
    with Simulation(seed=1) as simulation:
        fleet = Fleet(simulation, shards=2)
        payloads = fleet.put(10)
        worker = fleet.start("w1")
        fleet.wait_delivered(payloads)
        fleet.wait(lambda: all(not lease.checkpoint.is_sentinel for lease in fleet.rows().values()))
        worker.stop()
        assert fleet.ledger.duplicates == 0
        assert set(fleet.owners().values()) == {None}
