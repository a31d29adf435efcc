"""async-kinesis in an environment of its own, made by venv and pip at the first run, under `.cache`, which git ignores."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "async-kinesis"
REQUIREMENTS = ("async-kinesis==3.0.1", "aws-kinesis-agg==1.2.3", "six")
_SECONDS = 300.0


class Unavailable(Exception):
    """It cannot be had here, for this reason."""


def python_of(cache: Path = CACHE) -> Path:
    """The interpreter of that environment. Raises Unavailable."""
    wanted = hashlib.sha256(" ".join([sys.version, *REQUIREMENTS]).encode()).hexdigest()[:12]
    target = cache / wanted
    ready = target / "ready"
    if not ready.exists():
        shutil.rmtree(target, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(target)], "venv")
        pip = [
            str(target / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        _run([*pip, *REQUIREMENTS], "pip")
        ready.write_text("\n".join(REQUIREMENTS) + "\n", "utf-8")
    return target / "bin" / "python"


def versions(python: Path) -> dict[str, str]:
    """Of what takes part there."""
    asked = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({n: m.version(n) for n in ('async-kinesis', 'aiobotocore', 'botocore', 'aiohttp')}))"
    )
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} did not finish within {_SECONDS:g} s") from None
    if done.returncode != 0:
        raise Unavailable(
            f"{what} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:] or 'no word'}"
        )
