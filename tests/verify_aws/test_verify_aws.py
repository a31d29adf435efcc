"""`python tests/verify_aws` against the local AWS: what it answers, what it says when something fails, and that nothing stays."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
import verify_run
from verify_account import TAG, Account
from verify_puts import Read, Sent, check_order, check_places
from verify_reads import covered
from verify_report import Findings, markdown, questions
from verify_run import HORIZON, Page, Run, follow, holds
from verify_suites import outcomes_of

from pykcl import PutResult
from pykcl.interfaces import Fetched
from pykcl.local.errors import AwsError
from pykcl.local.iterators import ReadSpan
from pykcl.local.server import LocalAws
from pykcl.model.record import Record

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 300.0
"""Until a process is given up: far more than it takes."""
pytestmark = pytest.mark.timeout(400)
PREFIX = "pykcl-verify-0123abcd"


@pytest.fixture
def aws(monkeypatch):
    with LocalAws() as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        yield aws


@contextmanager
def started(aws, tmp_path, *arguments):
    """The command as a process; its report is report.md in tmp_path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(HERE), "--region", "eu-west-1", "--endpoint", aws.url]
    process = subprocess.Popen(
        [*command, "--report", str(tmp_path / "report.md"), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run(aws, tmp_path, *arguments):
    """(exit code, what it printed, its report)."""
    with started(aws, tmp_path, *arguments) as process:
        output = process.communicate(timeout=SECONDS)[0]
    asked = {f"{request.service}:{request.operation}" for request in aws.requests}
    assert asked <= policy_actions(), asked - policy_actions()
    return process.returncode, output, report_in(tmp_path)


def policy_actions():
    """The actions that the policy of docs/about/verification.md allows."""
    (policy,) = re.findall(
        r"```json\n(.*?)```", (ROOT / "docs/about/verification.md").read_text("utf-8"), re.DOTALL
    )
    return {action for statement in json.loads(policy)["Statement"] for action in statement["Action"]}


def report_in(tmp_path):
    report = tmp_path / "report.md"
    return report.read_text("utf-8") if report.exists() else ""


def answers_in(report):
    """{question: answer}."""
    rows = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| Q")]
    return {row[0]: row[2] for row in rows}


def what_is_there(aws):
    """Names of all streams and tables."""
    tables = boto3.client("dynamodb", endpoint_url=aws.url).list_tables()["TableNames"]
    return sorted([*boto3.client("kinesis", endpoint_url=aws.url).list_streams()["StreamNames"], *tables])


def made_by(aws, operation):
    return [request.parameters for request in aws.requests if request.operation == operation]


# -- the page of questions -------------------------------------------------------------------------------------


def test_every_question_has_its_own_id_and_is_answered_by_a_step_or_open():
    spec = importlib.util.spec_from_file_location("verify_command", HERE / "__main__.py")
    command = importlib.util.module_from_spec(spec)
    sys.modules["verify_command"] = command
    spec.loader.exec_module(command)
    asked = questions()
    assert sorted(one.id for one in asked) == [f"Q{number:02d}" for number in range(1, len(asked) + 1)]
    assert {one.step for one in asked if one.step} == command.STEPS.keys()
    assert all(bool(one.step) is not bool(one.open) for one in asked)


# -- whole runs ------------------------------------------------------------------------------------------------


def test_the_steps_answer_their_questions_and_leave_nothing(aws, tmp_path):
    aws.kinesis.create_stream("orders", 1)
    steps = "starts,reshard,aggregated,throttles,clock,sparse"
    code, output, report = run(aws, tmp_path, "--yes", "--minutes", "0.02", "--only", steps)
    assert code == 0, output
    assert "About " in output
    assert " USD" in output
    answers = answers_in(report)
    assert (
        answers["Q03"]
        == "direct, JSON: used direct, JSON, records equal. direct, CBOR: used direct, CBOR, records equal."
    )
    assert answers["Q05"].startswith("Yes")
    assert answers["Q06"] == "Ten minutes ahead: InvalidArgumentException."
    assert answers["Q09"].startswith(
        "After a split: 2 child(ren) with [1, 1] parent(s). After a merge: 1 child(ren)"
    )
    assert answers["Q12"].startswith("Yes")
    assert "run with --minutes 6" in answers["Q18"]
    assert answers["Q23"] == "not answered: this service takes any time"
    assert answers["Q24"] == "not answered: its step was not run"
    assert answers["Q36"] == "not answered: not verified"
    assert "Nothing: all that was created was removed." in report
    assert what_is_there(aws) == ["orders"]
    names = {one["StreamName"] for one in made_by(aws, "CreateStream")}
    assert len(names) == 5
    assert all(name.startswith("pykcl-verify-") for name in names)
    for word in ("arn:", "123456789012", "127.0.0.1", "AKIA"):
        assert word not in report
    lines = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == set(steps.split(","))
    assert {"page", "check", "answer", "end"} <= {line["kind"] for line in lines}


@pytest.mark.slow
def test_enhanced_fan_out_is_tried_over_each_transport_and_its_consumer_goes_with_the_stream(aws, tmp_path):
    code, output, report = run(aws, tmp_path, "--yes", "--only", "fanout")
    assert code == 0, output
    assert "1 stream(s), 1 shard(s), 1 consumer(s)" in output
    assert "1 shard-hours and 1 consumer-shard-hours" in output
    answers = answers_in(report)
    assert answers["Q35"] == "Yes: 8 of 8 records."
    assert answers["Q37"].endswith("in which nothing was put, fewer than two.")
    assert answers["Q39"].startswith("Over HTTP/2, JSON: ")
    assert re.fullmatch(r"([1-9][0-9]*) of \1 events did\.", answers["Q40"])
    assert made_by(aws, "RegisterStreamConsumer")
    assert what_is_there(aws) == []


def test_records_of_a_producer_are_read_back_also_over_a_split(aws, tmp_path):
    code, output, report = run(aws, tmp_path, "--yes", "--only", "producer")
    assert code == 0, output
    assert "1 stream(s), 3 shard(s)" in output
    answers = answers_in(report)
    assert answers["Q44"].startswith("2000 records of 100 bytes into one shard in ")
    assert re.fullmatch(
        r"5000 records in [0-9]+ of Kinesis, [1-9][0-9]* of them aggregates\.", answers["Q45"]
    )
    assert re.search(r"of 3000 records put again .*; [1-9][0-9]* in the new shards\.", answers["Q46"])
    assert answers["Q47"] == "DryRunOperationException." or "this botocore has no dry runs" in answers["Q47"]
    assert len(made_by(aws, "SplitShard")) == 1
    assert what_is_there(aws) == []


@pytest.mark.slow
def test_records_of_ten_mebibytes_are_put_and_read(aws, tmp_path):
    code, output, report = run(aws, tmp_path, "--yes", "--only", "large")
    assert code == 0, output
    answers = answers_in(report)
    assert answers["Q13"].endswith("went in with 4 call(s); one byte more: InvalidArgumentException.")
    assert "Records per page: [1, 3]" in answers["Q14"]
    assert what_is_there(aws) == []


@pytest.mark.slow
def test_an_operation_that_the_service_lacks_leaves_questions_open_and_fails_nothing(aws, tmp_path):
    def no_such_operation(service, operation, params):
        if operation == "UpdateMaxRecordSize":
            raise AwsError("UnknownOperationException", "no")

    aws.fault = no_such_operation
    code, output, report = run(aws, tmp_path, "--yes", "--only", "large,clock")
    assert code == 0, output
    assert (
        answers_in(report)["Q13"] == "not answered: not possible here: the service has no UpdateMaxRecordSize"
    )
    assert what_is_there(aws) == []


@pytest.mark.slow
def test_an_idle_and_a_sparse_shard_are_crossed_and_the_span_of_a_call_is_measured(aws, tmp_path):
    aws.kinesis.read_span = ReadSpan(0.2, 0.4)
    code, output, report = run(aws, tmp_path, "--yes", "--minutes", "0.05", "--only", "sparse")
    assert code == 0, output
    answers = answers_in(report)
    for question in ("Q15", "Q16"):
        assert re.fullmatch(
            r"[0-9]+ call\(s\) for .* one covered 0\.[0-9] s at least, 0\.[0-9] s in the median, 0\.[0-9] s at most\.",
            answers[question],
        )
    assert re.fullmatch(r"Yes: \[[1-9].*, 0\] at last\.", answers["Q17"])


@pytest.mark.slow
def test_the_suites_run_over_the_account(aws, tmp_path):
    cases = "put_if_absent or taken_over or one_iterator_used_twice or more_than_a_page"
    code, output, report = run(aws, tmp_path, "--yes", "--only", "lease-table,streams", "--cases", cases)
    assert code == 0, output
    answers = answers_in(report)
    assert "otherwise than expected: none." in answers["Q01"]
    assert answers["Q02"].startswith("1 of 1 cases as expected; 1 not run")
    assert made_by(aws, "CreateTable")
    assert what_is_there(aws) == []


def test_a_case_that_fails_twice_fails_the_run_and_is_named(aws, tmp_path):
    def no_splits(service, operation, params):
        if operation == "SplitShard":
            raise AwsError("InvalidArgumentException", "no")

    aws.fault = no_splits
    code, output, report = run(
        aws, tmp_path, "--yes", "--only", "streams", "--cases", "after_a_split_records"
    )
    assert code == 1, output
    assert (
        "otherwise than expected: after_a_split_records_go_to_the_children_only[aws]"
        in answers_in(report)["Q02"]
    )
    assert what_is_there(aws) == []


@pytest.mark.slow
def test_the_fleet_of_the_demo_works_on_the_account_and_gets_its_verdict(aws, tmp_path):
    code, output, report = run(aws, tmp_path, "--yes", "--only", "fleet")
    assert code == 0, output
    assert answers_in(report)["Q24"].startswith("PASS: ")
    assert what_is_there(aws) == []


# -- what goes wrong -------------------------------------------------------------------------------------------


def test_a_step_that_fails_is_reported_and_the_next_one_goes_on(aws, tmp_path):
    def no_merges(service, operation, params):
        if operation == "MergeShards":
            raise AwsError(
                "AccessDeniedException", "User: arn:aws:iam::123456789012:user/me is not authorized"
            )

    aws.fault = no_merges
    code, _, report = run(aws, tmp_path, "--yes", "--only", "reshard,aggregated")
    assert code == 1
    assert "| `reshard` | failed: MergeShards was refused with AccessDeniedException |" in report
    assert "| `aggregated` | done |" in report
    assert "123456789012" not in report
    assert what_is_there(aws) == []


@pytest.mark.parametrize(
    ("step", "operation", "number"),
    [
        ("starts", "GetRecords", signal.SIGINT),
        pytest.param("lease-table", "PutItem", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("sparse", "GetShardIterator", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_in_the_middle_of_a_step_leaves_nothing_either(aws, tmp_path, step, operation, number):
    reached, may_go_on = threading.Event(), threading.Event()

    def hold(service, asked, params):
        if asked == operation:
            reached.set()
            may_go_on.wait(SECONDS)

    aws.fault = hold
    try:
        with started(
            aws, tmp_path, "--yes", "--only", f"{step},clock", "--cases", "put_if_absent"
        ) as process:
            assert reached.wait(SECONDS)
            assert len(what_is_there(aws)) == 1
            process.send_signal(number)
            output = process.communicate(timeout=SECONDS)[0]
    finally:
        may_go_on.set()
    assert process.returncode == 130, output
    report = report_in(tmp_path)
    assert f"| `{step}` | failed: interrupted |" in report
    assert "not answered: its step was not run" in answers_in(report)["Q23"]
    assert what_is_there(aws) == []


def test_nothing_is_made_without_a_yes_or_without_credentials(aws, tmp_path, monkeypatch):
    code, output, _ = run(aws, tmp_path)
    assert (code, "Add --yes" in output) == (2, True)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    code, output, _ = run(aws, tmp_path, "--yes")
    assert (code, "No AWS credentials" in output) == (1, True)
    assert {request.operation for request in aws.requests} == {"ListStreams", "ListTables"}


def test_what_cannot_be_removed_is_named_with_the_reason_and_the_command(aws):
    account = Account(PREFIX)
    account.stream("one")

    def no_deletes(service, operation, params):
        if operation == "DeleteStream":
            raise AwsError("AccessDeniedException", "no")

    aws.fault = no_deletes
    (left,) = account.remove_all(seconds=0.1)
    assert left == (
        f"stream {PREFIX}-one (AccessDeniedException): aws kinesis delete-stream --enforce-consumer-deletion "
        f"--stream-name {PREFIX}-one --region eu-west-1"
    )
    aws.fault = None
    assert account.remove_all() == []


def test_cleaning_up_removes_what_has_the_prefix_and_the_tag_and_nothing_else(aws, tmp_path):
    kinesis, tables = (boto3.client(name, endpoint_url=aws.url) for name in ("kinesis", "dynamodb"))
    tag = [{"Key": TAG, "Value": PREFIX}]
    for name, tags in (
        (f"{PREFIX}-mine", {TAG: PREFIX}),
        (f"{PREFIX}-untagged", {}),
        (f"{PREFIX}0-other", {TAG: PREFIX}),
        ("orders", {TAG: PREFIX}),
    ):
        kinesis.create_stream(StreamName=name, ShardCount=1, **({"Tags": tags} if tags else {}))
    for name, tags in ((f"{PREFIX}-table", tag), (f"{PREFIX}-bare", []), ("leases", tag)):
        tables.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            Tags=tags,
        )
    code, output, _ = run(aws, tmp_path, "--yes", "--clean-up", PREFIX)
    assert code == 1
    assert f"table {PREFIX}-bare (it lacks the tag" in output
    assert what_is_there(aws) == sorted(
        [f"{PREFIX}-bare", f"{PREFIX}-untagged", f"{PREFIX}0-other", "leases", "orders"]
    )


@pytest.mark.parametrize("prefix", ["orders", "pykcl-verify-", f"{PREFIX}-x", "pykcl-verify-0123ABCD"])
def test_cleaning_up_takes_a_prefix_of_this_command_only(aws, tmp_path, prefix):
    code, output, _ = run(aws, tmp_path, "--yes", "--clean-up", prefix)
    assert (code, "takes the prefix of a run" in output) == (2, True)
    assert made_by(aws, "ListStreams") == []


# -- parts -----------------------------------------------------------------------------------------------------


def test_a_report_names_no_account_whatever_is_said(tmp_path):
    findings = Findings(tmp_path / "lines.jsonl", questions())
    findings.step = "starts"
    said = "arn:aws:kinesis:eu-west-1:123456789012:stream/s of 123456789012 by AKIAABCDEFGHIJKLMNOP\n| next"
    findings.check("a check", False, said)
    findings.answer("Q04", said)
    findings.finish(f"failed: {said}")
    report = markdown(findings, {"where": said}, [said])
    for text in (report, (tmp_path / "lines.jsonl").read_text()):
        for secret in ("123456789012", "arn:aws", "AKIA"):
            assert secret not in text
    assert answers_in(report)["Q04"].endswith("\\| next")
    assert not findings.held


def test_what_pytest_reports_is_sorted():
    report = """<testsuites><testsuite>
    <testcase name="test_a"/><testcase name="test_b"><failure message="E: x&#10;more"/></testcase>
    <testcase name="test_c"><skipped type="pytest.skip" message="needs"/></testcase>
    <testcase name="test_d"><skipped type="pytest.xfail" message="known"/></testcase>
    <testcase name="test_e"><system-out/><error message="broke"/></testcase></testsuite></testsuites>"""
    assert outcomes_of(report) == {
        "a": ("passed", ""),
        "b": ("failed", "E: x"),
        "c": ("skipped", "needs"),
        "d": ("known", "known"),
        "e": ("failed", "broke"),
    }


def put_by_a_producer(*copies):
    """What a run of two keys says of these copies in the stream: numbers, each with a mark for its result's doubt."""
    sent, users = {}, []
    for at, (number, doubt) in enumerate(copies):
        data = b"%d" % number
        place = PutResult("s", str(at), 0, 1, doubt)
        users.append(Record(data, "k", str(at), 0, "s", "orders"))
        sent.setdefault(number, Sent(number, f"key-{number % 8}", data, place))
    return [sent[number] for number in sorted(sent)], Read(users, users, 0)


@pytest.mark.parametrize(
    ("copies", "failing"),
    [
        ([(0, False), (1, False), (8, False)], None),
        ([(8, False), (1, False), (0, False)], "records of each key are in the order of their puts"),
        ([(0, True), (8, False), (0, False)], None),
        ([(0, False), (8, False), (0, False)], "a record that is there twice says so"),
    ],
)
def test_what_a_producer_says_is_held_against_the_stream(tmp_path, copies, failing):
    found = Findings(tmp_path / "lines.jsonl", [])
    sent, read = put_by_a_producer(*copies)
    check_places(found, sent, read)
    check_order(found, sent, read)
    assert [one.what for one in found.failed] == ([failing] if failing else [])


def test_a_record_that_is_elsewhere_and_one_that_nobody_put_are_seen(tmp_path):
    found = Findings(tmp_path / "lines.jsonl", [])
    sent, read = put_by_a_producer((0, False), (1, False))
    other = Record(b"other", "k", "0", 0, "s", "orders")
    check_places(found, sent[:1], replace(read, users=[other, read.users[1]]))
    assert [(one.what, one.seen) for one in found.failed] == [
        ("every record is where its result says", "1 are not"),
        ("nothing else is in the stream, not what a dry run had", "2 records"),
    ]


def pages(*seconds_behind):
    """Empty pages, half a second apart."""
    found = [Fetched([], "next", round(behind * 1000), (), 0) for behind in seconds_behind]
    return [Page(fetched, number / 2, 0) for number, fetched in enumerate(found)]


def test_the_stream_time_of_a_call_is_what_it_came_nearer_and_what_passed_meanwhile():
    assert covered(pages(0), 420.0) == (
        "1 call(s) for 420 s of stream; one covered 420.0 s at least, 420.0 s in the median, 420.0 s at most."
    )
    assert covered(pages(3600, 1800, 600, 0), 3700.0) == (
        "4 call(s) for 3700 s of stream; one covered 100.0 s at least, 900.5 s in the median, 1800.5 s at most."
    )


def test_waiting_for_records_ends_where_none_come_any_more():
    assert not holds(1)(pages(*[0] * 59))
    assert holds(1)(pages(*[0] * 60))
    assert not holds(1)(pages(5, *[0] * 59))
    assert holds(0)(pages(5))


class Endless:
    """A shard that never comes nearer to its tip."""

    def open(self, shard, start):
        return "iterator"

    def fetch(self, shard, iterator, limit):
        return Fetched([], iterator, 1000, (), 0)


def test_a_shard_without_end_is_given_up_and_its_pages_are_kept(aws, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_run, "MOST_CALLS", 5)
    run = Run(Account(PREFIX), Findings(tmp_path / "lines.jsonl", []), 0, "", tmp_path, print)
    assert len(follow(run, Endless(), "shardId-000000000000", HORIZON, lambda pages: False)) == 5
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == 5
