"""Decisions of our leader lie among those of Java's own, asked of the class that decides, in the jars of 3.5.1."""

import json
import os
import sys
from pathlib import Path
from random import Random

import java_jars
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "planning"))

from assignment_vectors import MOST, TIMES, ask_java, decided, result_of, results_in, tables

COUNT = 1000


@pytest.mark.timeout(600)
def test_c17_every_decision_is_one_that_java_could_take(java):
    """Java decides twenty times about each table, and about one with many possible results until ours has come."""
    java("3.5.1")
    asked = tables(COUNT)
    ours = [result_of(table, decided(table, Random(table["seed"]))) for table in asked]
    assert sum(map(bool, ours)) > COUNT // 2
    questions = [
        {**table, "times": TIMES, "most": MOST, "wanted": wanted}
        for table, wanted in zip(asked, ours, strict=True)
    ]
    answers = ask_java(os.pathsep.join(map(str, java_jars.resolved("3.5.1"))), questions)
    assert min(answer["times"] for answer in answers) == TIMES
    for table, wanted, answer in zip(asked, ours, answers, strict=True):
        assert wanted in results_in(answer), json.dumps(table)
    assert sum(len(answer["results"]) == 1 for answer in answers) > COUNT // 2
