"""Draws one picture for each question, of what the benchmarks found at their last runs.

python -m benchmarks.pictures [--folder docs/pictures]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.picture import Bar, Chart, svg
from benchmarks.results import NOT_RUN, loaded, results_folder

SOURCES = ("peers", "rust_peer", "cost", "failover", "memory")
"""The benchmarks that leave something to draw."""


def chart_of(found: Mapping[str, Any]) -> Chart:
    groups = {title: [Bar(**bar) for bar in bars] for title, bars in found["groups"].items()}
    return Chart(found["title"], found["note"], found["unit"], groups, bool(found.get("logarithmic")))


def draw(folder: Path) -> list[Path]:
    """The files written."""
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        results = loaded(source)
        for name, found in results.pictures.items() if results else ():
            path = folder / f"{name}.svg"
            path.write_text(svg(chart_of(found)), "utf-8")
            written.append(path)
    return written


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "--folder", type=Path, default=results_folder() / "pictures", help="docs/pictures: those of the docs"
    )
    written = draw(options.parse_args().folder)
    for path in written:
        print(f"  {path}")
    if not written:
        print("Nothing to draw: no benchmark was run.")
    return 0 if written else NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
