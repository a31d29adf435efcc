"""The bundle for a bug report: versions, configuration, leases and findings, without names and secrets. Pure.

Names are replaced by hashes with a salt that is thrown away, so that guesses cannot be checked. Never included,
redacted or not: credentials, payloads, partition keys, the state of prepared checkpoints, endpoints; of attributes
beyond KCL's own, only the names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from pykcl.config import Config
from pykcl.model.lease import Lease
from pykcl.model.lease_item import MIGRATION_KEY
from pykcl.operate.doctor.facts import Facts, ProcessFacts
from pykcl.operate.doctor.findings import Finding
from pykcl.operate.fleet import plain
from pykcl.operate.snapshot import shown

_ARN = re.compile(r"arn:[a-z0-9-]*:[^\s,;'\")\]}]+")
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")),
    ("url", re.compile(r"\bhttps?://[^\s,;'\")\]}]+")),
    ("account", re.compile(r"(?<![0-9.])[0-9]{12}(?![0-9])")),
    ("address", re.compile(r"(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])")),
)
_SHARD = re.compile(r"shardId-[0-9]{12}")
_SHORT = 4
_BESIDE_A_SHARD = ":-_./ "


def parts_of_key(key: str) -> set[str]:
    """Return the parts of a lease key besides the id of a shard, raw and as shown."""
    parts = {part.strip(_BESIDE_A_SHARD) for part in _SHARD.split(key)} - {""}
    return {form for part in parts for form in (part, shown(part), shown(part).rstrip("…"))}


class Redactor:
    """Replaces names by hashes. names: kind ("stream") -> names of that kind."""

    def __init__(self, salt: str, names: Mapping[str, Iterable[str]]) -> None:
        self._salt = salt
        known: dict[str, str] = {}
        for kind, some in names.items():
            for name in filter(None, some):
                known.setdefault(name, kind)
        # The longest first: a name may be a part of another.
        self._names = sorted(known.items(), key=lambda item: -len(item[0]))

    def token(self, kind: str, name: str) -> str:
        """Return the replacement, such as "stream-1a2b3c4d"."""
        return f"{kind}-{hashlib.sha256(f'{self._salt}/{name}'.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"

    def text(self, text: str) -> str:
        """Return `text` without names; ids of shards stay, as they identify nobody."""
        kept: list[str] = []

        def keep(token: str) -> str:
            # A replacement is not replaced again. No text has these characters: they are lone surrogates.
            kept.append(token)
            return f"\udc00{len(kept) - 1}\udc01"

        def replace(pattern: re.Pattern[str], kind: str, text: str) -> str:
            return pattern.sub(lambda match: keep(self.token(kind, match[0])), text)

        text = text.encode("utf-8", "backslashreplace").decode()
        text = _SHARD.sub(lambda match: keep(match[0]), text)
        # ARNs before names, which are parts of them; everything else after, as it may be a part of a name.
        text = replace(_ARN, "arn", text)
        for name, kind in self._names:
            if name in text:  # quicker than the pattern, and a table may have thousands of names
                text = replace(re.compile(_bounded(name)), kind, text)
        for kind, pattern in _PATTERNS:
            text = replace(pattern, kind, text)
        return re.sub("\udc00([0-9]+)\udc01", lambda match: kept[int(match[1])], text)

    def value(self, value: Any) -> Any:
        """Redact the texts within lists and mappings, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, Sequence):
            return [self.value(inner) for inner in value]
        return value


def _bounded(name: str) -> str:
    """Return the pattern of a name: a short one matches only as a whole word, a long one anywhere."""
    found = re.escape(name)
    return found if len(name) >= _SHORT else rf"(?<![A-Za-z0-9_]){found}(?![A-Za-z0-9_])"


README = """\
A report of pykcl, created at {at}.

Files:
{contents}

Names of applications, tables, streams, workers, accounts and roles {names}.
Not included: credentials, records, partition keys, endpoints, the state of prepared checkpoints, logs.
"""
CONTENTS = {
    "versions.json": "versions of pykcl, Python and its packages, and the kind of machine",
    "config.json": "every option as a worker would have it",
    "leases.jsonl": "one line for each lease: state of its checkpoint, counter, family",
    "table.json": "the other rows of the lease table, counted",
    "doctor.json": "the findings of `pykcl doctor`",
}
_HASHED = "are replaced by hashes, which are the same within this report and differ from any other"
_KEPT = "are included"
_NAMES_OF_CONFIG = {
    "application": "application",
    "table_name": "table",
    "stream": "stream",
    "coordinator_state_table": "table",
    "worker_metrics_table": "table",
    "worker_id": "worker",
    "metrics_namespace": "application",
    "consumer": "consumer",
}

_KEYS_OF_KCL = {"Leader", MIGRATION_KEY, "TableMigration3.5"}
"""They identify nobody, and show the version of a table."""


def redactor_of(facts: Facts, salt: str) -> Redactor:
    """Return a redactor of every name in these facts."""
    kinds = ("application", "table", "stream", "worker", "row", "consumer")
    names: dict[str, set[str]] = {kind: set() for kind in kinds}
    config = facts.config
    for name, kind in _NAMES_OF_CONFIG.items():
        names[kind].add(str(getattr(config, name) or ""))
    names["application"].add(facts.application or "")
    names["stream"].add(config.stream_name)
    names["consumer"] |= {
        facts.consumer or "",
        *(facts.consumers.names if facts.consumers is not None else ()),
    }
    if facts.stream is not None:
        names["stream"] |= {facts.stream.name, *facts.stream.nearby}
    if facts.table is not None:
        names["table"].add(facts.table.name)
    if facts.watch is not None:
        view = facts.watch.snapshot
        for lease in view.leases.values():
            names["worker"] |= {lease.owner or "", lease.checkpoint_owner or ""}
            if (note := lease.metadata) is not None:
                names["worker"].add(note.owner or "")
                names["consumer"].add(note.consumer or "")
        names["worker"] |= {row.owner or "" for row in view.unreadable.values()}
        overview = facts.watch.overview
        names["worker"] |= {one.worker for one in overview.members} if overview is not None else set()
        keys = {*view.leases, *view.unreadable, *(row.key for row in view.fleet_rows)} - _KEYS_OF_KCL
        keys |= {key for lease in view.leases.values() for key in (*lease.parents, *lease.children)}
        names["row"] |= {part for key in keys for part in parts_of_key(key)}
        names["stream"] |= {part for one in view.streams.values() for part in (one, *one.split(":")[1:2])}
    # A placeholder stands for an application or a stream that was not given.
    return Redactor(salt, {kind: some - {"not-given", ""} for kind, some in names.items()})


def bundle_of(
    facts: Facts,
    findings: Sequence[Finding],
    redactor: Redactor | None,
    at: str,
) -> dict[str, str]:
    """Return file name -> text. redactor: None keeps names. at: the time, as text."""

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
    for key, lease in sorted(watch.snapshot.leases.items()):
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
    found: dict[str, Any] = {"regions": dict(account.regions), "clock_skew": account.skew}
    if stream is not None:
        found["stream"] = {
            name: getattr(stream, name)
            for name in ("status", "mode", "created_at", "retention_hours", "open_shards", "consumers")
        }
        found["stream"]["shards"] = len(stream.shards) if stream.shards is not None else None
    if table is not None:
        found["table"] = {
            name: getattr(table, name)
            for name in ("exists", "status", "foreign", "provisioned", "read_units", "write_units")
        }
    if table is not None and table.watch is not None:
        view = table.watch.snapshot
        found["schema"] = view.schema
        found["watched_seconds"] = round(table.watch.span, 1)
        found["other_rows"] = dict(Counter(row.kind for row in view.foreign))
        found["unreadable"] = [row.problem for row in view.unreadable.values()]
    if table is not None and table.fleet is not None:
        found["fleet"] = {"kind": table.fleet.kind.value, "evidence": list(table.fleet.evidence)}
        overview = table.watch.overview if table.watch is not None else None
        if overview is not None:
            found["fleet"] |= plain(overview)
            found["fleet"]["members"] = [
                {**asdict(one), "standing": one.standing.value} for one in overview.members
            ]
    found["lags"] = {key: asdict(lag) for key, lag in sorted((facts.lags or {}).items())}
    return found


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
