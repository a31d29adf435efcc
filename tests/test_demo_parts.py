"""The demo's producer, its ledger, and its two views, without a fleet."""

from __future__ import annotations

import io
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pykcl import events
from pykcl.cli import demo as command
from pykcl.cli import demo_worker
from pykcl.cli.demo_board import Board, Entry, ShardLine, WorkerLine, grouped
from pykcl.cli.demo_crew import worker_environment
from pykcl.cli.demo_ledger import LedgerFile, Ledgers, payload, payload_id
from pykcl.cli.demo_live import LiveView, picture
from pykcl.cli.demo_plain import PlainView
from pykcl.cli.demo_producer import CELLS, Mix, Producer, cell_of, cells_in
from pykcl.cli.demo_verdict import Verdict
from pykcl.errors import ConfigError
from pykcl.local.resharding import HASH_KEYS
from pykcl.local.stream import AwsError, LocalKinesis
from pykcl.local.stream import Entry as PutEntry
from pykcl.model.kpl import deaggregate, may_be_aggregated
from pykcl.model.record import Record
from pykcl.model.shard import HashRange

PASS = Verdict(9852, 6208, 9852, 202, 0, 0, ())
FAIL = Verdict(9852, 6208, 9804, 202, 48, 1, tuple(f"reason {number} " + "x" * 60 for number in range(9)))


# -- the producer ------------------------------------------------------------------------------------------------


class ModelClient:
    """put_records of boto3's client over the stream model; every n-th entry is refused once."""

    def __init__(self, kinesis: LocalKinesis, refuse_every: int = 0) -> None:
        self.kinesis = kinesis
        self.refuse_every = refuse_every
        self.entries = 0

    def put_records(self, **request: Any) -> dict[str, Any]:
        answers: list[dict[str, str]] = []
        for record in request["Records"]:
            self.entries += 1
            if self.refuse_every and self.entries % self.refuse_every == 0:
                answers.append({"ErrorCode": "InternalFailure"})
                continue
            (put,) = self.kinesis.put_records("demo", [PutEntry(record["Data"], record["PartitionKey"])])
            assert not isinstance(put, AwsError)
            answers.append({"ShardId": put.shard_id, "SequenceNumber": put.sequence_number})
        return {"Records": answers}


@pytest.fixture
def kinesis() -> LocalKinesis:
    model = LocalKinesis(lambda: 1_700_000_000_000)
    model.create_stream("demo", 4)
    return model


def users_of(data: bytes, partition_key: str) -> list[Record]:
    return list(deaggregate(Record(data, partition_key, "1"), None))


def test_the_same_seed_draws_the_same_records_and_another_one_does_not():
    first, second, other = (Mix(seed).draw(300) for seed in (7, 7, 8))
    assert first == second
    assert [put.data for put in first] != [put.data for put in other]


def test_a_draw_holds_exactly_the_ids_it_names_plain_and_aggregated():
    puts = Mix(7).draw(500)
    assert [number for put in puts for number in put.ids] == list(range(500))
    for put in puts:
        users = users_of(put.data, put.partition_key)
        assert [payload_id(user.data) for user in users] == list(put.ids)
    assert {may_be_aggregated(put.data) for put in puts} == {True, False}


def test_all_records_of_an_aggregate_lie_in_one_cell():
    for put in Mix(3).draw(2000):
        cells = {cell_of(user.partition_key) for user in users_of(put.data, put.partition_key)}
        assert len(cells) == 1


def test_no_shard_of_the_demo_cuts_a_cell(kinesis):
    kinesis.split("demo", "shardId-000000000001")
    kinesis.merge("demo", "shardId-000000000002", "shardId-000000000003")
    ranges = [shard.hash_range for shard in kinesis.list_shards("demo") if shard.is_open]
    assert sorted(cell for one in ranges for cell in cells_in(one)) == list(range(CELLS))


def test_a_range_smaller_than_a_cell_holds_none():
    assert cells_in(HashRange("0", str(HASH_KEYS // CELLS - 2))) == ()


def test_the_producer_counts_what_the_server_counts_even_when_entries_are_refused(kinesis):
    producer = Producer(ModelClient(kinesis, refuse_every=5), "demo", seed=1, rate=100)
    everything = HashRange("0", str(HASH_KEYS - 1))
    producer.burst(700, [everything])
    assert producer.placed.keys() == set(range(700))
    assert producer.kinesis_records == sum(kinesis.put_counts("demo").values())
    assert {shard: len(numbers) for shard, numbers in producer.sequences.items()} == kinesis.put_counts(
        "demo"
    )
    last = producer.last_sequence("shardId-000000000000")
    assert last is not None
    assert producer.put_up_to("shardId-000000000000", last) == len(producer.sequences["shardId-000000000000"])


def test_a_burst_goes_into_the_given_ranges_only(kinesis):
    producer = Producer(ModelClient(kinesis), "demo", seed=1, rate=100)
    wanted = kinesis.list_shards("demo")[2]
    producer.burst(50, [wanted.hash_range])
    assert set(producer.placed.values()) == {wanted.shard_id}


def test_a_payload_carries_its_number_and_anything_else_none():
    assert payload_id(payload(17, 100)) == 17
    assert len(payload(17, 100)) == 100
    assert payload_id(b"not json") is None
    assert payload_id(b"[1]") is None
    assert payload_id(b'{"id": "x"}') is None


# -- the ledger --------------------------------------------------------------------------------------------------


def record(number: int, sub: int = 0) -> Record:
    return Record(payload(number, 40), "k", "100", shard_id="s0", sub_sequence_number=sub)


def test_what_a_worker_wrote_down_is_read_back_while_the_file_grows(tmp_path: Path):
    ledgers, file = Ledgers(), LedgerFile(tmp_path / "py-1.jsonl", "py-1")
    ledgers.add(tmp_path / "py-1.jsonl")
    ledgers.add(tmp_path / "not-there-yet.jsonl")
    file.note("Batch", shard="s0", records=3)
    ledgers.poll()
    assert ledgers.in_hand("py-1") == 3
    file.delivered(5, [record(1), record(2, sub=1)])
    file.note("LeaseReleased", shard="s0")
    ledgers.poll()
    assert [(one.worker, one.run, one.sequence, one.sub, one.id) for one in ledgers.deliveries] == [
        ("py-1", 5, "100", 0, 1),
        ("py-1", 5, "100", 1, 2),
    ]
    assert ledgers.in_hand("py-1") == 1
    assert [(note.kind, note.shard) for note in ledgers.notes] == [("LeaseReleased", "s0")]
    assert ledgers.user_records == {"s0": 2}
    assert ledgers.sequences == {"s0": {"100"}}


def test_a_line_without_an_end_was_not_delivered_until_it_has_one(tmp_path: Path):
    path = tmp_path / "py-1.jsonl"
    ledgers = Ledgers()
    ledgers.add(path)
    LedgerFile(path, "py-1").delivered(1, [record(1), record(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    ledgers.poll()
    assert ledgers.ids == {1}
    path.write_bytes(whole)
    ledgers.poll()
    assert ledgers.ids == {1, 2}


# -- the views ---------------------------------------------------------------------------------------------------


def full_board(verdict: Verdict | None = None) -> Board:
    """The busiest picture there is: seven shards, three workers, six entries with the longest texts."""
    states = ["open", "ended", "closed", "open", "open", "open", "open"]
    owners = ["py-1", None, "py-2", "py-3", "py-1", None, "py-1"]
    shards = [
        ShardLine(
            f"shardId-{number:012d}",
            ("shardId-000000000001",) * (number // 3),
            states[number],
            owners[number],
            put=1300,
            delivered=1250,
            checkpointed=900,
        )
        for number in range(7)
    ]
    workers = [
        WorkerLine("py-1", "running", 5, 123456),
        WorkerLine("py-2", "stopped", 0, 9),
        WorkerLine("py-3", "killed", 2, 9),
    ]
    texts = ("merge 002+003", "2 leases, 1 178 undelivered", "py-1 py-2 deliver after 13.3s")
    return Board(
        "http://127.0.0.1:1",
        9999,
        4,
        elapsed=62.3,
        phase="SIGTERM py-2: it finishes, checkpoints and releases",
        shards=shards,
        workers=workers,
        entries=[Entry(10.0 * number, *texts) for number in range(6)],
        produced=48000,
        processed=47000,
        duplicates=212,
        steals=2,
        verdict=verdict,
    )


def drawn(board: Board, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(picture(board, height))
    return console.file.getvalue().rstrip("\n").split("\n")


def board_with_java(verdict: Verdict | None = None) -> Board:
    """One worker, one joining and one kill more."""
    board = full_board(verdict)
    board.java = "2.7.2"
    board.workers.append(WorkerLine("java", "running", 5, 123456))
    board.entries += board.entries[:2]
    return board


@pytest.mark.parametrize("verdict", [None, PASS])
@pytest.mark.parametrize("board", [full_board, board_with_java])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 32), (200, 60)])
def test_the_picture_fits_into_the_terminal(board, verdict, width, height):
    lines = drawn(board(verdict), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    # Cut texts end in an ellipsis; only the tail of the next steps may be cut.
    assert not [line for line in lines if "…" in line]


def test_the_picture_shows_shards_lineage_owners_and_progress():
    text = "\n".join(drawn(full_board()))
    for wanted in (
        "001+001",
        "closed",
        "py-3 ✗",
        "● py-1 5 leases",
        "○ py-2 stopped",
        "produced 48 000",
        "1 300",
    ):
        assert wanted in text
    row = next(line for line in text.split("\n") if line.startswith("000 "))
    assert row.count("█") == 900 * 20 // 1300
    assert row.count("▓") == 1250 * 20 // 1300 - 900 * 20 // 1300


def test_the_last_picture_says_why_it_is_no_pass():
    text = "\n".join(drawn(full_board(FAIL), 100, 50))
    assert "FAIL" in text
    assert "lost 48" in text
    assert "because reason 0" in text
    assert "PASS" not in text


def test_the_live_view_keeps_its_last_picture():
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80, height=24, force_terminal=True, color_system=None))
    board = full_board()
    view.begin(board)
    view.entry(board.entries[0])
    board.verdict = PASS
    view.end(board)
    view.say("export A=[b]")
    assert "PASS" in out.getvalue()
    assert out.getvalue().endswith("export A=[b]\n")


def test_the_plain_view_prints_the_start_each_entry_and_the_verdict():
    out = io.StringIO()
    view, board = PlainView(out), full_board(PASS)
    view.begin(board)
    view.refresh(board)
    view.entry(Entry(8.04, "kill -9 py-3", "2 leases, 178 undelivered", "py-1 delivers after 3.3s"))
    view.end(board)
    first, entry, _, totals, last = out.getvalue().splitlines()
    assert first.endswith("endpoint http://127.0.0.1:1 (local)")
    assert entry == " t+  8.0s  kill -9 py-3     2 leases, 178 undelivered      → py-1 delivers after 3.3s"
    assert totals.endswith("duplicates 202 (at-least-once: 1 kill, 2 steals) · lost 0 · out of order 0")
    assert last.startswith("PASS")


def test_the_plain_view_says_fail_and_every_reason():
    out = io.StringIO()
    PlainView(out).end(full_board(FAIL))
    lines = out.getvalue().splitlines()
    assert lines[-1] == "FAIL"
    assert len([line for line in lines if line.startswith("  because reason")]) == 9


def test_the_plain_view_survives_an_ascii_terminal():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    PlainView(out).say("a · b → c ─ é")
    assert raw.getvalue() == b"a - b > c - ?\n"


def test_without_a_verdict_nothing_is_claimed():
    out = io.StringIO()
    PlainView(out).end(full_board())
    assert out.getvalue() == ""


def test_thousands_are_grouped_by_spaces():
    assert [grouped(number) for number in (7, 1234, 48000)] == ["7", "1 234", "48 000"]


# -- the command -------------------------------------------------------------------------------------------------


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(
        command.importlib.util, "find_spec", lambda name: None if name == "moto" else object()
    )
    with pytest.raises(ConfigError, match=r"needs moto, which is not installed.*pip install 'pykcl\[demo\]'"):
        command.refuse_missing_parts()
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"cbor2, hypercorn, moto, py_partiql_parser, which are not installed"
    ):
        command.refuse_missing_parts()


def test_an_unknown_break_is_refused(monkeypatch):
    monkeypatch.setenv("PYKCL_DEMO_BREAK", "nonsense")
    with pytest.raises(ConfigError, match="checkpoint-before-delivery"):
        command.chosen_break()


def test_workers_see_the_local_aws_and_nothing_else_of_aws():
    surroundings = {
        "PATH": "/bin",
        "AWS_PROFILE": "prod",
        "AWS_ENDPOINT_URL_KINESIS": "https://elsewhere",
        "HTTP_PROXY": "http://proxy",
    }
    environment = worker_environment(surroundings, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert environment["PATH"] == "/bin"
    assert environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert environment["NO_PROXY"] == "127.0.0.1"
    assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL_KINESIS"} & environment.keys()


EVENTS = [
    found for found in vars(events).values() if isinstance(found, type) and issubclass(found, events.Event)
]


@pytest.mark.parametrize(
    "event", [one for one in EVENTS if one is not events.Event], ids=lambda one: one.__name__
)
def test_every_event_of_a_worker_can_be_written_down_and_read_again(event, tmp_path: Path):
    # One that could not would silence the listener, and the demo would miss every alarm after it.
    values = {field.name: "x" for field in fields(event)}
    demo_worker._write_down(LedgerFile(tmp_path / "w.jsonl", "py-1"), event(**values))
    ledgers = Ledgers()
    ledgers.add(tmp_path / "w.jsonl")
    ledgers.poll()
    (note,) = ledgers.notes
    assert (note.kind, note.worker) == (event.__name__, "py-1")
    assert dict(note.fields) == {name: "x" for name in values if name != "worker_id"}
