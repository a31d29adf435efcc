"""Java's own answer to who leads, asked of the class that decides it, in the jars of each version."""

import os
import shutil
import sys
from pathlib import Path

import java_jars
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "planning"))

from election_vectors import FIXTURE, ask_java, dump
from test_leader_election import JAVA


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", java_jars.POMS)
def test_the_jars_still_elect_whom_the_fixture_says(java, version):
    java(version)
    if shutil.which("jshell") is None:
        pytest.skip(
            f"ELECTION NOT COMPARED WITH JAVA {version}, ONLY WITH {FIXTURE.name}: there is no jshell"
        )
    answers = ask_java(os.pathsep.join(map(str, java_jars.resolved(version))))
    assert answers
    assert dump(answers) == dump({name: JAVA[name] for name in answers})
