"""The threads that send heartbeats: one of them as long as answers come, more while they do not."""

import pytest

from pykcl.errors import SetupError, TableGone, TemporaryError
from pykcl.event_dispatch import EventFan
from pykcl.events import LeaseLost, LeaseTaken
from pykcl.metrics.meter import Meter
from pykcl.testing.runtime import Simulation
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.lease_renewer import MAX_HELPERS, LeaseRenewer
from pykcl.worker.measurements import RenewalRounds


class Lease:
    """Stands for a HeldLease. takes: seconds until a heartbeat is answered."""

    is_over = was_released = fails = is_in_doubt = False
    error = TemporaryError

    def __init__(self, key, runtime, due, takes=0.0):
        self.key, self.runtime, self.takes = key, runtime, takes
        self.next_renewal, self.sent = due, []

    def next_heartbeat(self, again_at):
        return max(self.next_renewal, again_at)

    def renew_if_due(self, give):
        now = self.runtime.monotonic()
        if now < self.next_renewal - give:
            return False
        self.sent.append(now)
        if self.fails:
            raise self.error("nobody answers")
        if self.takes:
            self.runtime.event().wait(self.takes)
        self.next_renewal = now + 5.0
        return True


@pytest.fixture(params=range(5))
def renewing(request):
    """start(number of leases, takes): the leases, due in the order of their numbers, and their renewer."""
    with Simulation(seed=request.param) as simulation:
        runtime, renewers = simulation.runtime("w1"), []

        def start(count, takes=0.0, seconds=5.0):
            held = HeldLeases(runtime)
            leases = [
                Lease(f"s{number}", runtime, runtime.monotonic() + number * 0.001, takes)
                for number in range(count)
            ]
            for lease in leases:
                held.add(lease)
            trouble = FailureTracker(EventFan(()), runtime)
            renewer = LeaseRenewer(
                held,
                runtime,
                trouble,
                name="w1",
                on_fatal=lambda error: None,
                rounds=RenewalRounds(Meter(runtime), runtime, seconds),
            )
            renewer.start()
            renewers.append(renewer)
            return simulation, leases, renewer

        yield start
        for renewer in renewers:
            renewer.stop()
        simulation.run_until(lambda: simulation.unfinished("w1") == [], 60.0)


def helpers(renewer):
    return len(renewer.tasks) - 1


def test_one_thread_sends_all_heartbeats_while_answers_come_at_once(renewing):
    simulation, leases, renewer = renewing(20)
    simulation.sleep(60)
    assert helpers(renewer) == 1
    for lease in leases:
        assert len(lease.sent) >= 12


def test_a_heartbeat_that_waits_for_its_answer_delays_no_other_lease(renewing):
    simulation, leases, renewer = renewing(6)
    simulation.sleep(12)
    leases[0].takes = 30.0
    simulation.sleep(40)
    assert helpers(renewer) == 2
    for lease in leases[1:]:
        gaps = [later - earlier for earlier, later in zip(lease.sent, lease.sent[1:], strict=False)]
        assert max(gaps) <= 5.2


def test_slow_answers_bring_all_helpers_and_no_more(renewing):
    simulation, leases, renewer = renewing(20, takes=0.5)
    simulation.sleep(20)
    assert helpers(renewer) == MAX_HELPERS
    for lease in leases:
        assert lease.sent[0] <= leases[0].sent[0] + 0.5 * 20 / MAX_HELPERS + 0.5


@pytest.mark.parametrize("error", [TemporaryError, SetupError, TableGone])
def test_a_heartbeat_that_fails_is_tried_again_every_second_and_not_at_once(renewing, error):
    simulation, leases, renewer = renewing(4)
    simulation.sleep(12)
    failing, *others = leases
    failing.fails, failing.error = True, error
    since = simulation.now
    simulation.sleep(30)
    tries = [at for at in failing.sent if at >= since]
    assert 24 <= len(tries) <= 31
    assert all(len([at for at in other.sent if at >= since]) <= 7 for other in others)
    assert helpers(renewer) == 1


@pytest.mark.parametrize("failover", [1.0, 1.5, 2.0, 10.0])
def test_heartbeats_come_in_time_however_short_the_time_is(new_fleet, failover):
    fleet = new_fleet(shards=3)
    fleet.start("w1", failover_time=failover)
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 3)
    before = {key: lease.counter for key, lease in fleet.rows().items()}
    fleet.simulation.sleep(20 * failover)
    assert fleet.happened(LeaseLost) == []
    for key, lease in fleet.rows().items():
        assert 38 <= lease.counter - before[key] <= 45, "two for each failover time"


def test_who_fails_at_once_is_tried_again_before_a_short_time_is_over(renewing):
    simulation, leases, _ = renewing(2, seconds=0.5)
    leases[0].fails = True
    simulation.sleep(6)
    before = len(leases[0].sent)
    simulation.sleep(10)
    assert 80 <= len(leases[0].sent) - before <= 101


def test_all_helpers_end_when_they_are_told(renewing):
    simulation, _, renewer = renewing(20, takes=0.5)
    simulation.sleep(20)
    renewer.stop()
    asked = simulation.now
    simulation.run_until(lambda: not any(task.is_alive() for task in renewer.tasks), 10.0)
    assert simulation.now <= asked + 0.6
