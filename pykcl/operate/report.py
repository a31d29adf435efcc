"""The bundle for a bug report: versions, configuration, leases and the doctor's findings, without names and secrets.

Pure: from facts to texts. What is never in it, redacted or not: credentials, payloads, partition keys, the state of
prepared checkpoints, attributes of rows beyond KCL's own (only their names), endpoints.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from pykcl.config import Config
from pykcl.model.lease import Lease
from pykcl.model.lease_item import MIGRATION_KEY
from pykcl.operate.doctor.facts import Facts, ProcessFacts
from pykcl.operate.doctor.findings import Finding
from pykcl.operate.redaction import Redactor, parts_of_key

README = """\
A report of pykcl, made at {at}.

In it, in files of these names:
{contents}

Names of applications, tables, streams, workers, accounts and roles {names}.
Not in it: credentials, records, partition keys, endpoints, the state of prepared checkpoints, logs.
"""
CONTENTS = {
    "versions.json": "versions of pykcl, Python and its packages, and the kind of machine",
    "config.json": "every option as a worker would have it",
    "leases.jsonl": "one line for each lease: state of its checkpoint, counter, family",
    "table.json": "what else stands in the lease table, counted",
    "doctor.json": "what `pykcl doctor` found",
}
_HASHED = "are replaced by hashes that fit together within this report and with no other"
_KEPT = "stand in it as they are"
_NAMES_OF_CONFIG = {
    "application": "application",
    "table_name": "table",
    "stream": "stream",
    "state_table": "table",
    "worker_id": "worker",
    "metrics_namespace": "application",
}

_KEYS_OF_KCL = {"Leader", MIGRATION_KEY, "TableMigration3.5"}
"""They name nobody, and say of which version a table is."""


def redactor_of(facts: Facts, salt: str) -> Redactor:
    """Knows every name that stands in these facts."""
    names: dict[str, set[str]] = {kind: set() for kind in ("application", "table", "stream", "worker", "row")}
    config = facts.config
    for name, kind in _NAMES_OF_CONFIG.items():
        names[kind].add(str(getattr(config, name) or ""))
    names["application"].add(facts.application or "")
    names["stream"].add(config.stream_name)
    if facts.stream is not None:
        names["stream"] |= {facts.stream.name, *facts.stream.nearby}
    if facts.table is not None:
        names["table"].add(facts.table.name)
    if facts.watch is not None:
        view = facts.watch.view
        for lease in view.leases.values():
            names["worker"] |= {lease.owner or "", lease.checkpoint_owner or ""}
            names["worker"].add(lease.metadata.owner or "" if lease.metadata is not None else "")
        names["worker"] |= {row.owner or "" for row in view.unreadable.values()}
        keys = {*view.leases, *view.unreadable, *(row.key for row in view.foreign)} - _KEYS_OF_KCL
        keys |= {key for lease in view.leases.values() for key in (*lease.parents, *lease.children)}
        names["row"] |= {part for key in keys for part in parts_of_key(key)}
        names["stream"] |= {part for one in view.streams.values() for part in (one, *one.split(":")[1:2])}
    # Where nobody told an application or a stream, a placeholder stands for it.
    return Redactor(salt, {kind: some - {"not-told", ""} for kind, some in names.items()})


def bundle_of(
    facts: Facts,
    findings: Sequence[Finding],
    redactor: Redactor | None,
    at: str,
) -> dict[str, str]:
    """File name -> text. redactor: None leaves names as they are. at: the time, as text."""

    def clean(value: Any) -> Any:
        return redactor.value(value) if redactor is not None else value

    return {
        "README.txt": README.format(
            at=at,
            contents="\n".join(f"  {name:<14} {what}" for name, what in CONTENTS.items()),
            names=_HASHED if redactor is not None else _KEPT,
        ),
        "versions.json": _json(versions_of(facts.process)),
        "config.json": _json(clean(config_of(facts.config))),
        "leases.jsonl": "".join(_line(clean(row)) for row in lease_rows(facts)),
        "table.json": _json(clean(table_of(facts))),
        "doctor.json": _json([_finding(one, clean) for one in findings]),
    }


def versions_of(process: ProcessFacts) -> dict[str, Any]:
    names = ("pykcl", "python", "implementation", "free_threaded", "platform", "versions")
    return {name: getattr(process, name) for name in names}


def config_of(config: Config) -> dict[str, Any]:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {
        name: value if isinstance(value, int | float) or value is None else str(value)
        for name, value in values.items()
    }


def lease_rows(facts: Facts) -> list[dict[str, Any]]:
    table, watch = facts.table, facts.watch
    if table is None or watch is None:
        return []
    rows = []
    for key, lease in sorted(watch.view.leases.items()):
        kind = table.kinds.get(lease.actual_owner or "")
        rows.append(
            {
                **_lease(lease),
                "owner_kind": kind.kind if kind is not None else None,
                "owner_version": kind.version if kind is not None else None,
                "alive": key in watch.alive,
                "unmoved_for": round(watch.unmoved_for.get(key, 0.0), 1),
            }
        )
    return rows


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "key": lease.key,
        "owner": lease.owner,
        "checkpoint_owner": lease.checkpoint_owner,
        "checkpoint": str(lease.checkpoint),
        "has_pending": lease.pending is not None,
        "counter": lease.counter,
        "owner_switches": lease.owner_switches,
        "parents": list(lease.parents),
        "children": list(lease.children),
        "has_hash_range": lease.hash_range is not None,
        "other_attributes": sorted(lease.extra),
    }


def table_of(facts: Facts) -> dict[str, Any]:
    table, stream, account = facts.table, facts.stream, facts.account
    told: dict[str, Any] = {"regions": dict(account.regions), "clock_skew": account.skew}
    if stream is not None:
        told["stream"] = {
            name: getattr(stream, name)
            for name in ("status", "mode", "created_at", "retention_hours", "open_shards", "consumers")
        }
        told["stream"]["shards"] = len(stream.shards) if stream.shards is not None else None
    if table is not None:
        told["table"] = {
            name: getattr(table, name)
            for name in ("exists", "status", "foreign", "provisioned", "read_units", "write_units")
        }
    if table is not None and table.watch is not None:
        view = table.watch.view
        told["schema"] = view.schema
        told["watched_seconds"] = round(table.watch.span, 1)
        told["other_rows"] = dict(Counter(row.kind for row in view.foreign))
        told["unreadable"] = [row.problem for row in view.unreadable.values()]
    if table is not None and table.fleet is not None:
        told["fleet"] = {"kind": table.fleet.kind.value, "evidence": list(table.fleet.evidence)}
    told["lags"] = {key: asdict(lag) for key, lag in sorted((facts.lags or {}).items())}
    return told


def _finding(finding: Finding, clean: Any) -> dict[str, Any]:
    return {
        "id": finding.id,
        "level": finding.level,
        "code": finding.code,
        "text": clean(finding.text),
        "fix": clean(finding.fix),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True, default=str) + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, default=str) + "\n"
