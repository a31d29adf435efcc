"""Fleets of pykcl and real Java workers. They take minutes and need Java and Maven: `--java` runs them."""

import json
import pickle
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
from native_verdict import NativeFigures, problems_of
from native_verdict import figures_of as native_figures_of
from native_verdict import report as native_report

from pykcl.demo.java import Unavailable, locked

TRAINED_AS = {"3.1.3": java_worker.COMPATIBLE, "3.5.1": java_worker.PHASE_1}
"""Modes in which the classes of 3.x are gathered; 2.x knows none."""
LONGEST = (
    "test_java_scenarios.py", "test_java_daemons_of_kclpy.py", "test_kclpy_programs.py", "test_java_native_fleets.py",
    "test_java_fleets.py", "test_java_native_leaders.py", "test_java_native_states.py", "test_rolling_migration.py",
)  # fmt: skip
"""Files that run first, so that no process is left with one of them at the end."""
TOGETHER = ("test_java_scenarios.py", "test_kclpy_programs.py")
"""Files whose tests run in one process, one after the other: those of the first share what it has run, each of the second
starts a dozen programs at once. Of all others the tests run one by one, in any process."""


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
def control(request, tmp_path_factory, java, fleet):
    """control(version, mode): the `Control` of two such Java workers and nobody else, run when it is first asked for, in
    whichever process of this run that is."""
    shared = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        shared = shared.parent

    @cache
    def of(version, mode):
        java(version)
        with locked(shared / f"control-{version}-{mode}"):
            file = shared / f"control-{version}-{mode}" / "control.pickle"
            if not file.exists():
                file.write_bytes(pickle.dumps(control_run(fleet, version, mode)))
            return pickle.loads(file.read_bytes())

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


@pytest.fixture
def led(record_property):
    """led(fleet, name): ends a fleet that a leader of KCL 3.x runs, and checks that nothing is lost and all is in order.

    Returns evidence and figures, which are shown on the terminal and stand in docs/guides/mixed-fleet.md. kinds: of
    workers that do not say it themselves. leaders, rest: see `native_verdict.figures_of`.
    """

    def end(run, name, *, kinds=None, **more) -> tuple[object, NativeFigures]:
        evidence = run.finish()
        figures = native_figures_of(evidence, name, {**run.kinds(), **(kinds or {})}, **more)
        record_property(interop_report.REPORT, native_report(evidence, figures))
        record_property(interop_report.NATIVE, json.dumps(figures.as_json()))
        assert problems_of(evidence) == []
        return evidence, figures

    return end


@pytest.fixture(scope="session")
def long(request):
    """True if repetitions and full lengths are asked for."""
    return request.config.getoption("--long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        long_ones = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long_ones)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if config.getoption("--java"):
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Return what gives the tests to processes with `--dist loadscope`; any other choice is xdist's own."""
    from xdist.scheduler import LoadScopeScheduling

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if file.endswith(TOGETHER) else nodeid

    return OneByOne(config, log) if config.getoption("dist") == "loadscope" else None
