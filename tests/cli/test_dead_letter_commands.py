"""`pykcl dead-letters list | show | redrive`: what they print and leave out, and what becomes of the letters."""

import json
import os

import boto3
import pytest
from click.testing import CliRunner

from pykcl.aws.dead_letters import aws_destination
from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.config import Config
from pykcl.dead_letters import LetterFiles
from pykcl.local.server import LocalAws
from pykcl.model.dead_letter import Address
from pykcl.operate.aws.iam import actions_of
from pykcl.runtime import SystemRuntime
from tests.letters import SECRET, SECRET_KEY, letter, record

HANDLER = """
from pathlib import Path
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            if record.data == b"poison":
                raise ValueError(record.text())
            with Path("effects").open("ab") as file:
                file.write(record.data + b"\\n")
"""


@pytest.fixture(scope="module")
def server():
    with LocalAws(listing_lag=0) as aws:
        yield aws


@pytest.fixture
def pykcl(monkeypatch, tmp_path):
    """pykcl("list", …) runs it in an empty folder without settings; `handler.py` has a processor."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "PYKCL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mended_handler.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments):
        return CliRunner().invoke(main, ["dead-letters", *arguments])

    return run


@pytest.fixture
def letters(tmp_path):
    """letters(letter(), …) keeps them in file:letters."""
    return lambda *given: LetterFiles(tmp_path / "letters", "w", SystemRuntime()).send(given)


def rows(done):
    return json.loads(done.stdout)["rows"]


def test_list_shows_what_was_given_up_where_and_why(pykcl, letters):
    letters(letter(), letter(record(101), record(102), application="other"))
    done = pykcl("list", "file:letters", "-o", "json")
    assert done.exit_code == 0
    assert rows(done)[0] == {
        "id": letter().id,
        "written": 1763876412345,
        "condition": "RetryAttemptsExhausted",
        "shard": "shardId-000000000001",
        "first": "100:0",
        "last": "100:0",
        "records": 1,
        "attempts": 3,
        "error": "KeyError",
        "where": "orders.py:12",
        "application": "orders-app",
        "stream": "orders",
        "place": "orders-app-w-2025-11-23.letters.jsonl:1",
    }
    assert [row["records"] for row in rows(done)] == [1, 2]
    assert len(rows(pykcl("list", "file:letters", "-o", "json", "-a", "other"))) == 1
    assert rows(pykcl("list", "file:letters", "-o", "json", "--since", "1h")) == []
    table = pykcl("list", "letters").stdout
    assert letter().id[:12] in table
    assert "KeyError" in table


def test_a_torn_line_is_a_hint_and_what_is_no_letter_makes_the_exit_code_1(pykcl, letters, tmp_path):
    letters(letter())
    [path] = (tmp_path / "letters").iterdir()
    with path.open("a") as file:
        file.write('{"requestContext": ')
    done = pykcl("list", "file:letters")
    assert (done.exit_code, "letters.jsonl:2: it was cut off" in done.stdout) == (0, True)
    with path.open("a") as file:
        file.write("\n{}\n")
    done = pykcl("list", "file:letters")
    assert (done.exit_code, "letters.jsonl:3: it is no letter" in done.stdout) == (1, True)
    assert letter().id[:12] in done.stdout


def test_without_show_data_no_output_has_a_payload_a_key_or_the_text_of_an_exception(pykcl, letters, caplog):
    caplog.set_level("DEBUG")
    letters(letter(record(100, b"poison")), letter(record(101), record(102)))
    ids = [letter(record(100, b"poison")).id, letter(record(101), record(102)).id]
    outputs = [
        pykcl("list", "file:letters", "-o", form) for form in ("table", "wide", "json", "jsonl", "csv")
    ]
    outputs += [pykcl("show", "file:letters", one) for one in ids]
    redrive = ("redrive", "file:letters", "--to-handler", "mended_handler:Orders", "-o", "wide")
    outputs += [pykcl(*redrive), pykcl(*redrive, "--execute")]
    text = "".join(done.output for done in outputs) + caplog.text
    assert ids[0] in text
    assert "ValueError at mended_handler.py" in text
    for secret in (SECRET, SECRET_KEY, "poison", "cG9pc29u"):
        assert secret not in text


def test_show_has_data_when_asked_and_takes_the_beginning_of_an_id(pykcl, letters):
    letters(letter(), letter(), letter(record(101, b"\xff")))
    shown = json.loads(pykcl("show", "file:letters", letter().id[:6], "--show-data").stdout)
    assert (shown["message"], shown["data"][0]["data"]) == (f"{SECRET} is no order", SECRET)
    assert shown["data"][0]["partition_key"] == SECRET_KEY
    assert len(shown["places"]) == 2
    assert "data" not in json.loads(pykcl("show", "file:letters", letter().id).stdout)
    assert pykcl("show", "file:letters", "").exit_code == 1
    missing = pykcl("show", "file:letters", "nothing")
    assert (missing.exit_code, "There is no letter" in missing.output) == (1, True)


def test_redrive_to_a_mended_handler_leaves_what_fails_and_nothing_else(pykcl, letters, tmp_path):
    letters(
        letter(record(100, b"a")),
        letter(record(101, b"poison")),
        letter(record(102, b"b"), record(103, b"c")),
    )
    redrive = ("redrive", "file:letters", "--to-handler", "mended_handler:Orders", "-o", "json")
    plan = pykcl(*redrive)
    assert plan.exit_code == 0
    assert [row["action"] for row in rows(plan)] == ["redrive"] * 3
    assert "Nothing was changed" in plan.stdout
    assert not (tmp_path / "effects").exists()
    done = pykcl(*redrive, "--execute")
    assert done.exit_code == 1
    assert [row["action"] for row in rows(done)] == ["redriven", "leave", "redriven"]
    assert (tmp_path / "effects").read_text() == "a\nb\nc\n"
    assert [row["first"] for row in rows(pykcl("list", "file:letters", "-o", "json"))] == ["101:0"]
    (tmp_path / "letters" / "orders-app-w-2025-11-23.letters.jsonl").rename(tmp_path / "one.jsonl")
    assert len(rows(pykcl("list", "one.jsonl", "-o", "json"))) == 3


def test_list_shows_new_letters_beside_old_notes_and_says_that_it_ignored_them(pykcl, letters, tmp_path):
    letters(letter())
    assert pykcl("redrive", "letters", "--to-handler", "mended_handler:Orders", "--execute").exit_code == 0
    [path] = (tmp_path / "letters").glob("*.jsonl")
    path.write_text("")
    letters(letter(record(200)))
    done = pykcl("list", "letters")
    assert letter(record(200)).id[:12] in done.stdout
    assert f"1 note in {path.name}.done was ignored" in done.output
    assert pykcl("redrive", "letters", "--to-handler", "mended_handler:Orders", "--execute").exit_code == 0
    assert letter(record(200)).id[:12] not in pykcl("list", "letters").stdout


def test_redrive_of_one_letter(pykcl, letters):
    letters(letter(record(100)), letter(record(101)))
    one = letter(record(101)).id
    redrive = ("redrive", "letters", "--to-handler", "mended_handler:Orders", "--execute")
    assert pykcl(*redrive, "--id", one).exit_code == 0
    again = pykcl(*redrive, "--id", one)
    assert (again.exit_code, f"There is no letter {one}" in again.output) == (1, True)
    assert pykcl(*redrive).exit_code == 0
    assert rows(pykcl("list", "letters", "-o", "json")) == []


def test_redrive_into_a_stream_gives_the_same_bytes_and_keys(pykcl, letters, server, monkeypatch):
    for name, value in local_environment(server.url).items():
        monkeypatch.setenv(name, value)
    server.kinesis.create_stream("again", 2)
    largest = 2**128 - 1
    given = [
        record(100, b"\xff\x00 no text", partition_key="\U0001f600" * 256),
        record(101, b"sub", explicit_hash_key="0", aggregated=True, sub_sequence_number=3),
        record(102, b"other", explicit_hash_key=f"+00{largest}", aggregated=True),
        record(103, bytes(1024 * 1024), aggregated=True),
    ]
    letters(*(letter(one) for one in given))
    done = pykcl("redrive", "letters", "--to-stream", "again", "--execute", "-o", "json")
    assert [row["action"] for row in rows(done)] == ["redriven"] * 3 + ["leave"]
    assert "a record has 1,048,587 bytes, and the stream takes 1,048,576" in rows(done)[3]["why"]
    found = {}
    for shard in server.kinesis.list_shards("again"):
        page = server.kinesis.get_records(
            server.kinesis.get_shard_iterator("again", shard.shard_id, "TRIM_HORIZON")
        )
        found |= {one.data: (one.partition_key, shard.shard_id[-1]) for one in page.records}
    assert found[given[0].data][0] == given[0].partition_key
    assert (found[b"sub"], found[b"other"]) == ((SECRET_KEY, "0"), (SECRET_KEY, "1"))
    assert [row["first"] for row in rows(pykcl("list", "letters", "-o", "json"))] == ["103:0"]


IAM_NAMES = {
    "sqs:SendMessageBatch": {"sqs:SendMessage"},
    "s3:ListObjectsV2": {"s3:ListBucket"},
    "s3:CopyObject": {"s3:GetObject", "s3:PutObject"},
    "sts:GetCallerIdentity": set(),
}


@pytest.mark.parametrize("kind", ["sqs", "s3"])
def test_the_policies_allow_exactly_what_a_worker_and_a_redrive_call(pykcl, server, monkeypatch, kind):
    for name, value in local_environment(server.url).items():
        monkeypatch.setenv(name, value)
    boto3.setup_default_session()
    server.reset()
    text = "s3://letters/team"
    if kind == "sqs":
        url = boto3.client("sqs").create_queue(QueueName="dlq")["QueueUrl"]
        found = boto3.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        text = found["Attributes"]["QueueArn"]
    else:
        boto3.client("s3").create_bucket(Bucket="letters")

    def called(do):
        before = len(list(server.requests))
        do()
        names = {f"{one.service}:{one.operation}" for one in list(server.requests)[before:]}
        return {action for name in names for action in IAM_NAMES.get(name, {name})}

    def allowed(*arguments):
        iam = ["iam", "-a", "orders-app", "--stream", "orders", *arguments, "-o", "json"]
        with_letters = actions_of(json.loads(CliRunner().invoke(main, [*iam, "--dead-letters", text]).stdout))
        return with_letters - actions_of(json.loads(CliRunner().invoke(main, iam).stdout))

    target = aws_destination(
        Address.parse(text), Config(application="orders-app", stream="orders"), SystemRuntime()
    )
    poison = letter(record(101, b"poison"))
    assert called(lambda: target.send([letter(), poison])) == allowed()
    redrive = ("redrive", text, "--to-handler", "mended_handler:Orders", "--execute")
    assert called(lambda: pykcl(*redrive)) == allowed("--for", "operator")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("list", "discard"), "Discarded letters are not kept"),
        (("list", "arn:aws:sns:eu-west-1:123456789012:t"), "A topic keeps nothing"),
        (("list", "arn:aws:kinesis:eu-west-1:123456789012:stream/x"), "no letters"),
        (("list", "sqs:mine"), "names no destination"),
        (("redrive", "file:x"), "either --to-handler"),
        (("redrive", "file:x", "--to-handler", "a:b", "--to-stream", "c"), "either --to-handler"),
        (("redrive", "file:x", "--to-handler", "nothing_here:b"), "There is no module"),
    ],
)
def test_wrong_usage(pykcl, arguments, text):
    done = pykcl(*arguments)
    assert (done.exit_code, text in done.output) == (2, True)


def test_a_source_that_is_missing(pykcl):
    done = pykcl("list", "file:nothing")
    assert (done.exit_code, "'nothing' cannot be read: No such file" in done.output) == (1, True)
