"""`pykcl tail`, `put` and `streams`: what they print, what they refuse, and how they end."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from service_kit import create_lease_table, lead_to

from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws

ROOT = Path(__file__).parents[2]
CLEAN = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYKCL_"))}
DEADLINE = 60.0
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def pykcl(aws, monkeypatch):
    """pykcl("tail", "orders", input=b"…") runs it to its end, in this process."""
    lead_to(monkeypatch, aws)

    def run(*arguments, input=b"", **environment):
        done = CliRunner().invoke(main, arguments, input=input, env=environment)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return Done(done.exit_code, done.stdout_bytes, done.stderr_bytes)

    return run


@pytest.fixture
def start(aws):
    """start("tail", "orders") leaves it running; what still runs at the end is ended."""
    started = []

    def run(*arguments, **more):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command(arguments), env=environment(aws), **{**pipes, **more}))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def command(arguments):
    return [sys.executable, "-m", "pykcl.cli", *arguments]


def environment(aws):
    return {**CLEAN, **local_environment(aws.url), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def put(aws, *payloads, high=False):
    for data in payloads:
        aws.kinesis.put_record("orders", data, "key", 2**128 - 1 if high else 0)


def stored(aws):
    """Payloads as they lie in the stream."""
    kinesis, found = aws.kinesis, []
    for shard in kinesis.list_shards("orders"):
        page = kinesis.get_records(kinesis.get_shard_iterator("orders", shard.shard_id, "TRIM_HORIZON"))
        found += [record.data for record in page.records]
    return found


def wait_until(is_so, what):
    deadline = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.02)


# -- tail ------------------------------------------------------------------------------------------------------


def test_tail_shows_what_there_is_and_ends(aws, pykcl):
    put(aws, b"a", b"b")
    put(aws, b"c", high=True)
    done = pykcl("tail", "orders", "-e")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.splitlines()) == [b"a", b"b", b"c"]


def test_tail_begins_now_unless_told_and_shows_what_comes(aws, start):
    put(aws, b"old")
    tail = start("tail", "orders", "-n", "1")
    numbers = iter(range(10_000))

    def has_ended():
        put(aws, b"new-%d" % next(numbers))
        return tail.poll() is not None

    wait_until(has_ended, "tail never saw a record")
    assert re.fullmatch(rb"new-\d+\n", tail.stdout.read())
    assert tail.returncode == 0


def test_ctrl_c_ends_tail_cleanly(aws, start):
    put(aws, b"a")
    tail = start("tail", "orders", "--since", "earliest")
    assert tail.stdout.readline() == b"a\n"
    tail.send_signal(signal.SIGINT)
    assert tail.wait(DEADLINE) == 0
    assert tail.stderr.read() == b""


@pytest.mark.parametrize("more", [(), ("--grep", "^a$")], ids=["while it writes", "while it waits"])
def test_tail_ends_quietly_when_nobody_reads_any_more(aws, start, more):
    put(aws, b"a", *[b"x" * 10_000] * 200)
    tail = start("tail", "orders", "--since", "earliest", *more)
    assert tail.stdout.readline() == b"a\n"
    tail.stdout.close()
    assert tail.wait(DEADLINE) == 0
    assert tail.stderr.read() == b""


def test_formats_grep_count_and_shard(aws, pykcl):
    put(aws, b"apple", b"pear", b"apricot", b"avocado")
    put(aws, b"aubergine", high=True)
    done = pykcl("tail", "orders", "-e", "--shard", "0", "--grep", "^a", "-n", "2", "-f", "%p/%k/%S/%s\\n")
    assert done.stdout == f"{FIRST}/key/5/apple\n{FIRST}/key/7/apricot\n".encode()
    (line,) = pykcl("tail", "orders", "-e", "--shard", SECOND, "-o", "jsonl").stdout.splitlines()
    told = json.loads(line)
    assert (told["shard"], told["data"], told["partition_key"]) == (SECOND, "aubergine", "key")
    (line,) = pykcl("tail", "orders", "-e", "--shard", "1", "-o", "wide").stdout.splitlines()
    assert line.split()[1:] == [SECOND.encode(), told["sequence_number"].encode(), b"key", b"aubergine"]


def test_payloads_are_inert_unless_raw_is_asked_for(aws, pykcl):
    hostile = b"\x1b]0;owned\x07\xff\n\r\x00"
    put(aws, hostile)
    assert pykcl("tail", "orders", "-e").stdout == b"\\x1b]0;owned\\x07\\xff\\n\\r\\x00\n"
    assert pykcl("tail", "orders", "-e", "-f", "%s", "--payload", "raw").stdout == hostile


def test_tail_follows_a_reshard_parents_first(aws, pykcl):
    put(aws, b"1")
    aws.kinesis.split("orders", FIRST)
    put(aws, b"2")
    assert pykcl("tail", "orders", "-e").stdout == b"1\n2\n"
    an_hour_ago = str(round((time.time() - 3600) * 1000))
    assert pykcl("tail", "orders", "--shard", "0", "--since", an_hour_ago).stdout == b"1\n"
    done = pykcl("tail", "orders", "--shard", "0", "--since", "1h")
    assert done.stdout == b"1\n"
    assert b"goes on in shardId-000000000002" in done.stderr


def test_a_closed_shard_has_nothing_new(aws, pykcl):
    aws.kinesis.split("orders", FIRST)
    done = pykcl("tail", "orders", "--shard", "0")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"has nothing to show from there on" in done.stderr


def test_tail_begins_where_an_application_stands(aws, dynamodb, pykcl):
    numbers = [aws.kinesis.put_record("orders", b"%d" % n, "k", 0).sequence_number for n in range(4)]
    put(aws, b"high", high=True)
    create_lease_table(dynamodb)
    for shard, number in ((FIRST, numbers[1]), (SECOND, "SHARD_END")):
        dynamodb.put_item(
            TableName="orders-app",
            Item={
                "leaseKey": {"S": shard},
                "checkpoint": {"S": number},
                "checkpointSubSequenceNumber": {"N": "0"},
                "leaseCounter": {"N": "5"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
            },
        )
    assert pykcl("tail", "orders", "--from-app", "orders-app", "-e").stdout == b"2\n3\n"


def test_tail_gets_through_faults(aws, pykcl):
    put(aws, *(b"%d" % number for number in range(50)))
    aws.faults.replace([FaultRule(kind, "kinesis", "GetRecords", times=1) for kind in ("throttle", "error")])
    assert pykcl("tail", "orders", "-e").stdout.split() == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["tail"], 2, "Missing argument 'STREAM'"),
        (["tail", "ordes", "-e"], 1, "Did you mean 'orders'?"),
        (["tail", "orders", "--since", "yesterday"], 2, "neither a time nor a duration"),
        (["tail", "orders", "--since", "2026-11-20T09:00:00"], 2, "no time zone"),
        (["tail", "orders", "--since", "2199-01-01T00:00Z"], 1, "is in the future"),
        (["tail", "orders", "--grep", "("], 2, "not a regular expression"),
        (["tail", "orders", "--shard", "77"], 1, "There is no shard '77'"),
        (["tail", "orders", "-f", "%z"], 2, "unknown sign %z"),
        (["tail", "orders", "-f", "%s", "-o", "jsonl"], 2, "Use one of them"),
        (["tail", "orders", "-o", "jsonl", "--payload", "raw"], 2, "--payload base64"),
        (["tail", "orders", "-n", "0"], 2, "x>=1"),
        (["tail", "orders", "--from-app", "nobody"], 1, "There is no lease table 'nobody'"),
        (["tail", "orders", "--from-app", "a-b", "--since", "1h"], 2, "Use one of them"),
        (["tail", "orders", "--application", "a-b"], 2, "--from-app"),
        (["put", "ordes"], 1, "Did you mean 'orders'?"),
        (["put", "orders", "--file", "nowhere.txt"], 2, "cannot be read"),
        (["put", "orders", "--key", "a", "--key-field", "b"], 2, "exclude one another"),
        (["put", "orders", "--rate", "0"], 2, "x>0"),
        (["streams", "describe", "ordes"], 1, "Did you mean 'orders'?"),
        (["streams", "describe"], 2, "No stream"),
    ],
)
def test_bad_input_is_answered_with_what_why_and_what_to_do(pykcl, arguments, code, told):
    done = pykcl(*arguments)
    assert done.returncode == code, done.stderr
    assert told in done.stderr.decode()
    assert b"Traceback" not in done.stderr


# -- put -------------------------------------------------------------------------------------------------------


def test_put_puts_every_line_and_says_how_many(aws, pykcl):
    done = pykcl("put", "orders", input=b"a\n\nb\nlast without line feed")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"put 3 records into orders\n", b"")
    assert sorted(stored(aws)) == [b"a", b"b", b"last without line feed"]


def test_put_reads_files_and_takes_keys_from_fields(aws, pykcl, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"id": "c-1"}\n{"id": "c-2"}\n')
    done = pykcl("put", "orders", "--file", str(tmp_path / "in.jsonl"), "--key-field", "id")
    assert done.returncode == 0
    keys = pykcl("tail", "orders", "-e", "-f", "%k %s\\n").stdout.splitlines()
    assert sorted(keys) == [b'c-1 {"id": "c-1"}', b'c-2 {"id": "c-2"}']


@pytest.mark.parametrize("aggregate", [(), ("--aggregate",)])
def test_put_loses_nothing_when_kinesis_throttles_and_drops_answers(aws, pykcl, aggregate):
    aws.faults.replace(
        [FaultRule(kind, "kinesis", "PutRecords", times=1) for kind in ("throttle", "error", "error-after")]
    )
    count = 3000
    done = pykcl("put", "orders", *aggregate, input=b"".join(b"%d\n" % n for n in range(count)))
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"put %d records into orders\n" % count
    seen = Counter(pykcl("tail", "orders", "-e").stdout.split())
    assert seen.keys() == {b"%d" % number for number in range(count)}
    assert b"may be in twice" in done.stderr
    assert b"not put yet" not in done.stderr
    assert sum(seen.values()) > count


def test_put_says_where_aggregates_would_not_be_read_and_puts_plain_records(aws, pykcl):
    aws.kinesis.create_stream("auto", 2, mode="ON_DEMAND", distribution="AUTO")
    done = pykcl("put", "auto", "--aggregate", input=b"a\nb\n")
    assert done.stdout == b"put 2 records into auto\n"
    assert b"records go plain, without --aggregate: the stream puts them into any shard" in done.stderr
    assert b"records go plain" not in pykcl("put", "auto", input=b"c\n").stderr
    assert b"records go plain" not in pykcl("put", "orders", "--aggregate", input=b"c\n").stderr


def test_put_keeps_to_the_limits_of_a_shard(pykcl):
    with LocalAws(limits=True) as limited:
        limited.kinesis.create_stream("orders", 1)
        lines = b"".join(b"%d\n" % number for number in range(2500))
        done = pykcl("put", "orders", input=lines, **local_environment(limited.url))
        assert done.stdout == b"put 2500 records into orders\n"
        assert Counter(stored(limited)) == Counter(lines.split())


@pytest.mark.parametrize("aggregate", [(), ("--aggregate",)])
def test_a_bad_line_loses_nothing_before_it_and_says_how_to_go_on(aws, pykcl, aggregate):
    lines = b'{"id": 1}\n{"id": 2}\n{"id": 3\n{"id": 4}\n'
    done = pykcl("put", "orders", "--input", "jsonl", *aggregate, input=lines)
    assert done.returncode == 1
    assert done.stdout == b"put 2 records into orders\n"
    told = done.stderr.decode()
    assert "line 3 is not JSON" in told
    assert "lines 1 to 2 are in" in told
    assert "--from-line 3" in told
    mended = lines.replace(b'{"id": 3\n', b'{"id": 3}\n')
    done = pykcl("put", "orders", "--input", "jsonl", "--from-line", "3", *aggregate, input=mended)
    assert (done.returncode, done.stdout) == (0, b"put 2 records into orders\n")
    assert sorted(pykcl("tail", "orders", "-e").stdout.splitlines()) == mended.splitlines()


def test_bad_lines_can_be_passed_over_but_not_in_silence(aws, pykcl):
    done = pykcl(
        "put", "orders", "--key-field", "id", "--on-bad", "skip", input=b'{"id": 1}\n{}\nx\n{"id": 4}\n'
    )
    assert done.returncode == 1
    assert sorted(stored(aws)) == [b'{"id": 1}', b'{"id": 4}']
    assert b"line 2 has no field 'id'" in done.stderr
    assert b"2 lines were skipped" in done.stderr


def test_a_record_that_is_too_large_is_told_by_its_line(aws, pykcl):
    done = pykcl("put", "orders", "--key", "k", input=b"small\n" + b"x" * 1024 * 1024 + b"\n")
    assert done.returncode == 1
    assert b"line 2 makes a record of 1048577 bytes" in done.stderr
    assert stored(aws) == [b"small"]


def test_a_line_without_an_end_is_not_read_into_memory_for_ever(pykcl):
    done = pykcl("put", "orders", input=b"x" * 30_000_000)
    assert done.returncode == 1
    assert b"line 1 is larger than any record may be" in done.stderr


def test_lines_that_come_slowly_are_put_as_they_come(aws, start):
    process = start("put", "orders")
    for line in (b"one", b"two"):
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        wait_until(lambda line=line: line in stored(aws), f"{line!r} was never put")
    process.stdin.close()
    assert process.wait(DEADLINE) == 0


def test_ctrl_c_puts_what_was_read_and_says_how_far_it_came(aws, start):
    process = start("put", "orders")
    process.stdin.write(b"".join(b"%d\n" % number for number in range(1, 701)))
    process.stdin.flush()
    wait_until(lambda: stored(aws), "nothing was put")
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE) == 130
    (told,) = re.findall(rb"lines 1 to (\d+) are in. Do: go on with --from-line", process.stderr.read())
    assert len(stored(aws)) == int(told)
    assert process.stdout.read() == b"put %s records into orders\n" % told


def test_a_second_ctrl_c_gives_up_what_is_refused_and_accounts_for_it(aws, start):
    aws.faults.replace([FaultRule("throttle", "kinesis", "PutRecords")])
    process = start("put", "orders")
    process.stdin.write(b"a\nb\n")
    process.stdin.flush()
    wait_until(lambda: sum(aws.faults.counts.values()) > 1, "nothing was refused")
    process.send_signal(signal.SIGINT)
    refused = sum(aws.faults.counts.values())
    wait_until(lambda: sum(aws.faults.counts.values()) > refused + 1, "it did not go on trying")
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE) == 1
    assert process.stdout.read() == b"put 0 records into orders\n"
    assert b"2 records were still being rejected" in process.stderr.read()


def test_closed_standard_input_is_told(aws):
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m pykcl.cli put orders <&-"],
        env=environment(aws), capture_output=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"Standard input is closed" in done.stderr


def test_what_tail_writes_can_be_put_into_another_stream(aws, pykcl):
    put(aws, b"\xff\x00\n", b"text", '{"a": "ü"}'.encode())
    aws.kinesis.create_stream("copy", 1)
    lines = pykcl("tail", "orders", "-e", "-o", "jsonl").stdout
    assert pykcl("put", "copy", "--input", "records", input=lines).returncode == 0
    copied = pykcl("tail", "copy", "-e", "-f", "%k=%s;", "--payload", "hex").stdout
    original = pykcl("tail", "orders", "-e", "-f", "%k=%s;", "--payload", "hex").stdout
    assert Counter(copied.split(b";")) == Counter(original.split(b";"))


# -- streams ---------------------------------------------------------------------------------------------------


def test_streams_are_listed_in_every_format(aws, pykcl):
    aws.kinesis.create_stream("archive", 1)
    assert [line.split()[0] for line in pykcl("streams", "list").stdout.splitlines()] == [
        b"STREAM",
        b"archive",
        b"orders",
    ]
    rows = json.loads(pykcl("streams", "list", "-o", "json").stdout)["rows"]
    assert [(row["name"], row["open_shards"], row["retention_hours"]) for row in rows] == [
        ("archive", 1, 24),
        ("orders", 2, 24),
    ]
    assert len(pykcl("streams", "list", "-o", "jsonl").stdout.splitlines()) == 2
    assert pykcl("streams", "list", "-o", "csv").stdout.startswith(b"name,status,")


def test_no_streams_at_all_gets_a_hint(pykcl, aws):
    aws.kinesis.delete_stream("orders")
    assert b"there is no stream here" in pykcl("streams", "list").stdout


def test_a_stream_is_described_with_its_family_and_coverage(aws, pykcl):
    aws.kinesis.split("orders", FIRST)
    done = pykcl("streams", "describe", "orders")
    text = done.stdout.decode()
    assert "3 open, 1 closed; hash keys covered" in text
    assert re.search(rf"{FIRST} +closed +50.00 % +- +shardId-000000000002,shardId-000000000003", text)
    found = json.loads(
        pykcl(
            "streams", "describe", "arn:aws:kinesis:us-east-1:000000000000:stream/orders", "-o", "json"
        ).stdout
    )
    assert (found["stream"], found["open_shards"], found["consumers"]) == ("orders", 3, [])
    assert sum(row["share"] for row in found["rows"] if row["state"] == "open") == 1


def test_a_narrow_terminal_keeps_what_matters(aws, pykcl):
    text = pykcl("streams", "describe", "orders", COLUMNS="40").stdout.decode()
    table = text[text.index("SHARD ") :].splitlines()
    assert all(len(line) <= 40 for line in table)
    assert table[1].split()[:2] == [FIRST, "open"]
