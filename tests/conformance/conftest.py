"""The backends of the two suites, and the known differences applied to their cases."""

import itertools
import os
import re
import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "verify_aws"))

import npm_emulators
from aws_backend import AwsStreams, SharedTableBackend
from conformance_report import CASE, refuse_unlisted
from known_differences import AWS, FROM_NPM, KNOWN, LEAN, SLOW, SUITES
from lease_backend import Backend, LeanClient, SteppingRuntime, local_client
from requests_backend import ITEM, asking
from stream_backend import KinesisLocalBackend, ModelBackend, WireBackend
from verify_account import Account

from pykcl.local.server import LocalAws
from pykcl.stores.sqlite import SQLiteClient
from pykcl.testing.memory.dynamodb import MemoryDynamoDB

FIXTURES = {"service": "lease tables", "streams": "streams"}
NUMBERS = itertools.count(1)
DIFFERENCE = pytest.StashKey()


# -- which cases there are -------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc):
    for fixture, suite in FIXTURES.items():
        if fixture in metafunc.fixturenames:
            with_npm = metafunc.config.getoption("--npm")
            backends = [one for one in SUITES[suite] if with_npm or one not in FROM_NPM]
            if not metafunc.module.__name__.rpartition(".")[2].startswith("test_lease_table"):
                # It is pykcl's own; the other files ask the emulator alone.
                backends = [one for one in backends if one != LEAN]
            if metafunc.config.getoption("--aws-prefix"):
                backends = [AWS]
            params = [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in backends]
            metafunc.parametrize(fixture, params, indirect=True, scope="function")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    known = {(one.backend, case): one for one in KNOWN for case in one.cases}
    if "AWS_ENDPOINT_URL" in os.environ:
        # No account at all but the local AWS: then it differs as that does.
        known |= {(AWS, case): one for (backend, case), one in known.items() if backend == "local_aws"}
    for item in items:
        found = backend_and_case(item)
        if found is None:
            continue
        suite, backend, case = found
        item.user_properties.append((CASE, (suite, backend, case)))
        if difference := known.get((backend, case)):
            item.stash[DIFFERENCE] = difference
            item.add_marker(pytest.mark.xfail(strict=True, reason=difference.differs))
    refuse_differences_of_no_case(config, items, known)


def backend_and_case(item):
    """(suite, backend, case) of a test item, or None for one that is no case of a suite."""
    callspec = getattr(item, "callspec", None)
    for fixture, suite in FIXTURES.items():
        if callspec is not None and fixture in callspec.params and item.path.parent == Path(__file__).parent:
            backend = callspec.params[fixture]
            rest = re.sub(rf"^{backend}-?|-?{backend}$", "", callspec.id, count=1)
            name = item.originalname.removeprefix("test_")
            return suite, backend, f"{name}[{rest}]" if rest else name
    return None


def refuse_differences_of_no_case(config, items, known):
    """An entry whose case is gone would stand for ever. Only a whole collection can tell."""
    if not config.getoption("--npm") or any("::" in argument for argument in config.args):
        return
    seen = {found[1:] for item in items if (found := backend_and_case(item))}
    files = {item.path.name for item in items if backend_and_case(item)}
    if files >= {path.name for path in Path(__file__).parent.glob("test_*_suite.py")}:
        gone = sorted(case for case in known if case not in seen)
        if gone:
            raise pytest.UsageError(f"known differences of cases that do not exist: {gone}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    difference = item.stash.get(DIFFERENCE, None)
    if difference is not None and call.excinfo is not None and report.outcome == "skipped":
        refuse_unlisted(report, difference, call.excinfo.value)
    return report


# -- backends --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def local_aws():
    with LocalAws() as aws:
        yield aws


@pytest.fixture(scope="session")
def local_aws_client(local_aws):
    return local_client("dynamodb", local_aws.url)


@pytest.fixture(scope="session")
def sqlite_client(tmp_path_factory):
    return SQLiteClient(tmp_path_factory.mktemp("store") / "leases.db", 2.0)


@pytest.fixture(scope="session")
def dynalite_client():
    with started(npm_emulators.dynalite) as emulator:
        yield local_client("dynamodb", emulator.url)


@pytest.fixture(scope="session")
def kinesis_local():
    with started(npm_emulators.kinesis_local) as emulator:
        yield KinesisLocalBackend(emulator)


@pytest.fixture(scope="session")
def wire():
    with WireBackend() as service:
        yield service


@pytest.fixture(scope="session")
def wire_boto3(wire):
    return wire.read(http_transport="boto3")


@pytest.fixture(scope="session")
def wire_json(wire):
    return wire.read(http_transport="direct", record_encoding="json")


@pytest.fixture(scope="session")
def wire_cbor(wire):
    return wire.read(http_transport="direct", record_encoding="cbor")


def started(make):
    """The emulator, or a skipped test that says why there is none."""
    try:
        return make()
    except npm_emulators.Unavailable as reason:
        return pytest.skip(f"{make.__name__.replace('_', '-')} SKIPPED: {reason}")


@pytest.fixture(scope="session")
def account(request):
    return Account(request.config.getoption("--aws-prefix"))


@pytest.fixture(scope="session")
def aws(account):
    return AwsStreams(account)


@pytest.fixture
def service(request):
    """A lease table of a backend, its client, and a look at its rows."""
    backend, name = request.param, f"leases-{next(NUMBERS)}"
    if backend == AWS:
        return SharedTableBackend(request.getfixturevalue("account"))
    if backend == LEAN:
        return Backend(request.getfixturevalue("local_aws_client"), SteppingRuntime(), name, LeanClient)
    client = MemoryDynamoDB() if backend == "memory" else request.getfixturevalue(f"{backend}_client")
    return Backend(client, SteppingRuntime(), name)


@pytest.fixture
def ask(service):
    """ask("update_item", …) on the table that holds ITEM: the answer, without what HTTP adds."""
    service.put_item(ITEM)
    return asking(service)


@pytest.fixture
def streams(request):
    """A Kinesis of a backend: makes streams, puts, reshards, moves the clock."""
    service = ModelBackend() if request.param == "model" else request.getfixturevalue(request.param)
    yield service
    if request.param == AWS:
        service.remove_streams()
