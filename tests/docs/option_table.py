"""The tables of options and of keys in docs/, made from the code. `python tests/docs/option_table.py` writes them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from pykcl import config
from pykcl.compat.properties import KEYS
from pykcl.compat.properties.keys import KEYS_OF_FIELD
from pykcl.config import PREFIX, Config

DOCS = Path(__file__).parents[2] / "docs"
OPTIONS = DOCS / "reference" / "configuration.md"
JAVA_KEYS = DOCS / "guides" / "migrate-from-kclpy.md"
HEAD_OF_KEYS = ("key", "Java's default", "verdict", "what it means here")
HEAD = ("ours", "KCL's", "environment", "default", "since", "meaning")

SINCE = dict.fromkeys(
    (
        "application", "stream", "table_name", "region", "worker_id", "initial_position", "until", "shards", "checkpoint_mode", "checkpoint_interval", "max_unacked",
        "on_error", "retry_timeout", "failover_time", "max_leases", "max_leases_to_steal_at_one_time", "max_records",
        "call_with_empty_batches", "idle_time_between_reads", "max_buffered_bytes", "http_transport", "record_encoding", "shard_sync_interval", "parent_shard_poll_interval",
        "cleanup_interval", "audit_interval", "audit_confidence_threshold", "shutdown_grace", "processor_warn_after",
        "processor_timeout", "show_errors", "create_table", "table_deletion_protection", "point_in_time_recovery", "lease_scan_mode", "coordinator_state_table",
        "fleet_mode", "worker_metrics_interval", "worker_metrics", "worker_metrics_table", "graceful_handoff_timeout", "rescue", "leader", "metrics", "metrics_level", "metrics_dimensions", "metrics_namespace", "metrics_buffer_time",
        "metrics_queue_size", "batch_size", "batch_window", "max_attempts", "bisect", "max_record_age", "dead_letters",
        "dead_letters_in_a_row", "max_records_per_second", "deaggregate", "retrieval", "consumer", "register_consumer", "fanout_transport",
    ),
    "0.1.0",
)  # fmt: skip
"""The version that brought each option. Code cannot know it; a new option needs its line here."""


def meanings() -> dict[str, str]:
    """What the text below each field of Config says, on one line."""
    (body,) = [
        node.body
        for node in ast.parse(inspect.getsource(config)).body
        if isinstance(node, ast.ClassDef) and node.name == "Config"
    ]
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def rows() -> list[tuple[str, ...]]:
    """A row for each field. Raises KeyError for a field without a text, or without its version."""
    said = meanings()
    return [
        (
            f"`{field.name}`",
            ", ".join(f"`{key}`" for key in KEYS_OF_FIELD.get(field.name, ())) or "\N{EN DASH}",
            f"`{PREFIX}{field.name.upper()}`",
            "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`",
            SINCE[field.name],
            said[field.name],
        )
        for field in dataclasses.fields(Config)
    ]


def keys() -> list[tuple[str, ...]]:
    """A row for each key of a .properties file."""
    return [(f"`{key.name}`", key.default, key.verdict, key.text) for key in KEYS.values()]


def table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def written(page: Path) -> str:
    """The text of the page with its table between the two marks."""
    mark, made = {
        OPTIONS: ("options", table(HEAD, rows())),
        JAVA_KEYS: ("keys", table(HEAD_OF_KEYS, keys())),
    }[page]
    begin, end = (f"<!-- {mark}: {edge} -->" for edge in ("begin", "end"))
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{made}\n{end}{after}"


if __name__ == "__main__":
    for one in (OPTIONS, JAVA_KEYS):
        one.write_text(written(one), "utf-8")
