"""planning.assignment_decider: in a quiet fleet no lease moves, and a hot worker is relieved as soon as before."""

import pytest
from quiet_fleet import DAY, KINDS, LEASES, moves, relief

FLEETS = pytest.mark.parametrize("leases", LEASES)
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
HOT = [kind for kind in KINDS if kind.cpu is not None or kind.rate > 1]


@OF_EACH_KIND
@pytest.mark.parametrize("leases", [12, 160])
def test_no_lease_moves_in_two_quiet_hours(kind, leases):
    """Java 3.5.1 moves hundreds: some worker is always a tenth above the average for a minute."""
    assert moves(kind, leases, 120, steady=True) == 0


def test_the_rule_of_java_moves_leases_in_the_same_hours():
    found = {
        (kind.name, leases): moves(kind, leases, 120, steady=False) for kind in KINDS for leases in (12, 160)
    }
    assert found["1 % CPU", 12] > 0
    for name in ("1 % CPU", "2 % CPU", "5 % CPU", "no CPU, a record every 10 s"):
        assert found[name, 160] > 100, name
    assert found["no CPU, a record every 10 s", 12] > 100


@pytest.mark.parametrize("kind", HOT, ids=lambda kind: kind.name)
@pytest.mark.parametrize("leases", [12, 160])
def test_a_hot_worker_is_relieved_as_soon_as_by_java(kind, leases):
    by_java, ours = relief(kind, leases)
    assert ours == by_java
    assert by_java is None or by_java <= 3


@pytest.mark.slow
@pytest.mark.timeout(600)
@OF_EACH_KIND
@FLEETS
def test_no_lease_moves_in_a_quiet_day(kind, leases):
    assert moves(kind, leases, DAY, steady=True) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", HOT, ids=lambda kind: kind.name)
def test_a_hot_worker_with_many_leases_is_relieved_as_soon_as_by_java(kind):
    assert len(set(relief(kind, max(LEASES)))) == 1
