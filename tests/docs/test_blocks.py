"""Every code block and every command of README.md and docs/ is run, or parsed where there is nothing to run."""

import gc
import json
import queue
import re
import threading

import boto3
import pytest
from doc_console import DEADLINE, Running, Session, check_build_command
from doc_pages import LANGUAGES, PAGES, ROOT, all_blocks, blocks_of

from pykcl import Config, ConfigError, RecordProcessor, Worker
from pykcl.aws.credentials import specs_of
from pykcl.compat.properties import interpret, read_properties
from pykcl.config import read_toml
from pykcl.events import LeaseReleased, ProcessorRaised

BLOCKS = all_blocks()
CONSOLE_PAGES = sorted({block.page for block in BLOCKS if block.language == "console"})
PYTHON = [block for block in BLOCKS if block.language == "python"]
PROGRAMS = [block for block in PYTHON if "__main__" in block.text and block.page == "README.md"]
PIECES = [block for block in PYTHON if block.saved_as is None]
RECORDS = [f'{{"id": {number}}}'.encode() for number in range(12)]

JAVA_PROPERTIES = {"applicationName", "streamName", "initialPositionInStream", "failoverTimeMillis"}
"""Properties that real MultiLangDaemons were started with."""


def in_the_root():
    """Names of what is there, without what tools keep there."""
    return {path.name for path in ROOT.iterdir() if not path.name.startswith((".", "__"))}


def ids(blocks):
    return [block.id for block in blocks]


def test_there_are_blocks_of_every_language_on_the_pages():
    assert {block.language for block in BLOCKS} == LANGUAGES
    assert len(PAGES) == 25
    assert len(PYTHON) >= 8
    assert len([block for block in BLOCKS if block.language == "console"]) >= 15


@pytest.mark.parametrize("fence", ["```rust\nx\n```", "```\nx\n```", "```python\nx"])
def test_a_block_nobody_knows_how_to_test_is_refused(fence):
    with pytest.raises(ValueError, match=r"tested|closed"):
        blocks_of("x.md", f"words\n\n{fence}\n")


# -- consoles --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", CONSOLE_PAGES)
def test_the_console_blocks_of_a_page_do_what_the_page_says(page, tmp_path):
    mine = [block for block in BLOCKS if block.page == page]
    files = {block.saved_as: block.text for block in mine if block.saved_as}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    before = in_the_root()
    session = Session(tmp_path)
    try:
        for block in mine:
            if block.language == "console":
                session.run(block)
        session.end()
    finally:
        session.abandon()
    assert in_the_root() == before, "a command has written into the repository"
    # A program that a saved file starts is run by whoever is given that file.
    started = [text for name, text in files.items() if name.endswith(".properties")]
    for name in files:
        stem = name.removesuffix(".py")
        assert any(name in one or f"{stem}:" in one for one in [*session.commands, *started]), (
            f"{name} is saved and never run"
        )


def test_a_line_that_never_comes_fails_and_so_does_a_program_that_fails(tmp_path):
    (block,) = blocks_of("x.md", "```console\n$ echo hello\ngoodbye …\n```\n")
    with pytest.raises(AssertionError, match="never printed 'goodbye …'"):
        Session(tmp_path).run(block)
    (block,) = blocks_of("x.md", "```console\n$ python -c 'raise SystemExit(3)'\n```\n")
    with pytest.raises(AssertionError, match="failed"):
        Session(tmp_path).run(block)


def test_what_a_page_writes_stays_in_the_folder_of_its_reader(tmp_path):
    before = in_the_root()
    (block,) = blocks_of("x.md", "```console\n$ seq 1 3 > numbers.txt\n$ cat tests/docs/conftest.py\n```\n")
    session = Session(tmp_path)
    session.run(block)
    session.end()
    assert (tmp_path / "numbers.txt").read_text() == "1\n2\n3\n"
    assert in_the_root() == before
    for inside in (ROOT, ROOT / "docs"):
        with pytest.raises(AssertionError, match="stay in the repository"):
            Session(inside)


@pytest.mark.parametrize("command", ["make tea", ".venv/bin/pykcl dance", "python3 -m venv elsewhere"])
def test_a_build_command_the_makefile_does_not_run_fails(command):
    with pytest.raises(AssertionError):
        check_build_command(command)


# -- Python ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PROGRAMS, ids=ids(PROGRAMS))
def test_a_program_reads_what_is_put_and_stops_when_asked(block, local_aws, tmp_path):
    local_aws.kinesis.create_stream("orders", 2)
    (tmp_path / "program.py").write_text(block.text, "utf-8")
    session = Session(tmp_path)
    session.env["AWS_ENDPOINT_URL"] = local_aws.url
    session.env.update(AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="local", AWS_SECRET_ACCESS_KEY="local")
    # Apart from its log, which may stand within a line that is printed in pieces.
    program = Running("python program.py 2>log.txt", tmp_path, session.env)
    try:
        local_aws.kinesis.put_record("orders", b"hello", "alice")
        program.wait_for("shardId-… alice hello")
        program.end()
        assert "Traceback" not in (tmp_path / "log.txt").read_text("utf-8")
    finally:
        program.abandon()


@pytest.mark.slow
# The recipes leave closing their database to the end of the process, which Python 3.13 warns about.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize("block", PIECES, ids=ids(PIECES))
def test_a_piece_of_code_runs_and_its_processors_process(block, local_aws, tmp_path, monkeypatch):
    local_aws.kinesis.create_stream("orders", 2)
    for number, data in enumerate(RECORDS):
        local_aws.kinesis.put_record("orders", data, f"key-{number}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    names = {"__name__": "piece_of_documentation"}
    exec(compile(block.text, block.id, "exec"), names)
    processors = [
        value for value in names.values()
        if isinstance(value, type) and issubclass(value, RecordProcessor) and value.__module__ == names["__name__"]
    ]  # fmt: skip
    mode = "ack" if "batch.ack(" in block.text else "auto"
    for processor in processors:
        assert sorted(processed_by(processor, mode)) == sorted(RECORDS)
        # Again under another name: what it keeps outside must stand that.
        assert sorted(processed_by(processor, mode, application="again")) == sorted(RECORDS)
    if "Consumer(" in block.text and "orders-app" in block.text:
        rows = boto3.client("dynamodb").scan(TableName="orders-app")["Items"]
        assert len(rows) == 2
        assert all(row["checkpoint"]["S"].isdecimal() for row in rows), "not everything was acked"
    if (tmp_path / "orders.db").exists():
        check_sink(names["sqlite3"].connect("orders.db"))
    names.clear()
    gc.collect()


def check_sink(sink):
    """Two applications have delivered everything, and the sink has each record once."""
    assert sorted(row[0].encode() for row in sink.execute("SELECT body FROM orders")) == sorted(RECORDS)
    assert all(
        token > 0 and int(sequence) > 0
        for token, sequence in sink.execute("SELECT token, sequence FROM fence")
    )
    sink.close()


def processed_by(processor, checkpoint_mode, application="pieces"):
    """What a processor of the page is handed and returns from, read by a real worker."""
    done, events = queue.Queue(), []

    class Watched(processor):
        def process_records(self, batch):
            super().process_records(batch)
            for record in batch:
                done.put(record.data)

    worker = Worker(
        application,
        stream="orders",
        processor=Watched,
        initial_position="TRIM_HORIZON",
        checkpoint_mode=checkpoint_mode,
        on_error="raise",
        on_event=events.append,
    )
    with worker:
        seen = [done.get(timeout=DEADLINE) for _ in RECORDS]
    assert worker.failure is None
    assert not [event for event in events if isinstance(event, ProcessorRaised)]
    if checkpoint_mode == "ack":
        released = [event.checkpoint for event in events if isinstance(event, LeaseReleased)]
        assert released
        assert "TRIM_HORIZON" not in released, "not everything was acked"
    return seen


# -- data ------------------------------------------------------------------------------------------------------


def test_json_blocks_are_json():
    for block in BLOCKS:
        if block.language == "json":
            assert isinstance(json.loads(block.text), dict), block.id


def test_toml_is_read_and_refused_by_a_config_only_where_the_page_says_so(tmp_path):
    path = tmp_path / "pykcl.toml"
    refused = []
    for block in [block for block in BLOCKS if block.language == "toml"]:
        path.write_text(block.text, "utf-8")
        found = read_toml(path)
        assert found.config().application == "orders-app"
        assert specs_of(found.clients, found.source).keys() == found.clients.keys()
        try:
            Config.from_toml(path)
        except ConfigError:
            refused.append(block)
    assert ["refuses it" in block.before for block in refused] == [True]


def test_the_properties_of_the_guide_say_what_pykcl_understands(tmp_path):
    path = tmp_path / "app.properties"
    blocks = [
        block
        for block in BLOCKS
        if block.language == "properties" and block.page != "docs/guides/mixed-fleet.md"
    ]
    assert [block.saved_as for block in blocks] == ["app.properties", "child.properties"]
    for block in blocks:
        path.write_text(block.text, "utf-8")
        found = interpret(read_properties(path), entry_point="multilang")
        assert {row.verdict for row in found.verdicts} <= {"honoured", "mapped"}


def test_the_edited_program_of_the_guide_differs_by_its_imports_and_the_base64_only():
    texts = {block.saved_as: block.text for block in BLOCKS if block.saved_as in ("app.py", "edited.py")}
    edited = (
        texts["app.py"]
        .replace("from amazon_kclpy", "from pykcl.compat.kclpy")
        .removeprefix("import base64\n\n")
    )
    assert edited.replace("base64.b64decode(record.data)", "record.binary_data") == texts["edited.py"]


def test_properties_are_javas_and_agree_with_the_configuration_beside_them():
    pairs = [
        [part.strip() for part in line.split("=")]
        for block in BLOCKS
        if block.language == "properties" and block.page == "docs/guides/mixed-fleet.md"
        for line in block.text.splitlines()
    ]
    assert {name for name, _ in pairs} == JAVA_PROPERTIES
    values = dict(pairs)
    (ours,) = [block for block in PYTHON if block.page == "docs/guides/mixed-fleet.md"]
    names = {}
    exec(ours.text, names)
    config = names["config"]
    assert values["applicationName"] == config.application
    assert values["streamName"] == config.stream
    assert values["initialPositionInStream"] == config.initial_position
    assert int(values["failoverTimeMillis"]) == config.failover_time * 1000


def test_files_named_in_drawings_exist():
    everything = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    for block in BLOCKS:
        if block.language == "text":
            assert set(re.findall(r"\b\w+\.py\b", block.text)) <= everything, block.id


def test_threads_of_the_pieces_are_gone():
    """Workers that were started in this process have ended with their blocks."""
    assert [one.name for one in threading.enumerate() if one.name.startswith("pykcl-shard")] == []
