"""Fleets of pykcl and real Java workers. They take minutes and need Java and Maven: `--java` runs them."""

import json
import sys
from functools import cache
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

import interop_report
import java_worker
import npm_emulators
from interop_figures import errors_beyond, figures_of, report
from interop_fleet import Fleet
from java_alone import control_run, errors_of

from pykcl.demo.java import Unavailable

TRAINED_AS = {"3.1.3": java_worker.COMPATIBLE, "3.5.1": java_worker.PHASE_1}
"""Modes in which the classes of 3.x are gathered; 2.x knows none."""


@pytest.fixture(scope="session")
def java(request, tmp_path_factory):
    """java("2.7.2"): makes sure that there is one to start, or skips the test and says loudly why there is none."""

    def ready(version):
        if not request.config.getoption("--java"):
            pytest.skip(interop_report.NOT_RUN)
        try:
            java_worker.train(version, tmp_path_factory.mktemp("train"), TRAINED_AS.get(version))
        except Unavailable as reason:
            pytest.skip(f"Java {version} SKIPPED: {reason}")
        return version

    return ready


@pytest.fixture(scope="session")
def fleet(request, tmp_path_factory):
    """fleet(shards=…): a Fleet, to be entered."""

    def made(**more):
        kinesis = request.config.getoption("--kinesis")
        if kinesis != "local":
            try:
                npm_emulators.installed()
            except npm_emulators.Unavailable as reason:
                pytest.skip(f"Java with {kinesis} SKIPPED: {reason}")
        options = dict(one.split("=", 1) for one in request.config.getoption("--worker-option"))
        return Fleet(tmp_path_factory.mktemp("fleet"), kinesis=kinesis, options=options, **more)

    return made


@pytest.fixture(scope="session")
def control(java, fleet):
    """control(version, mode): the `Control` of two such Java workers and nobody else, run when it is first asked for."""

    @cache
    def of(version, mode):
        java(version)
        return control_run(fleet, version, mode)

    return of


@pytest.fixture
def judged(record_property):
    """judged(fleet): ends it; its evidence, and its figures, shown on the terminal at the end even where the test passes.

    name: of a fleet for the summary, unless listed is false. control: ERROR lines of Java workers alone.
    """

    def end(run, name="", control=None, *, listed=True):
        evidence = run.finish()
        errors = errors_of(run)
        figures = figures_of(
            evidence, name or "a small fleet", run.kinds(), made=run.producer.made, balances=run.balances,
            errors=errors, beyond=None if control is None else errors_beyond(errors, control),
        )  # fmt: skip
        # The test runs in one of several processes; what it records reaches the one with the terminal.
        record_property(interop_report.REPORT, report(evidence, figures))
        if name and listed:
            record_property(interop_report.FIGURES, json.dumps(figures.as_json()))
        return evidence, figures

    return end
