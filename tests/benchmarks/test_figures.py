import pytest

from benchmarks.figures import Ratio, Spread, paired_ratio, quantile


def test_a_quantile_lies_between_its_neighbours():
    assert quantile([4, 1, 3, 2], 0.0) == 1
    assert quantile([4, 1, 3, 2], 1.0) == 4
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2], 0.25) == 1.25
    assert quantile([7], 0.99) == 7


def test_a_spread_is_the_median_and_the_quarter_points():
    assert Spread.of([5, 1, 3, 2, 4]) == Spread(3, 2, 4)


def test_a_spread_of_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_a_ratio_is_that_of_neighbours_in_time():
    # The machine got slower from round to round, and both with it: the ratio of the medians would be the same, but
    # that of unpaired values would have an interval from 0.5 to 32.
    found = paired_ratio([8, 16, 32, 64], [2, 4, 8, 16])

    assert found == Ratio(4, 4, 4)


def test_the_interval_holds_the_median_and_widens_with_the_noise():
    calm = paired_ratio([40, 41, 39, 40, 42, 40], [10] * 6)
    noisy = paired_ratio([20, 60, 39, 80, 10, 40], [10] * 6)

    assert calm.low <= calm.median <= calm.high
    assert calm.high - calm.low < 0.3
    assert noisy.high - noisy.low > 2


def test_the_interval_is_the_same_at_each_look():
    assert paired_ratio([3, 4, 5], [1, 1, 2]) == paired_ratio([3, 4, 5], [1, 1, 2])


def test_one_round_has_an_interval_of_no_width():
    assert paired_ratio([6], [2]) == Ratio(3, 3, 3)


@pytest.mark.parametrize(("theirs", "ours"), [([1, 2], [1]), ([], [])])
def test_what_is_not_in_pairs_is_refused(theirs, ours):
    with pytest.raises(ValueError, match="no pairs"):
        paired_ratio(theirs, ours)


@pytest.mark.parametrize(("theirs", "ours"), [([1.0], [0.0]), ([-0.1], [1.0])])
def test_a_measurement_that_is_not_positive_is_refused(theirs, ours):
    with pytest.raises(ValueError, match="not positive"):
        paired_ratio(theirs, ours)
