"""`pykcl replay`: it delivers what arrived in a range of time, ends by itself, and says what it did."""

import logging
import os
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from service_kit import WRITES, Service, command, lead_to, written_by

from pykcl.cli import replay
from pykcl.cli.replay import (
    Count,
    Course,
    Reports,
    Tally,
    report_of,
    seconds_left,
    table_of,
    when_answered,
    with_end,
)
from pykcl.cli.settings import Settings
from pykcl.cli.supervisor import Parent, Processes
from pykcl.config import Config
from pykcl.errors import SetupError, TemporaryError
from pykcl.events import DataLost
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws
from pykcl.local.stream import ReadSpan
from pykcl.metrics import catalog
from pykcl.model.checkpoint import AT_SHARD_END
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.status import LeaseStatus, WorkerStatus

BEFORE = [f"order {number}" for number in range(20)]
LATER = ["late 1", "late 2"]
GUARD = 300


class Run(Service):
    def __init__(self, folder, aws, *arguments, verb="replay", app="orders-backfill"):
        flags = ("--app", app, "--stream", "orders", "program:Orders")
        super().__init__(folder, aws, verb, *flags, *arguments, program=WRITES)

    @property
    def processed(self):
        return sorted(written_by(self))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GUARD)


@pytest.fixture
def start_at(tmp_path):
    runs = []

    def start(aws, *arguments, **options):
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        runs.append(Run(folder, aws, *arguments, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


@pytest.fixture
def start(aws, start_at):
    for data in BEFORE:
        aws.kinesis.put_record("orders", data.encode(), data)
    return partial(start_at, aws)


def put_later(aws):
    for data in LATER:
        aws.kinesis.put_record("orders", data.encode(), data)


def in_seconds(seconds):
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


UNTIL_NOW = ("--from", "TRIM_HORIZON", "--until", "now")


def rows(dynamodb, table):
    return {row["leaseKey"]["S"]: row for row in dynamodb.scan(TableName=table)["Items"]}


def test_a_replay_delivers_what_arrived_until_now_ends_and_is_over_for_good(start, aws, dynamodb):
    run = start(*UNTIL_NOW)
    run.until(lambda: run.processed, "the first record")
    # Kinesis says its time in whole seconds: the end lies up to one behind the start.
    (until,) = {int(row["pykcl"]["M"]["until"]["N"]) for row in rows(dynamodb, "orders-backfill").values()}
    run.until(lambda: aws.kinesis.now_millis() >= until, "the end", lives=False)
    put_later(aws)
    assert run.process.wait(GUARD) == 0, run.text
    assert run.processed == sorted(BEFORE)
    out = run.output.read_text()
    assert re.search(rf"^all +{len(BEFORE)} +{sum(map(len, BEFORE))} +0 +0$", out, re.MULTILINE), out
    assert re.search(r"^done: 2 shards were read until \S+Z\.", out, re.MULTILINE), out
    assert "To remove it: pykcl leases drop --table orders-backfill --execute" in out
    assert {row["checkpoint"]["S"] for row in rows(dynamodb, "orders-backfill").values()} == {"SHARD_END"}
    again = start(*UNTIL_NOW)
    assert again.process.wait(GUARD) == 0, again.text
    assert again.processed == []
    code, text = command(aws, "leases", "drop", "--table", "orders-backfill")
    assert (code, "2 of 2 shards are done\nRun it again with --execute" in text) == (0, True), text
    assert len(rows(dynamodb, "orders-backfill")) == 2
    code, text = command(aws, "leases", "drop", "--table", "orders-backfill", "--execute")
    assert (code, text.splitlines()[-1]) == (0, "DROPPED"), text
    assert "orders-backfill" not in dynamodb.list_tables()["TableNames"]


def test_several_processes_share_a_replay_and_all_end(start):
    run = start(*UNTIL_NOW, "--processes", "2")
    assert run.process.wait(GUARD) == 0, run.text
    # One may take a shard from the other in the middle of a batch, which then comes again.
    assert set(run.processed) == set(BEFORE)
    assert "done: 2 shards" in run.output.read_text()


def test_one_summary_counts_all_processes_also_one_that_was_killed(start):
    run = start(
        "--from", "TRIM_HORIZON", "--until", in_seconds(3600), "--processes", "2", "--progress", "0.2"
    )

    def is_reported():
        last = dict(re.findall(r"\[(\d)\].* replay goes on records=(\d+ per_second=0) ", run.text))
        return len(last) == 2 and sum(int(said.split()[0]) for said in last.values()) == len(run.processed)

    run.until(lambda: len(run.processed) >= len(BEFORE) and is_reported(), "the reports")
    os.kill(int(re.search(r"process started process=1 pid=(\d+)", run.text)[1]), signal.SIGKILL)
    run.until(lambda: len(re.findall(r"process started process=1 ", run.text)) == 2, "a new process")
    assert run.stop() == 1
    out = run.output.read_text()
    assert re.findall(r"^all +(\d+) ", out, re.MULTILINE) == [str(len(run.processed))], out
    assert "At least so many: 1 of the processes ended before the last report, and what they did in" in out


def test_a_process_of_a_replay_that_a_signal_ends_is_replaced(start):
    run = start("--from", "TRIM_HORIZON", "--until", in_seconds(3600), "--processes", "2")
    run.until(lambda: run.processed == sorted(BEFORE), "all records")
    first = re.search(r"process started process=1 pid=(\d+)", run.text)
    os.kill(int(first[1]), signal.SIGTERM)
    run.until(lambda: len(re.findall(r"process started process=1 ", run.text)) == 2, "a new process")
    assert run.stop() == 1
    assert "stopped: 0 of 2 shards are done" in run.output.read_text()


def test_a_replay_that_is_stopped_says_what_is_left_and_goes_on(start):
    until = in_seconds(3600)
    run = start("--from", "TRIM_HORIZON", "--until", until, "--progress", "0.2")
    run.until(lambda: run.processed == sorted(BEFORE), "all records")
    run.until(lambda: re.search(r"replay goes on records=20 .*done=\d+%", run.text), "the progress")
    assert run.stop() == 1
    assert "stopped: 0 of 2 shards are done, and 2 are left" in run.output.read_text()
    other = start("--from", "TRIM_HORIZON", "--until", in_seconds(1800))
    assert other.process.wait(GUARD) == 78
    assert "is of a run from TRIM_HORIZON until" in other.text


def test_a_rate_holds_records_back_and_a_stop_does_not_wait_for_them(start):
    run = start("--from", "TRIM_HORIZON", "--until", in_seconds(3600), "--rate", "0.01")
    run.until(lambda: run.processed, "the first record")
    assert run.stop() == 1
    assert len(run.processed) == 1


def test_a_replay_of_one_shard_reads_no_other(start, dynamodb):
    run = start(*UNTIL_NOW, "--shards", "1")
    assert run.process.wait(GUARD) == 0, run.text
    out = run.output.read_text()
    assert "done: 1 shards were read until" in out
    assert re.findall(r"^shardId-\d+", out, re.MULTILINE) == ["shardId-000000000001"]
    assert 0 < len(run.processed) < len(BEFORE)
    assert list(rows(dynamodb, "orders-backfill")) == ["shardId-000000000001"]


def test_a_replay_of_a_shard_that_is_none_names_those_of_the_stream(start, dynamodb):
    run = start(*UNTIL_NOW, "--shards", "1,7")
    assert run.process.wait(GUARD) == 78
    assert "The stream lists 2: shardId-000000000000, shardId-000000000001." in run.text
    assert rows(dynamodb, "orders-backfill") == {}


def test_the_table_of_an_application_is_refused_and_not_touched(start, dynamodb):
    application = start("--start", "TRIM_HORIZON", verb="run", app="orders-app")
    application.until(lambda: application.processed == sorted(BEFORE), "all records")
    assert application.stop() == 0
    before = rows(dynamodb, "orders-app")
    run = start(*UNTIL_NOW, app="orders-app")
    assert run.process.wait(GUARD) == 78
    assert "is of an application whose run has no end" in run.text
    assert rows(dynamodb, "orders-app") == before
    assert run.processed == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("--from", "2026-11-20T10:00Z", "--until", "2026-11-20T09:00Z"),
            2,
            "00.000Z is not after --from 2026-11-20T10:00:00.000Z. Do: say a later end",
        ),
        (("--from", "LATEST", "--until", "now"), 2, "--from LATEST begins at --until now"),
        (("--from", "TRIM_HORIZON", "--until", "2026-11-20T09:00"), 78, "has no time zone"),
        (("--from", "TRIM_HORIZON", "--until", "yesterday"), 78, "--until='yesterday' is not a time"),
        (("--from", "TRIM_HORIZON", "--until", "caught-up"), 78, "Or say now."),
        (
            ("--from", "yesterday", "--until", "now"),
            78,
            "--from='yesterday' is not a position. Use LATEST, TRIM_HORIZON or a",
        ),
        (("--from", "2026-11-20T09:00", "--until", "now"), 78, "--from='2026-11-20T09:00' has no time zone"),
        ((*UNTIL_NOW, "--option", "until=2026-11-20T09:00Z"), 2, "--option until= and --until"),
        ((*UNTIL_NOW, "--option", "initial-position=LATEST"), 2, "--option initial_position= and --from"),
        ((*UNTIL_NOW, "--shards", ","), 78, "shards=',' names no shard"),
        ((*UNTIL_NOW, "--shards", "1", "--option", "shards=2"), 2, "--option shards= and --shards"),
        ((*UNTIL_NOW, "--rate", "0.001"), 2, "'--rate': 0.001 is not in the range"),
        ((*UNTIL_NOW, "--rate", "5", "--option", "max_records_per_second=7"), 2, "per_second= and --rate"),
    ],
)
def test_a_range_that_is_none_and_one_that_is_said_twice_are_refused(start, dynamodb, arguments, code, words):
    run = start(*arguments)
    assert run.process.wait(GUARD) == code
    assert words in run.text
    assert dynamodb.list_tables()["TableNames"] == []


@pytest.fixture
def old(tmp_path):
    """A local AWS whose stream was made, and written to, 25 hours ago; and a function that leads back to the present."""
    ahead = [-25 * 3_600_000]
    whole = ReadSpan(172_800, 172_800)
    with LocalAws(
        listing_lag=0, now_millis=lambda: time.time_ns() // 10**6 + ahead[0], read_span=whole
    ) as aws:
        aws.kinesis.create_stream("orders", 1)
        for data in BEFORE:
            aws.kinesis.put_record("orders", data.encode(), data)
        yield aws, lambda: ahead.__setitem__(0, 0)


@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_records_that_are_lost_are_counted_and_make_the_exit_code(start_at, old, processes):
    aws, return_to_the_present = old
    arguments = ("--from", "TRIM_HORIZON", "--until", in_seconds(-3600))
    first = start_at(aws, *arguments, "--rate", "0.01")
    first.until(lambda: first.processed, "the first record")
    assert first.stop() == 1
    return_to_the_present()
    second = start_at(aws, *arguments, *processes)
    assert second.process.wait(GUARD) == 3, second.text
    out = second.output.read_text()
    assert re.search(r"^all +0 +0 +0 +1$", out, re.MULTILINE), out
    assert "done: 1 shards were read until" in out
    assert "records were no longer kept when they were to be read" in out


def test_a_beginning_that_is_no_longer_kept_is_reported_at_the_start(start_at, old):
    aws, return_to_the_present = old
    return_to_the_present()
    run = start_at(aws, "--from", in_seconds(-30 * 3600), "--until", in_seconds(-60))
    assert run.process.wait(GUARD) == 0, run.text
    assert "the stream keeps records for 24h" in run.text
    again = start_at(aws, "--from", in_seconds(-12 * 3600), "--until", in_seconds(-60), app="other-backfill")
    assert again.process.wait(GUARD) == 0, again.text
    assert "the stream keeps records" not in again.text


@pytest.mark.parametrize("ahead", [3_600_000, 300, -3_600_000])
def test_now_is_behind_what_was_put_whichever_clock_is_right(monkeypatch, ahead):
    """Kinesis says its time in whole seconds: a record may have arrived at the end of the last one."""
    here = time.time_ns() // 10**6
    there = (time.time_ns() // 10**6 + ahead) // 1000 * 1000 + 999
    with LocalAws(listing_lag=0, now_millis=lambda: there) as aws:
        aws.kinesis.create_stream("orders", 1)
        lead_to(monkeypatch, aws)
        config = Config(application="orders-backfill", stream="orders", initial_position="TRIM_HORIZON")
        until = with_end(Settings(config), "now").config.until_millis
    assert max(there + 1, here) <= until < max(there, here) + 1_800_000


def test_now_is_the_end_of_the_run_that_was_begun(monkeypatch, aws):
    lead_to(monkeypatch, aws)
    begun = Lease("shardId-000000000000", AT_SHARD_END, metadata=PykclMetadata(until=1_795_000_000_000))
    monkeypatch.setattr(replay, "leases_of", lambda table: [begun])
    config = Config(application="orders-backfill", stream="orders", initial_position="TRIM_HORIZON")
    assert with_end(Settings(config), "now").config.until_millis == 1_795_000_000_000


def test_a_start_waits_for_an_answer(monkeypatch, caplog):
    pauses = []
    monkeypatch.setattr(replay.time, "sleep", pauses.append)

    def ask():
        if len(pauses) < 20:
            raise TemporaryError("DynamoDB is away.")
        return "answer"

    with caplog.at_level(logging.WARNING):
        assert when_answered(ask) == "answer"
    assert len(pauses) == 20
    assert max(pauses) <= 5.0
    assert caplog.text.count("the start waits for an answer") == 20
    assert "error=DynamoDB is away." in caplog.text


def test_a_start_that_is_refused_does_not_wait():
    def ask():
        raise SetupError("No permission.")

    with pytest.raises(SetupError, match="No permission"):
        when_answered(ask)


def test_a_table_that_does_not_answer_at_the_end_leaves_the_run_unjudged(start, aws):
    run = start("--from", "TRIM_HORIZON", "--until", in_seconds(3600))
    run.until(lambda: run.processed == sorted(BEFORE), "all records")
    aws.faults.replace([FaultRule("throttle", "dynamodb", "Scan")])
    assert run.stop() == 1, run.text
    out = run.output.read_text()
    assert re.search(r"^all +20 ", out, re.MULTILINE), out
    assert "whether every shard is done is not known, as the lease table does not answer: " in out
    assert "Traceback" not in run.text


# -- counts and progress -----------------------------------------------------------------------------------------------


def test_the_tally_counts_what_was_processed_and_what_was_given_up():
    tally = Tally()
    tally.take("b", [(catalog.RECORDS_PROCESSED, 2.0), (catalog.DATA_BYTES_PROCESSED, 9.0)])
    tally.take("a", [(catalog.RECORDS_PROCESSED, 1.0), (catalog.MILLIS_BEHIND_LATEST, 7.0)])
    tally.take("a", [(catalog.RECORDS_DEAD_LETTERED, 3.0)])
    tally.take("a", [(catalog.SKIPPED_RECORDS, 1.0)])
    tally.forget("a")
    tally.hear(DataLost(shard="b", checkpoint="7:0", resumed_at=None))
    assert tally.counts() == {"a": Count(1, 0, 4), "b": Count(2, 9, 0, 1)}
    assert table_of(tally.counts()).splitlines()[-1].split() == ["all", "3", "9", "4", "1"]


def test_the_reports_of_processes_are_added_up_and_those_that_lack_the_last_are_known():
    reports = Reports()
    assert reports.counts() == {}
    reports.hear((1, 1), report_of({}, is_last=False))
    reports.hear((2, 1), report_of({"b": Count(1, 10, 1, 1)}, is_last=False))
    reports.hear((2, 1), report_of({"a": Count(2, 20), "b": Count(3, 30, 1, 1)}, is_last=True))
    reports.hear((1, 2), report_of({"b": Count(5, 50)}, is_last=True))
    assert reports.counts() == {"a": Count(2, 20), "b": Count(8, 80, 1, 1)}
    assert reports.unfinished == 1


def status(firsts=None, lag_age=None, **behind):
    leases = tuple(
        LeaseStatus(
            shard=shard, state="reading", thread="", alive=True, checkpoint=None, counter=None, lease_valid_for=None,
            in_doubt=False, has_answered=True, millis_behind_latest=millis, lag_age=lag_age, call=None, last_error=None,
            first_arrival_millis=(firsts or {}).get(shard),
        )
        for shard, millis in behind.items()
    )  # fmt: skip
    return WorkerStatus(
        worker_id="w", application="a", stream="s", table="t", version="1", state="running", state_age=0.0,
        failure=None, initialized=True, all_shards_assigned=True, failover_time=10.0, shutdown_grace=1.0, leases=leases,
    )  # fmt: skip


def test_the_share_of_a_range_is_the_mean_of_its_shards():
    course = Course(0, until=1_000)
    assert course.share(status(), 2_000) == 0.0
    assert course.share(status(a=2_000, b=None), 2_000) == 0.0
    assert course.share(status(a=1_500, b=2_000), 2_000) == 0.25
    assert course.share(status(a=500, b=1_600), 2_000) == 0.7
    assert course.share(status(a=0), 2_000) == 1.0
    # As it was when the page came, however long its records take.
    assert Course(0, until=1_000).share(status(a=500, lag_age=1.0), 2_000) == 0.5


def test_without_a_time_a_range_begins_at_the_first_record():
    course = Course(None, until=1_000)
    assert course.share(status(a=1_500, firsts={"a": 200}), 2_000) == 0.375
    assert course.share(status(a=1_200, firsts={"a": 200}), 2_000) == 0.75
    # Without a record there is no better beginning than where it was first seen.
    assert course.share(status(b=1_500), 2_000) == 0.5
    assert course.share(status(b=1_250), 2_000) == 0.75
    assert Course(None, until=1_000).share(status(c=0), 2_000) == 1.0
    assert Course(2_000, until=1_000).share(status(d=1_500), 2_000) == 0.0


def test_the_end_is_estimated_once_enough_is_done_for_it():
    assert seconds_left(10.0, 0.001, 0.0) is None
    assert seconds_left(10.0, 0.25, 0.0) == 30.0
    assert seconds_left(10.0, 1.0, 0.0) == 0.0
    # What an earlier start has done says nothing of the speed.
    assert seconds_left(10.0, 0.6, 0.595) is None
    assert seconds_left(10.0, 0.75, 0.5) == 10.0


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("replay", "p:O", "--until", "now"), ("replay", "p:O", "--until", "now", "--until", "then")),
        (
            ("replay", "--until", "now", "--", "p:O"),
            ("replay", "--until", "now", "--until", "then", "--", "p:O"),
        ),
    ],
)
def test_each_process_is_given_the_end_as_an_option(given, wanted):
    assert Processes(2, given).with_arguments("--until", "then").arguments == wanted


@pytest.mark.parametrize("is_over", [True, False])
def test_a_process_that_ends_without_an_error_is_replaced_unless_it_says_that_the_run_is_over(is_over):
    parent = Parent(1, "w", ("replay",))
    slot = parent._slots[0]
    slot.had_worker, slot.is_run_over = True, is_over
    parent._on_ended(slot, 0)
    assert parent._must_stop() is is_over


@pytest.mark.parametrize("code", [0, 3, -9, 70])
def test_a_process_that_has_said_that_the_run_is_over_leaves_the_verdict_to_the_lease_table(code):
    parent = Parent(2, "w", ("replay",))
    for slot in parent._slots:
        slot.had_worker = slot.is_run_over = True
        parent._on_ended(slot, code)
    assert parent._must_stop()
    assert parent._code == 0
