"""Evidence that something does not exist."""

from pykcl.model.absence import Absence


def test_the_same_answer_twice_some_seconds_apart_is_proof():
    absence = Absence()
    assert not absence.is_fresh(100.0)
    assert not absence.is_proven(100.0)
    assert absence.is_fresh(102.0)
    assert not absence.is_proven(102.0)
    assert not absence.is_fresh(103.0)
    assert absence.is_proven(103.0)


def test_an_answer_that_it_is_there_begins_anew():
    absence = Absence()
    assert not absence.is_proven(100.0)
    assert absence.seconds(107.0) == 7.0
    absence.found()
    assert absence.seconds(107.0) == 0.0
    assert not absence.is_proven(110.0)


def test_two_mistakes_far_apart_prove_nothing():
    absence = Absence()
    assert not absence.is_proven(100.0)
    assert not absence.is_proven(800.0)
    assert absence.is_proven(804.0)


def test_a_command_believes_the_first_answer():
    assert Absence(0.0).is_proven(100.0)
