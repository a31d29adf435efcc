"""What the pages state as facts is compared with the code: options, writes, states, permissions, exit codes, links."""

import ast
import configparser
import dataclasses
import inspect
import json
import re
import tomllib
from typing import get_args

import option_table
import pytest
from doc_pages import PAGES, ROOT, all_blocks, table_under
from lease_table_writes import NEW, by_heading, printable

from pykcl import Producer
from pykcl.cli.errors import BY_SIGNAL, ExitCode
from pykcl.compat.properties import KEYS, interpret
from pykcl.compat.properties.keys import KEYS_OF_FIELD, Flag
from pykcl.config import LARGEST_FETCH_BYTES, Config, from_environment
from pykcl.errors import ConfigError
from pykcl.metrics.catalog import DIMENSIONS, MetricsLevel
from pykcl.metrics.catalog import SINKS as METRICS_SINKS
from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.model.lease import ForeignRow, Standstill
from pykcl.model.lease_item import FIELD_ATTRIBUTES, LEASE_KEY, parse_row, to_item
from pykcl.model.lease_writes import release, take
from pykcl.operate.aws.iam import FAN_OUT_ACTIONS, FOLLOW_ACTIONS, METRICS_ACTIONS, SUBSCRIBE_ACTIONS
from pykcl.planning.lifecycle import FINAL, TABLE, Signal, State
from pykcl.planning.read_schedule import READ_UNITS_PER_SECOND

BLOCKS = all_blocks()


def code(cell):
    """The one piece of code in a table cell."""
    (found,) = codes(cell)
    return found


def codes(cell):
    """The pieces of code in a table cell."""
    return re.findall(r"`([^`]+)`", cell)


# -- configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [option_table.OPTIONS, option_table.JAVA_KEYS], ids=lambda page: page.name)
def test_the_generated_tables_are_those_of_the_code(page):
    assert page.read_text("utf-8") == option_table.written(page), "run: python tests/docs/option_table.py"


def test_the_options_table_has_every_option_in_order_with_its_default():
    rows = table_under("docs/reference/configuration.md", "ours")
    told = [(code(ours), default) for ours, _, _, default, _, _ in rows]
    fields = dataclasses.fields(Config)
    assert [name for name, _ in told] == [field.name for field in fields]
    for field, (_, default) in zip(fields, told, strict=True):
        if field.default is dataclasses.MISSING:
            assert default == "required"
        else:
            value = ast.literal_eval(code(default))
            assert (value, type(value)) == (field.default, type(field.default)), field.name


def test_every_choice_of_an_option_is_named_in_the_table():
    rows = {code(row[0]): row[5] for row in table_under("docs/reference/configuration.md", "ours")}
    assert re.findall(r'"(auto|interval|manual)"', rows["checkpoint_mode"]) == ["auto", "interval", "manual"]
    assert re.findall(r'"(retry|skip|raise)"', rows["on_error"]) == ["retry", "skip", "raise"]
    assert set(re.findall(r'"(\w+)"', rows["metrics"])) == {"none", *METRICS_SINKS}
    assert set(re.findall(r'"([A-Z]+)"', rows["metrics_level"])) == set(get_args(MetricsLevel))
    assert all(name in rows["metrics_dimensions"] for name in ("ALL", *DIMENSIONS) if name != "StreamId")


def test_every_key_of_the_table_sets_its_option_and_only_that():
    least = {"applicationName": "orders-app", "streamName": "orders", "retrievalMode": "FANOUT"}
    default = interpret(least, entry_point="kclpy").config
    examples = {"streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "regionName": "eu-west-1",
                "applicationName": "x-app", "streamName": "payments", "initialPositionInStream": "TRIM_HORIZON",
                "initialPositionInStreamExtended": "1767225600", "cleanupLeasesUponShardCompletion": "false",
                "tableName": "leases", "workerId": "w1", "coordinatorStateTableName": "state", "timeoutInSeconds": "90",
                "retrievalMode": "POLLING", "fanoutConfig.consumerName": "c",
                "fanoutConfig.consumerArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1",
                "metricsLevel": "SUMMARY", "metricsEnabledDimensions": "Operation", "disableWorkerMetrics": "true"}  # fmt: skip
    for field, keys in KEYS_OF_FIELD.items():
        for key in keys:
            value = examples.get(key) or ("true" if isinstance(KEYS[key].effect, Flag) else "4000")
            found = interpret({**least, key: value}, entry_point="kclpy").config
            changed = {
                one.name
                for one in dataclasses.fields(Config)
                if getattr(found, one.name) != getattr(default, one.name)
            }
            assert changed == {field}, key
    # And no number or flag of a key is missing in it.
    assert {key.effect.field for key in KEYS.values() if key.effect} <= KEYS_OF_FIELD.keys()


def test_every_option_can_be_set_by_its_environment_variable():
    values = {
        "application": "orders-app",
        "stream": "orders",
        "processor_timeout": "90",
        "max_records_per_second": "50",
        "idle_time_between_reads": "0.5",
        "region": "eu-west-1",
    }
    values |= {
        "batch_size": "100",
        "max_attempts": "3",
        "max_record_age": "60.0",
        "dead_letters": "file:letters",
    }
    values |= {"table_name": "orders-leases", "worker_id": "w1", "metrics_namespace": "orders"}
    for field in dataclasses.fields(Config):
        text = values.get(field.name, str(field.default))
        found = from_environment({f"PYKCL_{field.name.upper()}": text, "HOME": "/"})
        assert list(found) == [field.name]
        assert str(found[field.name]) == text or float(found[field.name]) == float(text)


def test_the_derived_times_are_as_the_table_says():
    config = Config(application="orders-app", stream="orders")
    rows = {row[0]: row[2] for row in table_under("docs/reference/configuration.md", "derived")}
    for name in ("renew_interval", "request_timeout", "belief_time"):
        (cell,) = [value for what, value in rows.items() if f"`{name}`" in what]
        assert float(cell.split()[0]) == pytest.approx(getattr(config, name), abs=0.05)
    assert READ_UNITS_PER_SECOND == 5


def test_the_memory_bound_allows_as_many_calls_as_the_page_says():
    text = (
        (ROOT / "docs" / "reference" / "configuration.md")
        .read_text("utf-8")
        .partition("## Memory")[2]
        .partition("## ")[0]
    )
    one, limit, calls, least = map(int, re.search(
        r"reserves (\d+) MiB.*default of (\d+) MiB that is (\d+) calls.*At least (\d+) MiB, two calls", text, re.DOTALL
    ).groups())  # fmt: skip
    assert one * 2**20 == LARGEST_FETCH_BYTES
    assert limit * 2**20 == Config(application="orders-app", stream="orders").max_buffered_bytes
    assert calls == limit // one
    Config(application="orders-app", stream="orders", max_buffered_bytes=least * 2**20)
    with pytest.raises(ConfigError):
        Config(application="orders-app", stream="orders", max_buffered_bytes=least * 2**20 - 1)


def test_the_exit_codes_are_those_of_the_commands():
    printed = [code(row[0]) for row in table_under("docs/reference/configuration.md", "code")]
    assert printed == [*map(str, ExitCode), BY_SIGNAL]


# -- the lease table -------------------------------------------------------------------------------------------


def test_every_write_is_printed_as_it_is_sent():
    printed = {
        block.heading: json.loads(block.text)
        for block in BLOCKS
        if block.page == "docs/reference/lease-table.md" and block.language == "json"
    }
    writes = by_heading()
    assert printed.keys() == writes.keys()
    for heading, write in writes.items():
        assert printed[heading] == printable(write), heading
    assert len({write.kind for write in writes.values()}) == 14


def test_the_row_table_has_every_attribute_with_its_type():
    rows = {code(row[0]): row[1] for row in table_under("docs/reference/lease-table.md", "attribute")}
    attributes = [LEASE_KEY, *(name for names in FIELD_ATTRIBUTES.values() for name in names)]
    assert sorted(rows) == sorted(attributes)
    writes = by_heading()
    seen = {}
    for write in writes.values():
        for lease in (write.seen, write.after):
            if lease is not None:
                seen.update({name: next(iter(value)) for name, value in to_item(lease).items()})
    assert rows == seen
    makers = {write.kind for write in writes.values() if write.after and write.after.checkpoint_owner}
    assert makers == {"begin-hand-over"}


def test_the_private_map_has_exactly_the_keys_of_the_table():
    standing = Standstill(AT_TRIM_HORIZON, 1)
    note = dataclasses.replace(
        NEW.metadata,
        owner="w1",
        latest_from=1,
        latest_done="7",
        until=9,
        shards="001",
        begin="LATEST",
        latest_reset=9,
        consumer="app",
        standstill=standing,
    )
    written = to_item(NEW.with_(metadata=note))["pykcl"]["M"]
    told = {code(row[0]): row[1] for row in table_under("docs/reference/lease-table.md", "key | type")}
    assert told == {name: next(iter(value)) for name, value in written.items()}
    assert len(told) == len([field for field in dataclasses.fields(note) if field.name != "extra"])


def test_the_rows_that_are_left_alone_are():
    rows = table_under("docs/reference/lease-table.md", "what the row looks like")
    assert len(rows) == 4
    for example, _ in rows:
        assert isinstance(parse_row(json.loads(code(example))), ForeignRow), example


def test_the_owner_clauses_are_as_the_table_says():
    seen_as = {"text": {"S": "w1"}, "absent": None, "of type NULL": {"NULL": True}, "empty text": {"S": ""}}
    rows = table_under("docs/reference/lease-table.md", "`leaseOwner` as seen")
    assert [row[0] for row in rows] == list(seen_as)
    for told, clause in rows:
        item = {**to_item(NEW), **({"leaseOwner": seen_as[told]} if seen_as[told] else {})}
        _, request = take(parse_row(item), "me").request()
        assert request["ConditionExpression"].split(" AND ")[1] == code(clause), told


def test_release_leaves_what_the_page_says_it_leaves():
    update = release(NEW.with_(owner="w1")).request()[1]["UpdateExpression"]
    assert "checkpoint =" not in update
    assert "pendingCheckpoint" not in update


# -- producer --------------------------------------------------------------------------------------------------


def test_the_arguments_of_a_producer_are_those_of_the_page():
    named = [word for row in table_under("docs/guides/producing.md", "argument") for word in codes(row[0])]
    assert named == list(inspect.signature(Producer).parameters)


KPL_OPTIONS = """
    AggregationEnabled AggregationMaxCount AggregationMaxSize CaCertFile CaCertPath CloudwatchEndpoint
    CloudwatchPort CollectionMaxCount CollectionMaxSize ConnectTimeout CredentialsProvider CredentialsRefreshDelay
    DaemonHealthCheckTimeoutMs EnableCoreDumps EnableDaemonHealthCheck EnableOldestFutureTracker FailIfThrottled
    GlueSchemaRegistryConfiguration GlueSchemaRegistryCredentialsProvider GlueSchemaRegistryPropertiesFilePath
    KinesisEndpoint KinesisPort LogLevel MaxConnections MaxUserRecordSize MetricsCredentialsProvider
    MetricsGranularity MetricsLevel MetricsNamespace MetricsUploadDelay MinConnections NativeExecutable ProxyHost
    ProxyPassword ProxyPort ProxyUserName RateLimit RecordMaxBufferedTime RecordTtl Region RequestTimeout
    ReturnUserRecordOnFailure StsEndpoint StsPort TempDirectory ThreadPoolSize ThreadingModel
    UserRecordTimeoutInMillis VerifyCertificate addAdditionalMetricsDimension
"""
"""What KinesisProducerConfiguration of the KPL 1.0.7 sets and adds."""


def test_every_option_of_kpl_has_its_row():
    rows = table_under("docs/guides/producing.md", "`KinesisProducerConfiguration`")
    assert sorted(word for row in rows for word in codes(row[0])) == sorted(KPL_OPTIONS.split())


@pytest.mark.parametrize(
    ("page", "head"),
    [
        ("docs/guides/producing.md", "`KinesisProducerConfiguration`"),
        ("docs/guides/from-async-kinesis.md", "async-kinesis 1.1.5"),
    ],
)
def test_what_options_of_other_producers_are_here_can_be_given(page, head):
    rows = table_under(page, head)
    given = {name for row in rows for name in re.findall(r"(\w+)=", row[2])}
    there = {*inspect.signature(Producer).parameters, *inspect.signature(Producer.close).parameters}
    assert given <= there
    others = [word for row in rows for word in codes(row[0])]
    assert len(others) == len(set(others))


# -- design ----------------------------------------------------------------------------------------------------


def test_the_diagram_of_a_lease_workers_life_is_the_table():
    (diagram,) = [block.text for block in BLOCKS if block.language == "mermaid"]
    arrows = re.findall(r"^ +(\w+) --> (\w+): (.+)$", diagram, re.MULTILINE)
    drawn = {(State[before], Signal(signal)): State[after] for before, after, signal in arrows}
    assert len(arrows) == len(drawn)
    assert drawn == TABLE
    told = {code(row[0]) for row in table_under("docs/about/design.md", "state")}
    assert told == {state.name for state in set(State) - FINAL}


def test_the_dependencies_of_the_page_are_those_of_the_project():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (listed,) = re.findall(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    names = re.findall(r'"([a-z0-9-]+)', listed)
    assert [row[0] for row in table_under("docs/about/design.md", "library")] == names
    assert f"({', '.join(names)})" in (ROOT / "README.md").read_text("utf-8")


# -- permissions -----------------------------------------------------------------------------------------------


def test_the_python_versions_that_are_claimed_are_those_that_tox_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(project["project"]["classifiers"]))
    assert project["project"]["requires-python"] == f">={claimed[0]}"
    assert f"Python {claimed[0]} to {claimed[-1]} are tested" in (ROOT / "README.md").read_text("utf-8")
    listed = configparser.ConfigParser()
    listed.read(ROOT / "tox.ini")
    assert re.findall(r"py3\d+", listed["tox"]["env_list"]) == [
        f"py{each.replace('.', '')}" for each in claimed
    ]
    assert project["tool"]["mypy"]["python_version"] == claimed[0]


def test_the_policy_allows_exactly_what_the_code_calls():
    (policy,) = [
        json.loads(block.text)
        for block in BLOCKS
        if block.page == "docs/about/security.md" and '"Statement"' in block.text
    ]
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    # Below the policy: where metrics go to CloudWatch, in a fleet with a leader, and by enhanced fan-out.
    allowed |= {*METRICS_ACTIONS, *FOLLOW_ACTIONS, *FAN_OUT_ACTIONS, *SUBSCRIBE_ACTIONS}
    # Of a producer, which is no worker.
    allowed |= set(re.findall(r"`(kinesis:\w+)`", (ROOT / "docs/guides/producing.md").read_text("utf-8")))
    called = {write.request()[0] for write in by_heading().values()}
    # tests/cli/test_dead_letter_commands.py compares what a destination of dead letters needs.
    paths = set((ROOT / "pykcl" / "aws").rglob("*.py")) - {ROOT / "pykcl" / "aws" / "dead_letters.py"}
    for path in paths:
        text = path.read_text("utf-8")
        called |= set(re.findall(r"self\._?(?:client|requests)\.([a-z_]+)\b", text)) - {"meta", "write"}
        called |= set(re.findall(r"^_METHOD: Final = \"([a-z_]+)\"$", text, re.MULTILINE))
    methods = {"".join(word.title() for word in name.split("_")) for name in called}
    assert {action.split(":")[1] for action in allowed} == methods


# -- README and links ------------------------------------------------------------------------------------------


def test_the_readme_shows_what_the_demo_prints():
    from pykcl.demo.verdict import Verdict
    from pykcl.demo.view import NEXT_STEPS, totals

    (shown,) = [block.text for block in BLOCKS if "pykcl demo ·" in block.text]
    lines = shown.splitlines()
    (total,) = [line for line in lines if line.startswith("produced")]
    number = r"(\d[\d ]*)"
    found = re.fullmatch(
        rf"produced {number} in {number} Kinesis records · processed {number} distinct · duplicates {number} "
        rf"\((.+)\) · lost {number} · out of order {number}",
        total,
    )
    assert found
    numbers = [int(text.replace(" ", "")) for text in found.group(1, 2, 3, 4, 6, 7)]
    verdict = Verdict(*numbers, reasons=())
    assert (verdict.lost, verdict.out_of_order, verdict.produced) == (0, 0, verdict.processed)
    assert totals(verdict, found[5]) == total
    assert lines[-1] == f"PASS   {NEXT_STEPS}"
    said = [re.split(r" {2,}", line[10:].strip())[0] for line in lines if line.startswith(" t+")]
    script = "".join(path.read_text("utf-8") for path in (ROOT / "pykcl" / "demo").glob("*.py"))
    assert len(said) >= 5
    for words in said:
        assert words.split()[0] in script, f"the demo says nothing of {words!r}"


IN_THE_REPOSITORY = re.compile(
    "https://(?:github.com/pykcl/pykcl/blob|raw.githubusercontent.com/pykcl/pykcl)/main/"
)
_DEFINED = re.compile(r"^\[([^]]+)\]: (\S+)$", re.MULTILINE)


def test_the_readme_is_short_and_its_program_has_fourteen_lines():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(_DEFINED.sub("", text).rstrip().splitlines()) <= 184
    (program,) = [block.text for block in BLOCKS if block.page == "README.md" and block.language == "python"]
    assert len(program.splitlines()) == 14


def test_the_links_of_the_readme_lead_somewhere_from_the_page_of_a_package_index_too():
    text = re.sub(r"```.*?```|`.*?`", "", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    assert not re.findall(r"\]\(([^)]+)\)", text), "a link of its own beside the list at the end"
    links = _DEFINED.findall(text)
    assert [label for label, _ in links] == sorted((label for label, _ in links), key=str.lower)
    assert all(IN_THE_REPOSITORY.match(target) for _, target in links)
    used = re.findall(r"(?<!\])\[([^]\n]+)\](?!\[)|\]\[([^]]+)\]", _DEFINED.sub("", text))
    assert {one or other for one, other in used} == {label for label, _ in links}


def without_code(text):
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """Of the headings as GitHub makes them, and those written as <a id=...>."""
    text = without_code(text)
    words = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    made = {re.sub(r"[^\w -]", "", word.lower()).replace(" ", "-") for word in words}
    return made | set(re.findall(r'<a id="([\w-]+)"></a>', text))


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    text = without_code(path.read_text("utf-8"))
    targets = [*re.findall(r"\]\(([^)]+)\)", text), *(target for _, target in _DEFINED.findall(text))]
    for written in targets:
        target = IN_THE_REPOSITORY.sub("", written)
        if target.startswith("https://"):
            continue
        assert target == written or path.parent == ROOT, written
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text("utf-8")), target


def test_every_page_can_be_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").as_posix()
        assert name == "index.md" or f"({name})" in index


def test_every_path_of_a_page_that_a_file_names_exists():
    """In the code, the tests and the build files, whether as a path or as an address."""
    folders = [ROOT / name for name in ("pykcl", "tests", "docs", "deploy", "benchmarks")]
    paths = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    for path in paths:
        if path.suffix not in {".py", ".toml", ".ini", ".md", ".yaml", ".json"} and path.name != "Makefile":
            continue
        for page, anchor in re.findall(
            r"(?<!pykcl/)\bdocs/((?:\w+/)?[\w-]+\.md)(?:#([\w-]+))?", path.read_text("utf-8", "replace")
        ):
            there = ROOT / "docs" / page
            assert there.is_file(), f"{path}: docs/{page}"
            assert not anchor or anchor in anchors(there.read_text("utf-8")), f"{path}: docs/{page}#{anchor}"
