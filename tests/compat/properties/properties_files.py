"""Properties for tests: files written from text, and what a least file needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pykcl.compat.properties import Interpretation, interpret

ALL_KEYS = Path(__file__).with_name("all_88.properties")
LEAST = {"executableName": "python3 app.py", "applicationName": "orders-app", "streamName": "orders"}


def written(folder: Path, text: str | bytes, name: str = "app.properties") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("latin-1"))
    return path


def meaning(entry_point: Any = "multilang", **changes: str | None) -> Interpretation:
    """Of the least file with these keys besides; None leaves one out. "__" in a name stands for a dot."""
    keys = {name.replace("__", "."): value for name, value in {**LEAST, **changes}.items()}
    return interpret(
        {name: value for name, value in keys.items() if value is not None}, entry_point=entry_point
    )


def row(found: Interpretation, key: str) -> Any:
    (only,) = [row for row in found.verdicts if row.key == key]
    return only
