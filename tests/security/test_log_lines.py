"""One line per event, whatever the names in it came from: no owner or key can forge a line or drive a terminal."""

from __future__ import annotations

import dataclasses
import logging
import re
import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl import errors, events
from pykcl.cli.errors import exit_codes
from pykcl.event_dispatch import EventFan, log_event
from pykcl.events import Event
from pykcl.runtime import SystemRuntime
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.runtime import Simulation

FORGED = "x\n2026-01-01 00:00:00 ERROR lease lost shard=shardId-0\r\x1b[2J\x1b]0;title\x07\u2028\u202e"
KINDS = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind.TEXT
]
VALUE = r"(?:-|[\w:-]*[^\W_][\w:-]*|\d+\.\d|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
WORDS = re.compile(rf"(?: \w+={VALUE}(?:,{VALUE})*)*\Z")
"""What may follow an event's first words: name=value, the value a plain word, a number or quoted."""

hostile_text = st.one_of(
    st.just(FORGED),
    st.text(max_size=40),
    st.sampled_from(["", "-", "a=b", "a b", "'", '"', "a,b", "\\", "true"]),
)


def filled(kind: type[Event], text: str) -> Event:
    """An event of that kind with `text` wherever text may stand."""
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        values[field.name] = (text, text) if "tuple" in str(hint) else text if "str" in str(hint) else 1
    return kind(**values)


class Ear(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def ear():
    heard = Ear()
    logger = logging.getLogger("pykcl")
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=hostile_text)
def test_every_event_is_one_line_of_names_and_values(ear, kind, text):
    ear.lines.clear()
    log_event(filled(kind, text))
    (line,) = ear.lines
    assert line.isprintable()
    assert line.startswith(kind.TEXT)
    assert WORDS.match(line[len(kind.TEXT) :]), line


def test_this_check_sees_an_event_that_is_not_quoted(ear):
    log = logging.getLogger("pykcl")
    log.warning("lease lost shard=%s", FORGED)
    assert not ear.lines[0].isprintable()
    log.warning("lease lost shard=%s", "a b")
    assert not WORDS.match(ear.lines[1][len("lease lost") :])


def test_the_events_are_all_there():
    assert len(KINDS) > 20


def test_every_error_is_one_line():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.PyKclError)
    ]
    assert len(kinds) > 12
    for kind in kinds:
        text = str(kind(f"Lease {FORGED} is lost."))
        assert text.isprintable()
        assert "2026-01-01" in text
    assert str(errors.PyKclError("Ümlaut ok: 東京")) == "Ümlaut ok: 東京"
    assert str(errors.PyKclError()) == ""


def test_what_the_command_line_says_of_an_error_is_one_line(capsys):
    with pytest.raises(SystemExit), exit_codes():
        raise errors.StopTimedOut(f"These threads were still busy: pykcl-{FORGED}", (FORGED,))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_named_in_one_line(ear):
    def body() -> None:
        raise KeyError("x")

    SystemRuntime().spawn(f"pykcl-{FORGED}", body).join(300)
    (line,) = ear.lines
    assert line.isprintable()


def test_a_listener_that_raises_is_named_in_one_line(ear):
    def listener(event: Event) -> None:
        raise ValueError(FORGED)

    listener.__name__ = FORGED
    EventFan([listener]).emit(events.LeaseDeleted(shard="s", reason="r"))
    assert len(ear.lines) == 2
    assert all(line.isprintable() for line in ear.lines)


# -- rows of strangers, read by a whole worker -----------------------------------------------------------------


def _hostile_rows() -> dict[str, dict[str, object]]:
    plain = {
        "leaseCounter": {"N": "4"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }
    deep: object = {"S": "x"}
    for _ in range(31):  # the deepest DynamoDB takes
        deep = {"M": {"x": deep}}
    changes: dict[str, dict[str, object]] = {
        FORGED: {"leaseOwner": {"S": FORGED}},
        f"unreadable {FORGED}": {"leaseCounter": {"N": "-1"}},
        "counter at its end": {"leaseCounter": {"N": str(2**63)}},
        "a number of 38 digits": {"leaseCounter": {"N": "9" * 38}},
        "checkpoint of 5000 digits": {"checkpoint": {"S": "9" * 5000}},
        "checkpoint in arabic": {"checkpoint": {"S": "٤"}},
        "an owner of 300,000 letters": {"leaseOwner": {"S": "x" * 300_000}},
        "own parent": {"parentShardId": {"SS": ["own parent"]}},
        "parents in a circle": {"parentShardId": {"SS": ["own parent", "parents in a circle"]}},
        "three parents": {"parentShardId": {"SS": ["a", "b", "c"]}},
        "owner is a list": {"leaseOwner": {"L": [{"S": "x"}]}},
        "deep": {"later": deep, "pykcl": deep},
        "foreign": {"entityType": {"S": FORGED}},
        "note of junk": {"pykcl": {"M": {"streamArn": {"N": "1"}, "latestFrom": {"S": FORGED}}}},
        "child of strangers": {"childShardIds": {"SS": [f"{FORGED}{number}" for number in range(16)]}},
        "a range backwards": {"startingHashKey": {"S": "9"}, "endingHashKey": {"S": "1"}},
        "pending junk": {"pendingCheckpoint": {"S": "x"}, "pendingCheckpointState": {"B": b"x" * 100_000}},
    }
    return {key: {**plain, **change, "leaseKey": {"S": key}} for key, change in changes.items()}


@pytest.mark.parametrize("seed", range(3))
def test_a_table_full_of_strangers_rows_stops_nobody_and_forges_no_line(ear, seed):
    with Simulation(seed=seed) as simulation:
        fleet = Fleet(simulation, shards=2)
        fleet.dynamodb.create_table(
            TableName=TABLE,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        rows = _hostile_rows()
        for item in rows.values():
            fleet.dynamodb.put_item(TableName=TABLE, Item=item)
        worker = fleet.start("w1")
        fleet.wait_delivered(fleet.put(20))
        fleet.simulation.sleep(60)
        fleet.kinesis.split(STREAM, fleet.open_shards()[0])
        fleet.wait_delivered(fleet.put(20))
        assert worker.failure is None
        told = [event.key for event in fleet.happened(events.InvalidLeaseRow)]
        assert len(told) == len(set(told)) >= 9, "each refused row is told once"
        after = fleet.items()
        for key in told:
            assert after[key] == rows[key], "what cannot be read is left alone"
        worker.stop()
        assert fleet.ledger.duplicates == 0
    assert len(ear.lines) > 20
    assert [line for line in ear.lines if not line.isprintable()] == []
