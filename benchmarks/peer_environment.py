"""A peer's packages in an environment of their own, made by venv and pip at the first run, under `.cache`, which git ignores."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CACHE = Path(__file__).parents[1] / ".cache"
ASYNC_KINESIS: Final = ("async-kinesis==3.0.1", "aws-kinesis-agg==1.2.3", "six")
AIOKPL: Final = ("aiokpl==0.2.0",)
AWS_KINESIS_AGG: Final = ("aws-kinesis-agg==1.2.3", "six")
KCL_RS: Final = ("kcl-rs==0.1.4",)
_SECONDS = 300.0


class Unavailable(Exception):
    """The packages cannot be had here, for this reason."""


def python_of(name: str, requirements: Sequence[str], cache: Path = CACHE) -> Path:
    """Return the interpreter of an environment with these packages. Raises Unavailable.

    name: of the folder under `cache`.
    """
    wanted = hashlib.sha256(" ".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    target = cache / name / wanted
    ready, python = target / "ready", target / "bin" / "python"
    if not ready.exists():
        shutil.rmtree(target, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(target)], "venv")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *requirements], "pip")
        ready.write_text("\n".join(requirements) + "\n", "utf-8")
    return python


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages in that environment."""
    program = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", program, *packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} did not finish within {_SECONDS:g} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or "no word"
        raise Unavailable(f"{what} ended with {done.returncode}: {last}")
