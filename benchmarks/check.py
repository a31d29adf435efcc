"""Whether pykcl has become slower beside its peers: paired ratios of the last run against the committed ones.

    python -m benchmarks.check [--write] [--slack 0.15] [--all]

Times differ from machine to machine, ratios hardly do. A ratio has become worse when even the upper end of its 95 %
interval lies more than 15 % below the committed median: chance alone does not bring that about. A committed ratio that the
last run did not measure is a failure, too, for nothing is known of it, and so is a check with nothing to compare. --write
commits the ratios of the last run instead (`benchmarks/ratios.json`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import Ratio
from benchmarks.results import Results, loaded

COMMITTED = Path(__file__).parent / "ratios.json"
SLACK = 0.15
NOTHING_COMPARED = 2
"""Exit code without a run or without committed ratios."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """now, before: None where it was not measured. is_worse: clearly."""

    name: str
    before: Ratio | None
    now: Ratio | None
    is_worse: bool

    @property
    def is_missing(self) -> bool:
        return self.now is None

    @property
    def fails(self) -> bool:
        return self.is_worse or self.is_missing

    @property
    def word(self) -> str:
        if self.is_missing:
            return "MISSING"
        if self.before is None:
            return "new"
        return "WORSE" if self.is_worse else "as before"


def compared(before: Mapping[str, Ratio], now: Mapping[str, Ratio], slack: float = SLACK) -> list[Verdict]:
    """In the order of the committed ones, then what is new."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        Verdict(name, before.get(name), now.get(name), _is_worse(before.get(name), now.get(name), slack))
        for name in names
    ]


def _is_worse(before: Ratio | None, now: Ratio | None, slack: float) -> bool:
    if before is None or now is None:
        return False
    return now.high < before.median * (1 - slack)


def read(path: Path = COMMITTED) -> dict[str, Ratio]:
    if not path.exists():
        return {}
    found = json.loads(path.read_text("utf-8"))["ratios"]
    return {name: Ratio(**ratio) for name, ratio in found.items()}


def write(results: Results, path: Path = COMMITTED) -> None:
    """Those that were not measured this time stay as they were."""
    kept = {**read(path), **results.ratios}
    content = {
        "measured_on": results.versions,
        "ratios": {
            name: {end: round(value, 3) for end, value in asdict(ratio).items()}
            for name, ratio in sorted(kept.items())
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "--write", action="store_true", help="commit the ratios of the last run of benchmarks.peers"
    )
    options.add_argument("--slack", type=float, default=SLACK)
    options.add_argument("--all", action="store_true", help="show also what is as before")
    chosen = options.parse_args()
    results = loaded("peers")
    if results is None or not results.ratios:
        print("There is no run to compare. Do: python -m benchmarks.peers")
        return NOTHING_COMPARED
    if chosen.write:
        write(results)
        print(f"{len(results.ratios)} ratios written to {COMMITTED}")
        return 0
    verdicts = compared(read(), results.ratios, chosen.slack)
    for one in verdicts:
        if chosen.all or one.word != "as before":
            print(f"  {one.word:18}{one.name:78}{one.before or '-'!s:>22} -> {one.now or '-'!s}")
    worse = sum(one.is_worse for one in verdicts)
    same = sum(one.word == "as before" for one in verdicts)
    missing = sum(one.is_missing for one in verdicts)
    if not any(one.before for one in verdicts):
        print("There are no committed ratios. Do: python -m benchmarks.check --write")
        return NOTHING_COMPARED
    print(f"{same} ratios as before, {worse} worse by more than {chosen.slack:.0%}, {missing} missing")
    return 1 if any(one.fails for one in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
