"""What several processes tell, as one: pure functions over what each of them answered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pykcl.health.probes import FORMAT, Verdict, versions

_COMMENT = re.compile(r"# (?:HELP|TYPE) (\S+)")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


def named(number: int, why: Iterable[str]) -> Iterator[str]:
    """Reasons, each with whose it is."""
    return (f"process {number}: {one}" for one in why)


def merged_report(live: Verdict, ready: Verdict, told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What /status tells of all. told: of each process its number, pid and starts, and what it reports of itself."""
    behind = [one["max_millis_behind_latest"] for one in told]
    return {
        "format": FORMAT,
        "live": live.is_good,
        "ready": ready.is_good,
        "why": list(dict.fromkeys((*live.why, *ready.why))),
        "max_millis_behind_latest": max((one for one in behind if one is not None), default=None),
        "stalled": sorted({shard for one in told for shard in one["stalled"]}),
        "versions": versions(),
        "processes": list(told),
    }


def report_of(
    number: int, pid: int | None, starts: int, report: Mapping[str, Any] | None, why: Iterable[str]
) -> dict[str, Any]:
    """Of one process, for `merged_report`. report: what it told; None: nothing, and `why` says why."""
    silent = {
        "live": pid is not None, "ready": False, "why": list(why), "max_millis_behind_latest": None, "stalled": [],
        "worker": None,
    }  # fmt: skip
    return {"process": number, "pid": pid, "starts": starts, **(silent if report is None else report)}


def merged_metrics(pages: Mapping[int, str]) -> str:
    """One page for Prometheus from one for each process: every sample with `process`, every family in one piece.

    Labelled and not added up: the counters of a process that is started again begin at 0, and a sum that falls by a
    part looks to rate() as if everything had begun anew. Each page has the form that prometheus_client writes.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, page in pages.items():
        family = families.setdefault("", ([], []))
        for line in page.splitlines():
            comment = _COMMENT.match(line)
            if comment is not None:
                family = families.setdefault(comment[1], ([], []))
                if line not in family[0]:
                    family[0].append(line)
            elif line and not line.startswith("#"):
                family[1].append(labelled(line, number))
    lines = [line for comments, samples in families.values() for line in (*comments, *samples)]
    return "\n".join(lines) + "\n" if lines else ""


def labelled(sample: str, number: int) -> str:
    """A sample with the label `process` in front of its own."""
    name = _NAME.match(sample)
    if name is None:
        return sample
    rest = sample[name.end() :]
    label = f'process="{number}"'
    return f"{name[0]}{{{label},{rest[1:]}" if rest.startswith("{") else f"{name[0]}{{{label}}}{rest}"
