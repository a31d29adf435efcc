"""A start at LATEST: nothing is skipped that is put once the application is ready."""

from pykcl.local.errors import AwsError
from pykcl.testing.fleet import RecordingProcessor


def test_nothing_put_after_a_latest_application_was_called_ready_is_skipped_though_reading_begins_late(
    new_fleet,
):
    fleet = new_fleet(shards=2)
    old = fleet.put(4, prefix="old")
    fleet.simulation.sleep(3)

    class SlowToStart(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            fleet.simulation.sleep(10)

    fleet.start("w1", initial_position="LATEST", processor=lambda: SlowToStart("w1", fleet.ledger))
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"} and len(fleet.owners()) == 2)
    new = fleet.put(10, prefix="new")
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)


def test_a_latest_start_whose_processor_first_fails_loses_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    attempts = []

    class Shy(RecordingProcessor):
        def initialize(self, init):
            attempts.append(1)
            if len(attempts) < 5:
                raise ValueError
            super().initialize(init)

    fleet.start("w1", initial_position="LATEST", processor=lambda: Shy("w1", fleet.ledger))
    fleet.wait(lambda: attempts)
    fleet.wait_delivered(fleet.put(10))


def test_one_stray_resource_not_found_during_a_start_at_latest_does_not_stop_the_worker(new_fleet):
    fleet = new_fleet(shards=2)
    hit = []

    def fault(operation, stream, shard):
        if operation == "GetShardIterator" and not hit:
            hit.append(shard)
            raise AwsError("ResourceNotFoundException", "a blip")

    fleet.kinesis.fault = fault
    worker = fleet.start("w1", initial_position="LATEST")
    assert worker.wait_ready(60)
    assert hit
    fleet.wait_delivered(fleet.put(6))
    assert worker.failure is None


def test_the_open_iterator_of_a_lease_that_a_peer_took_is_let_go(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", initial_position="LATEST", max_leases=1)
    fleet.wait(lambda: len(worker._manager._sync._latest.opened) == 1, what="the iterator of the other lease")
    fleet.start("w2", initial_position="LATEST")
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1", "w2"})
    fleet.wait(lambda: not worker._manager._sync._latest.opened, 10, "letting it go")
