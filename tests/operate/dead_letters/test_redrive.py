"""Redrive of letters in files: what is settled and when, what is refused, and that nothing is settled too early."""

import json
from contextlib import suppress
from typing import ClassVar

import pytest

from pykcl import lambda_processor
from pykcl.dead_letters import LetterFiles
from pykcl.errors import CheckpointRefused, Refused, SetupError
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.letter_json import MAX_LETTER_BYTES, letter_text
from pykcl.operate.dead_letters import sources
from pykcl.operate.dead_letters.redrive import Selection, Streams, ToHandler, redrive
from pykcl.operate.dead_letters.sources import FileSource
from pykcl.processor import RecordProcessor
from pykcl.runtime import SystemRuntime
from tests.letters import ARN, SECRET, letter, record


class Recorder(RecordProcessor):
    """calls: everything that happened to all instances."""

    calls: ClassVar[list] = []

    def __init__(self):
        self.number = sum(1 for call in Recorder.calls if call[0] == "new")
        Recorder.calls.append(("new", self.number))

    def initialize(self, init):
        Recorder.calls.append(
            ("initialize", self.number, init.shard_id, str(init.position), init.fencing_token)
        )

    def process_records(self, batch):
        Recorder.calls.append(("process", self.number, [str(record.position) for record in batch]))

    def shutdown_requested(self, request):
        Recorder.calls.append(("shutdown", self.number))


@pytest.fixture(autouse=True)
def _no_calls():
    Recorder.calls = []


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "letters"


def keep(folder, *letters):
    LetterFiles(folder, "w", SystemRuntime()).send(letters)


def no_stream(arn):
    raise AssertionError(f"{arn} was opened")


def run(folder, receiver, selection=None, streams=None):
    source = FileSource(folder)
    return list(
        redrive(source, selection or Selection(), streams or Streams(no_stream), SystemRuntime(), receiver)
    )


def left(folder):
    return [one.letter.id for chunk in FileSource(folder).chunks() for one in chunk if one.letter]


def test_one_instance_for_each_shard_gets_its_letters_in_order_and_is_shut_down(folder):
    other = "shardId-000000000002"
    keep(
        folder,
        letter(record(300)),
        letter(record(100), record(101)),
        letter(record(5, shard_id=other), shard_id=other),
    )
    assert [one.problem for one in run(folder, ToHandler(Recorder))] == ["", "", ""]
    assert Recorder.calls == [
        ("new", 0), ("initialize", 0, "shardId-000000000001", "100:0", 0),
        ("process", 0, ["100:0", "101:0"]), ("process", 0, ["300:0"]), ("shutdown", 0),
        ("new", 1), ("initialize", 1, other, "5:0", 0), ("process", 1, ["5:0"]), ("shutdown", 1),
    ]  # fmt: skip
    assert left(folder) == []


def test_a_lambda_handler_gets_the_event_and_the_context_of_the_failed_call(folder):
    calls = []
    keep(folder, letter(record(1)))
    handler = lambda_processor(lambda event, context: calls.append((event, context)))
    assert [outcome.problem for outcome in run(folder, ToHandler(handler))] == [""]
    ((event, context),) = calls
    assert event["Records"][0]["eventSourceARN"] == ARN
    assert (context.function_name, context.log_stream_name) == ("orders-app", letter(record(1)).shard_id)
    assert left(folder) == []


def test_a_handler_with_windows_gets_no_letter_as_it_is_in_none(folder):
    keep(folder, letter(record(1)))
    (problem,) = (one.problem for one in run(folder, ToHandler(lambda_processor(print, window=60))))
    assert "--to-stream" in problem
    assert left(folder) == [letter(record(1)).id]


def test_a_dry_run_calls_nothing_and_settles_nothing(folder):
    keep(folder, letter())
    assert [one.problem for one in run(folder, None)] == [""]
    assert left(folder) == [letter().id]


def test_what_fails_again_stays_and_says_class_and_place_only(folder):
    class Choosy(Recorder):
        def process_records(self, batch):
            if batch[0].sequence_number == "101":
                raise KeyError(batch[0].data)

    keep(folder, letter(record(100)), letter(record(101)), letter(record(102)))
    problems = [one.problem for one in run(folder, ToHandler(Choosy))]
    assert problems[0] == problems[2] == ""
    assert problems[1].startswith("process_records raised KeyError at test_redrive.py:")
    assert SECRET not in problems[1]
    assert left(folder) == [letter(record(101)).id]


@pytest.mark.parametrize("method", ["initialize", "shutdown_requested"])
def test_nothing_is_settled_where_the_beginning_or_the_end_fails(folder, method):
    def fail(self, _):
        raise SystemExit(3)

    keep(folder, letter(record(100)), letter(record(101)))
    failing = type("Failing", (Recorder,), {method: fail})
    problems = [one.problem for one in run(folder, ToHandler(failing))]
    assert all(problem.startswith(f"{method} raised SystemExit") for problem in problems)
    assert len(left(folder)) == 2


def test_a_coroutine_that_nobody_runs_settles_nothing(folder):
    class Lazy(Recorder):
        def process_records(self, batch):
            async def work():
                """Never run."""

            return work()

    keep(folder, letter())
    [outcome] = run(folder, ToHandler(Lazy))
    assert outcome.problem.startswith("process_records raised NeverRan")
    assert left(folder) == [letter().id]


def test_a_processor_that_checkpoints_by_itself_settles_what_it_checkpointed(folder):
    class Manual(Recorder):
        def process_records(self, batch):
            if batch[0].sequence_number == "100":
                batch.checkpointer.checkpoint(batch[0])
                with pytest.raises(CheckpointRefused):
                    batch.checkpointer.checkpoint(Checkpoint("999"))

    keep(folder, letter(record(100)), letter(record(101)))
    assert ["by itself" in one.problem for one in run(folder, ToHandler(Manual))] == [False, True]
    assert left(folder) == [letter(record(101)).id]
    Manual.process_records = lambda self, batch: batch.checkpointer.prepare_checkpoint(
        state=b"x"
    ).checkpoint()
    assert [one.problem for one in run(folder, ToHandler(Manual))] == [""]


@pytest.mark.parametrize("way", ["is refused", "is prepared only"])
def test_a_processor_whose_only_checkpoint_did_not_come_about_settles_nothing(folder, way):
    class Manual(Recorder):
        def process_records(self, batch):
            if way == "is prepared only":
                batch.checkpointer.prepare_checkpoint()
                return
            with suppress(CheckpointRefused):
                batch.checkpointer.checkpoint(Checkpoint("999"))

    keep(folder, letter())
    assert ["by itself" in one.problem for one in run(folder, ToHandler(Manual))] == [True]
    assert left(folder) == [letter().id]


def test_copies_of_a_letter_are_redriven_once_and_settled_together(folder):
    keep(folder, letter(), letter(), letter(worker_id="another", attempts=9))
    [outcome] = run(folder, ToHandler(Recorder))
    assert len(outcome.copies) == 3
    assert [call for call in Recorder.calls if call[0] == "process"] == [("process", 0, ["100:0"])]
    assert left(folder) == []


def test_copies_in_another_chunk_are_settled_without_a_second_call(folder, monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHUNK", 1)
    keep(folder, letter(), letter())
    assert len(run(folder, ToHandler(Recorder))) == 1
    assert len([call for call in Recorder.calls if call[0] == "process"]) == 1
    assert left(folder) == []


def test_a_letter_that_only_has_the_identifier_of_another_is_no_copy_of_it(folder):
    keep(folder, letter())
    forged = json.loads(letter_text(letter()))
    forged["payload"] = json.loads(letter_text(letter(record(data=b"other"))))["payload"]
    [path] = folder.iterdir()
    path.write_text(json.dumps(forged) + "\n" + path.read_text())
    assert [len(one.copies) for one in run(folder, ToHandler(Recorder))] == [1, 1]


def test_only_selected_letters_are_redriven(folder):
    keep(
        folder,
        letter(record(100)),
        letter(record(101), created_at=5),
        letter(record(102), application="other"),
    )
    ids = frozenset({letter(record(100)).id, letter(record(101), created_at=5).id})
    run(folder, None, Selection(ids=ids))
    assert len(run(folder, None, Selection(ids=ids, since=10))) == 1
    assert len(run(folder, None, Selection(application="orders-app"))) == 2


def test_hostile_letters_are_refused_with_a_reason_and_left_in_place(folder):
    keep(folder, letter())
    [path] = folder.iterdir()
    with path.open("a") as file:
        file.write("x" * (3 * MAX_LETTER_BYTES) + "}\n")
        file.write("[" * 100_000 + "}\n")
        file.write('{"KinesisBatchInfo": {}}\n')
    before = path.read_bytes()
    outcomes = run(folder, ToHandler(Recorder))
    problems = {one.found.place.partition(":")[2]: one.problem for one in outcomes}
    assert problems == {
        "1": "",
        "2": "it is no letter: it has 67,108,866 bytes, more than 67,108,864",
        "3": "it is no letter: it is nested more than 200 levels deep",
        "4": "it is no letter: it has no requestContext",
    }
    assert path.read_bytes() == before


class OneStream:
    """A stream that was created at a time."""

    def __init__(self, created_at):
        self.created_at = created_at

    def describe(self):
        return self


@pytest.mark.parametrize(
    ("only", "created_at", "problem"),
    [
        ("orders", 1763800000000, ""),
        (ARN, 1763800000000, ""),
        ("other", 1763800000000, "it is of stream orders, not of other"),
        ("orders", 1763800000001, "deleted and created again"),
    ],
)
def test_letters_of_another_stream_or_incarnation_are_refused(folder, only, created_at, problem):
    keep(folder, letter())
    streams = Streams(lambda _: OneStream(created_at), only)
    [outcome] = run(folder, ToHandler(Recorder), streams=streams)
    assert problem in outcome.problem
    assert bool(left(folder)) == bool(problem)


class Killed(BaseException):
    """The end of the process at this point."""


@pytest.mark.parametrize("point", range(12))
def test_killed_at_each_point_nothing_is_settled_that_was_not_processed(folder, monkeypatch, point):
    keep(folder, *(letter(record(number)) for number in range(3)))
    steps = iter(range(1000))
    processed = []

    def step():
        if next(steps) == point:
            raise Killed

    class Slow(Recorder):
        def process_records(self, batch):
            step()
            processed.extend(str(one.position) for one in batch)
            step()

    real = sources.write_all

    def write(descriptor, data):
        step()
        real(descriptor, data)
        step()

    monkeypatch.setattr(sources, "write_all", write)
    try:
        run(folder, ToHandler(Slow))
    except Killed:
        kept = {one.letter.first.sequence_number for chunk in FileSource(folder).chunks() for one in chunk}
        assert {f"{number}:0" for number in range(3)} - set(processed) <= {f"{one}:0" for one in kept}
    monkeypatch.setattr(sources, "write_all", real)
    run(folder, ToHandler(Recorder))
    assert left(folder) == []


class Beside(Recorder):
    """Another command redrives the same letters, while this one has one in hand."""

    others: ClassVar[list] = []

    def process_records(self, batch):
        super().process_records(batch)
        with pytest.raises(
            Refused, match=r"jsonl' is being redriven by another command. Do: wait until it has ended"
        ):
            run(self.folder, ToHandler(Recorder))
        assert [one.problem for one in run(self.folder, None)] == ["", ""], "a dry run has no part in it"


@pytest.mark.parametrize("names_the_file", [False, True], ids=["directory", "file"])
def test_two_redrives_of_a_file_at_once_send_no_letter_twice(folder, names_the_file, monkeypatch):
    keep(folder, letter(record(1)), letter(record(2)))
    (file,) = folder.iterdir()
    monkeypatch.setattr(Beside, "folder", file if names_the_file else folder, raising=False)
    assert [one.problem for one in run(folder, ToHandler(Beside))] == ["", ""]
    assert sum(call[0] == "process" for call in Recorder.calls) == 2
    assert left(folder) == []
    keep(folder, letter(record(3)))
    assert [one.problem for one in run(folder, ToHandler(Recorder))] == [""], "the first one has ended"


def test_a_note_that_was_cut_off_does_not_count(folder):
    keep(folder, letter(record(100)), letter(record(101)))
    run(folder, ToHandler(Recorder), Selection(ids=frozenset({letter(record(100)).id})))
    [done] = [path for path in folder.iterdir() if path.name.endswith(".done")]
    with done.open("a") as file:
        file.write("7")
    assert left(folder) == [letter(record(101)).id]
    run(folder, ToHandler(Recorder))
    assert left(folder) == []


def test_the_notes_of_letters_that_are_gone_settle_no_other_letter(folder):
    """After a truncation, a rotation or a restore, new letters counted as redriven, and no command showed them."""
    keep(folder, letter(record(100)), letter(record(101)), letter(record(102)))
    run(folder, ToHandler(Recorder))
    path = next(one for one in folder.iterdir() if one.name.endswith(".jsonl"))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    # The same sizes, so that each offset is one that a note names.
    path.write_text(letter_text(letter(record(200))) + "\n")
    assert path.stat().st_size == len(first)
    source = FileSource(folder)
    assert [one.letter.id for chunk in source.chunks() for one in chunk] == [letter(record(200)).id]
    assert source.note.startswith(f"3 notes in {path.name}.done were ignored")
    assert [one.problem for one in run(folder, ToHandler(Recorder))] == [""]
    assert left(folder) == []
    # Restored in another order: what has its note at its place is settled, what has not comes again.
    path.write_bytes(first + third + second)
    assert left(folder) == [letter(record(102)).id, letter(record(101)).id]


def test_a_letter_that_is_written_anew_at_the_same_place_is_another_one(folder):
    """Its records failed again after they were redriven, and its file had been truncated."""
    keep(folder, letter(attempts=3))
    run(folder, ToHandler(Recorder))
    path = next(one for one in folder.iterdir() if one.name.endswith(".jsonl"))
    path.write_text(letter_text(letter(attempts=4)) + "\n")
    assert left(folder) == [letter().id]


def test_a_note_of_an_identifier_alone_counts_for_the_letter_that_has_it(folder):
    keep(folder, letter(record(100)), letter(record(101)))
    path = next(iter(folder.iterdir()))
    size = len(path.read_bytes().splitlines(keepends=True)[0])
    done = path.with_name(path.name + ".done")
    ids = [letter(record(number)).id for number in (100, 101)]
    done.write_text(
        f"0 {ids[0]}\n{size} {ids[0]}\n{size + 1} {ids[1]}\n99999 {ids[1]}\n0\nx {ids[0]}\n\xff\n"
    )
    source = FileSource(path)
    assert [one.letter.id for chunk in source.chunks() for one in chunk] == [ids[1]]
    assert source.note.startswith(f"3 notes in {done.name} were ignored")
    assert not next(iter(source.chunks()))[0].problem


def test_a_file_may_have_one_letter_over_several_lines(tmp_path):
    path = tmp_path / "letter.json"
    path.write_text(json.dumps(json.loads(letter_text(letter())), indent=2))
    assert left(path) == [letter().id]
    assert [one.problem for one in run(path, ToHandler(Recorder))] == [""]
    assert left(path) == []


def test_a_source_that_cannot_be_read_says_so(tmp_path):
    with pytest.raises(Exception, match="No such file"):
        left(tmp_path / "nothing")
    (tmp_path / "letters").mkdir()
    assert left(tmp_path / "letters") == []
    (tmp_path / "one.letters.jsonl.done").mkdir()
    (tmp_path / "one.letters.jsonl").write_text(letter_text(letter()) + "\n")
    with pytest.raises(SetupError, match="Is a directory"):
        left(tmp_path)
