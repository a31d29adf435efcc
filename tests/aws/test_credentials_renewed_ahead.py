"""Credentials are renewed ahead of time in threads of their own: a source that hangs holds up no request, and is named
long before the credentials end.
"""

import re
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest
from botocore.utils import ContainerMetadataFetcher
from calls import call_all, waiting_for
from credential_sources import SOURCES

from pykcl.aws.clients import connect
from pykcl.aws.errors import CredentialsFailed
from pykcl.aws.renewed_credentials import RenewedCredentials
from pykcl.config import Config
from pykcl.errors import TemporaryError
from pykcl.events import FailureResolved, FailureStarted, LeaseLost
from pykcl.processor import RecordProcessor
from pykcl.runtime import SystemRuntime
from pykcl.status import Activity
from pykcl.worker.worker import Worker

TWELVE_MINUTES_LEFT = timedelta(hours=2, minutes=48)
WAYS = pytest.mark.parametrize("way", ["boto3", "auto"])


@pytest.fixture(params=SOURCES)
def source(request, between, tmp_path, monkeypatch):
    """One that has given credentials for three hours; whoever asks it waits for a minute at least."""
    found = request.param(tmp_path, monkeypatch)
    for service in ("KINESIS", "DYNAMODB"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", between.url)
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "60")
    monkeypatch.setattr(ContainerMetadataFetcher, "TIMEOUT_SECONDS", 60)
    monkeypatch.setattr("pykcl.aws.renewed_credentials._LASTING", 0.3)
    monkeypatch.setattr("pykcl.aws.renewed_credentials._LONGEST_PAUSE", 1.0)
    found.come("AKID1")
    yield found
    found.close()


def opened(way):
    table, stream = connect(
        Config(application="orders-app", stream="orders", http_transport=way), SystemRuntime()
    )
    call_all(table, stream)
    call_all(table, stream)
    return table, stream


def signed_with(between):
    return {re.search(r"Credential=(\w+)/", headers["authorization"])[1] for _, headers, _ in between.seen}


@WAYS
def test_requests_use_what_is_valid_while_the_source_hangs_and_it_is_named(between, source, way):
    table, stream = opened(way)
    source.hang()
    source.pass_by(TWELVE_MINUTES_LEFT)
    for _ in range(3):
        call_all(table, stream)
    waiting_for(stream.credentials_trouble)
    text = str(stream.credentials_trouble())
    assert f"AWS credentials are not renewed: {source.name} (no answer for " in text
    assert "those in use end at 20" in text
    assert stream.credentials_trouble().code == "E04"
    assert signed_with(between) == {"AKID1"}
    source.life = timedelta(hours=9)
    source.come("AKID2")
    waiting_for(lambda: stream.credentials_trouble() is None)
    between.seen.clear()
    call_all(table, stream)
    assert signed_with(between) == {"AKID2"}
    assert stream.transport == "boto3" if way == "boto3" else stream.transport.startswith("direct")


@WAYS
def test_a_source_that_refuses_is_named_long_before_the_credentials_end(between, source, way):
    table, stream = opened(way)
    source.refuse()
    source.pass_by(TWELVE_MINUTES_LEFT)
    waiting_for(lambda: call_all(table, stream) or table.credentials_trouble())
    text = str(table.credentials_trouble())
    assert source.name in text
    assert "those in use end at 20" in text
    assert signed_with(between) == {"AKID1"}
    source.life = timedelta(hours=9)
    source.come("AKID2")
    waiting_for(lambda: table.credentials_trouble() is None)


@WAYS
def test_no_request_waits_long_once_they_have_ended(between, source, way, monkeypatch):
    _, stream = opened(way)
    source.hang()
    monkeypatch.setattr("pykcl.aws.renewed_credentials.PATIENCE", 0.2)
    source.pass_by(timedelta(hours=4))
    between.seen.clear()
    with pytest.raises(TemporaryError, match=re.escape(source.name)) as raised:
        stream.describe()
    assert raised.value.code == "E04"
    assert between.seen == [], "nothing is sent with keys whose time is over"


class Moment(RecordProcessor):
    """delivered_at: by the data of each record, when it came, monotonic seconds."""

    delivered_at = None

    def process_records(self, batch):
        now = SystemRuntime().monotonic()
        self.delivered_at.update((record.data, now) for record in batch.records)


def longest_pauses(between, delivered_at):
    """Put a record into each of two shards, and the next ones once they are delivered, four times; the longest that one
    took, by shard, in seconds."""
    taken = {0: [], 1: []}
    for number in range(4):
        put_at = SystemRuntime().monotonic()
        records = {shard: b"%d of %d" % (number, shard) for shard in taken}
        for shard, data in records.items():
            between.kinesis.put_record("two", data, "key", shard << 127)
        waiting_for(lambda records=records: delivered_at.keys() >= set(records.values()))
        for shard, data in records.items():
            taken[shard].append(delivered_at[data] - put_at)
    return [max(seconds) for seconds in taken.values()]


@WAYS
def test_a_worker_reads_on_and_keeps_its_leases_while_the_source_hangs(between, source, way):
    between.kinesis.create_stream("two", 2)
    delivered_at, events = {}, []
    worker = Worker(
        "two-app",
        stream="two",
        processor=type("Kept", (Moment,), {"delivered_at": delivered_at}),
        initial_position="TRIM_HORIZON",
        http_transport=way,
        failover_time=60.0,
        on_event=events.append,
    )

    def renewal(kind):
        return [e for e in events if isinstance(e, kind) and e.what == Activity.RENEWING_CREDENTIALS]

    with worker:
        assert worker.wait_ready(120)
        source.hang()
        source.pass_by(TWELVE_MINUTES_LEFT)
        pauses = longest_pauses(between, delivered_at)
        assert max(pauses) < 3.0, f"seconds by shard: {pauses}"
        waiting_for(lambda: renewal(FailureStarted))
        assert source.name in renewal(FailureStarted)[0].cause
        source.life = timedelta(hours=9)
        source.come("AKID2")
        waiting_for(lambda: renewal(FailureResolved))
    assert not [event for event in events if isinstance(event, LeaseLost)]
    causes = {event.what for event in events if isinstance(event, FailureStarted) and event.code == "E04"}
    assert causes == {Activity.RENEWING_CREDENTIALS}


# -- without a server ------------------------------------------------------------------------------------------


class ByHand(SystemRuntime):
    """Its threads run when they are let, and its clock stands."""

    def __init__(self):
        self.now, self.bodies = 1000.0, []

    def monotonic(self):
        return self.now

    def spawn(self, name, body):
        self.bodies.append(body)
        return SimpleNamespace(name=name, is_alive=lambda: body in self.bodies, join=lambda _: None)

    def run(self):
        self.bodies.pop()()


class Ends(SimpleNamespace):
    def refresh_needed(self, seconds=None):
        return self.left < (15 * 60 if seconds is None else seconds)


@pytest.fixture
def kept(monkeypatch):
    """Credentials with 12 minutes left. made: as many as were asked for; fails: what the source raises."""
    runtime, state = ByHand(), SimpleNamespace(made=[], fails=None, left=12 * 60.0)

    def ask(_):
        if state.fails:
            raise state.fails
        state.made.append(Ends(left=state.left, method="container-role"))
        return state.made[-1]

    monkeypatch.setattr(
        "pykcl.aws.renewed_credentials._with_keys",
        lambda found: (found, SimpleNamespace(access_key=f"A{len(state.made)}", secret_key="", token="")),
    )
    monkeypatch.setattr("pykcl.aws.renewed_credentials._renewed", lambda _: ask(None))
    state.found = RenewedCredentials(ask, ask, runtime)
    with pytest.raises(CredentialsFailed):
        state.found.get_frozen_credentials()
    runtime.run()
    state.runtime = runtime
    return state


def use(kept, seconds):
    """Ask for the keys every second; return how many attempts began."""
    before = len(kept.runtime.bodies)
    for _ in range(seconds):
        assert kept.found.get_frozen_credentials().access_key
        kept.runtime.now += 1
    return len(kept.runtime.bodies) - before


def test_one_attempt_is_under_way_at_a_time_and_a_few_once_each_has_hung_for_a_minute(kept):
    kept.runtime.now += 60
    assert use(kept, 59) == 1
    assert use(kept, 2) == 1
    assert use(kept, 600) == 2
    assert use(kept, 600) == 0, "four threads at most"


def test_what_comes_late_is_taken_unless_another_attempt_was_quicker(kept):
    kept.runtime.now += 60
    use(kept, 70)
    assert len(kept.runtime.bodies) == 2
    kept.left = 3 * 3600.0
    kept.runtime.run()
    assert kept.found.get_frozen_credentials().access_key == "A2"
    kept.runtime.run()
    assert kept.found.get_frozen_credentials().access_key == "A2"


def test_a_source_that_refuses_is_asked_again_with_growing_pauses(kept):
    kept.fails = OSError("refused")
    at = []
    for _ in range(600):
        kept.found.get_frozen_credentials()
        if kept.runtime.bodies:
            at.append(kept.runtime.now)
            kept.runtime.run()
        kept.runtime.now += 1
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses[-3:] == [60, 60, 60]
    assert sorted(pauses) == pauses


def test_a_renewal_that_is_late_for_some_seconds_is_trouble_and_none_before(kept):
    kept.runtime.now += 60
    assert kept.found.trouble() is None
    kept.runtime.now += 9
    assert kept.found.trouble() is None
    kept.runtime.now += 2
    assert "the credentials agent of the container (no answer for 11 s)" in str(kept.found.trouble())
    kept.left = 3 * 3600.0
    kept.runtime.run()
    assert kept.found.trouble() is None


def test_a_source_that_has_no_others_yet_is_no_trouble_until_they_end_soon(kept):
    for _ in range(120):
        assert kept.found.trouble() is None
        if kept.runtime.bodies:
            kept.runtime.run()
        kept.runtime.now += 1
    kept.left = kept.made[-1].left = 50.0
    for _ in range(30):
        kept.found.trouble()
        if kept.runtime.bodies:
            kept.runtime.run()
        kept.runtime.now += 1
    assert "end within a minute" in str(kept.found.trouble())


def test_credentials_without_a_thread_are_obtained_in_the_one_that_needs_them(kept, monkeypatch):
    """As when the program ends, and Python begins no thread any more."""

    def none(*_):
        raise TemporaryError("no thread")

    monkeypatch.setattr(kept.runtime, "spawn", none)
    kept.runtime.now += 60
    assert kept.found.get_frozen_credentials().access_key == "A1"
    kept.made[-1].left = -1.0
    assert kept.found.get_frozen_credentials().access_key == "A2"
