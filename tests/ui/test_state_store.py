"""What the charts remember, and what they forget."""

from fleet_table import ended, lease, shard

from pykcl.operate.states import LeaseState, LeaseStatus
from pykcl.operate.worker_status import WorkerReport
from pykcl.ui.state_store import GONE, LagHistory, OwnerHistory, RateHistory, Rates
from pykcl.ui.view import Measured


def test_a_lag_is_remembered_once_however_often_it_is_told():
    history = LagHistory(window=10_000)
    lag = {"a": Measured(5_000, 1.5, "Kinesis")}
    assert history.add(lag, 5_000) == {"a": (5_000, 1.5)}
    assert history.add(lag, 6_000) == {}
    assert history.add({"a": Measured(6_500, None, "Kinesis")}, 6_500) == {"a": (6_500, None)}
    assert history.all() == {"a": [(5_000, 1.5), (6_500, None)]}


def test_lag_before_the_window_is_forgotten_but_for_where_the_line_enters_it():
    history = LagHistory(window=10_000)
    for at in range(0, 30_000, 1_000):
        history.add({"a": Measured(at, 1.0, "x")}, at)
    points = history.all()["a"]
    assert points[0][0] <= 29_000 - 10_000 <= points[1][0]
    assert len(points) <= 12
    history.add({}, 60_000)
    assert history.all() == {}


def test_many_shards_are_remembered_less_often_so_that_memory_is_bounded():
    history = LagHistory()
    for at in range(0, 60_000, 1_000):
        history.add({str(key): Measured(at, 1.0, "x") for key in range(2_000)}, at)
    assert sum(map(len, history.all().values())) == 2_000 * 15


def states(*all_leases):
    return {one.key: LeaseStatus(one.key, state, one) for one, state in all_leases}


def test_who_had_a_lease_when_is_a_row_of_spans():
    history = OwnerHistory(window=100_000)
    history.add(states((lease(1, "a"), LeaseState.ACTIVE)), 1_000)
    assert history.add(states((lease(1, "a", counter=9), LeaseState.ACTIVE)), 2_000) == {}
    history.add(states((lease(1, "b"), LeaseState.ACTIVE)), 3_000)
    history.add(states((ended(1), LeaseState.ENDED)), 4_000)
    history.add({}, 5_000)
    spans = [(span.at, span.owner, span.state) for span in history.all()[shard(1)]]
    assert spans == [
        (1_000, "a", "ACTIVE"),
        (3_000, "b", "ACTIVE"),
        (4_000, None, "ENDED"),
        (5_000, None, GONE),
    ]
    history.add({}, 200_000)
    assert history.all() == {}
    assert history.parents == {}


def test_rates_are_what_totals_grow_by_in_a_second():
    history = RateHistory(step=1_000)
    assert history.add({"a": 100}, 1_000) is None
    assert history.add({"a": 150, "b": 7}, 1_500) is None
    assert history.add({"a": 300, "b": 7}, 3_000) == (3_000, {"a": 100.0})


def test_a_worker_whose_total_fell_or_is_not_told_is_unknown_and_not_zero():
    history = RateHistory(step=1_000)
    history.add({"a": 100, "b": 100}, 1_000)
    assert history.add({"a": 10, "b": 200}, 2_000) == (2_000, {"b": 100.0})
    assert history.add({"b": 200}, 3_000) == (3_000, {"b": 0.0})
    assert history.add({"a": 60, "b": 300}, 4_000) == (4_000, {"b": 100.0})


def test_without_anybody_who_counts_records_checkpoints_are_counted_and_called_so():
    rates = Rates(asks_workers=False)
    assert rates.unit == "checkpoints"
    rates.observe(0, {"a": 0, "b": 0}, [])
    rates.observe(5_000, {"a": 3, "b": 0}, [])
    assert rates.observe(10_000, {"a": 2, "b": 0}, []) == (10_000, {"a": 0.5, "b": 0.0})
    assert "--status-url" in rates.note


def test_workers_that_do_not_tell_their_records_are_said_to_be_missing():
    rates = Rates(asks_workers=True)
    assert rates.unit == "records"
    assert rates.observe(0, {"a": 4}, [WorkerReport("u", worker="a")]) is None
    assert "metrics=prometheus" in rates.note
    rates.observe(2_000, {"a": 0, "java": 0}, [WorkerReport("u", worker="a", records=10)])
    assert rates.observe(4_000, {"a": 0, "java": 0}, [WorkerReport("u", worker="a", records=30)]) == (
        4_000,
        {"a": 10.0},
    )
    assert rates.note.startswith("1 of 2 owners")
