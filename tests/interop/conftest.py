"""Fleets of pykcl and real Java workers. They take minutes and need Java and Maven: `--java` runs them."""

import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

import java_jars
import java_worker
import npm_emulators
from interop_fleet import Fleet
from interop_report import NOT_RUN
from interop_verdict import report

TRAINED_AS = {"3.1.3": java_worker.COMPATIBLE, "3.5.1": java_worker.PHASE_1}
"""Modes in which the classes of 3.x are gathered; 2.x knows none."""


@pytest.fixture(scope="session")
def java(request, tmp_path_factory):
    """java("2.7.2"): makes sure that there is one to start, or skips the test and says loudly why there is none."""

    def ready(version):
        if not request.config.getoption("--java"):
            pytest.skip(NOT_RUN)
        try:
            java_worker.train(version, tmp_path_factory.mktemp("train"), TRAINED_AS.get(version))
        except java_jars.Unavailable as reason:
            pytest.skip(f"Java {version} SKIPPED: {reason}")
        return version

    return ready


@pytest.fixture
def fleet(request, tmp_path):
    """fleet(shards=…): a Fleet, to be entered."""

    def made(**more):
        kinesis = request.config.getoption("--kinesis")
        if kinesis != "local":
            try:
                npm_emulators.installed()
            except npm_emulators.Unavailable as reason:
                pytest.skip(f"Java with {kinesis} SKIPPED: {reason}")
        return Fleet(tmp_path, kinesis=kinesis, **more)

    return made


@pytest.fixture
def judged(capsys):
    """judged(fleet): ends it; its evidence, reported on the terminal even where the test passes."""

    def end(fleet):
        evidence = fleet.finish()
        with capsys.disabled():
            print(f"\n{report(evidence, fleet.kinds(), fleet.java_errors())}")
        return evidence

    return end
