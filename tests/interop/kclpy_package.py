"""The real amazon_kclpy, brought on demand by pip into `.cache/kclpy`, which git ignores: installed from
`kclpy/requirements.txt`, or its newest release as source, from `kclpy/source.txt`.

Nothing of it is part of pykcl: programs written for it are run with it, and their outcome is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "kclpy" / "requirements.txt"
SOURCE = Path(__file__).parent / "kclpy" / "source.txt"
CACHE = Path(__file__).parents[2] / ".cache" / "kclpy"
INSTALL_SECONDS = 300.0


class Unavailable(Exception):
    """The package cannot be had here, for this reason."""


def installed(cache: Path = CACHE) -> Path:
    """A folder for PYTHONPATH. Raises Unavailable without pip or an index."""
    return _brought(REQUIREMENTS, cache, _install)


def unpacked(cache: Path = CACHE) -> Path:
    """The folder of the newest release's source: for PYTHONPATH, and with `samples`. Raises Unavailable as `installed`."""
    return _brought(SOURCE, cache, _unpack)


def _brought(requirements: Path, cache: Path, bring: Callable[[Path, Path], None]) -> Path:
    target = cache / hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Elsewhere first, then moved as a whole: a broken-off installation never passes for a finished one.
        with tempfile.TemporaryDirectory(dir=cache) as aside:
            folder = Path(aside) / "package"
            bring(requirements, folder)
            # OSError: another process was faster, and its folder is as good.
            with contextlib.suppress(OSError):
                os.rename(folder, target)
    return target


def _install(requirements: Path, folder: Path) -> None:
    _pip("install", "--only-binary=:all:", "--target", str(folder), "-r", str(requirements))


def _unpack(requirements: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        _pip("download", "--dest", aside, "-r", str(requirements))
        (archive,) = Path(aside).iterdir()
        with tarfile.open(archive) as opened:
            opened.extractall(aside)
        (content,) = (one for one in Path(aside).iterdir() if one.is_dir())
        os.rename(content, folder)


def _pip(what: str, *arguments: str) -> None:
    command = [
        sys.executable, "-m", "pip", what, "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
        *arguments,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not finish within {INSTALL_SECONDS:g} s") from None
    if done.returncode != 0:
        raise Unavailable(f"pip could not {what} amazon_kclpy (exit code {done.returncode})")
