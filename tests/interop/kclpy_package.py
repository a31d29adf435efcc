"""The real amazon_kclpy, installed on demand by pip from `kclpy/requirements.txt` into `.cache/kclpy`, which git ignores.

Nothing of it is part of pykcl: programs written for it are run with it, and their outcome is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "kclpy" / "requirements.txt"
CACHE = Path(__file__).parents[2] / ".cache" / "kclpy"
INSTALL_SECONDS = 300.0


class Unavailable(Exception):
    """The package cannot be had here, for this reason."""


def installed(cache: Path = CACHE) -> Path:
    """A folder for PYTHONPATH. Raises Unavailable without pip or an index."""
    target = cache / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    if not target.exists():
        _install(cache, target)
    return target


def _install(cache: Path, target: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    # Elsewhere first, then moved as a whole: a broken-off installation never looks like a finished one.
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        folder = Path(aside) / "package"
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--only-binary=:all:", "--target", str(folder), "-r", str(REQUIREMENTS),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"pip did not finish within {INSTALL_SECONDS:g} s") from None
        if done.returncode != 0:
            raise Unavailable(f"pip could not install amazon_kclpy (exit code {done.returncode})")
        # OSError: another process was faster, and its folder is as good.
        with contextlib.suppress(OSError):
            os.rename(folder, target)
