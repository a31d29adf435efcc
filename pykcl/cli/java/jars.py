"""The jars of real Java workers, resolved on demand by Maven from `VERSION/pom.xml`.

They go into a cache: a folder per POM, with the list of what belongs there, so that the second run starts no Maven and
an incomplete folder is noticed. Nothing of them is part of pykcl.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

KCL_2 = Path(__file__).parent / "2.7.2" / "pom.xml"
"""Of the last Java KCL of the line 2."""
CACHE_VARIABLE = "JAVA_KCL_CACHE"
"""Not PYKCL_…: those are the options of Config, and `pykcl run` refuses one that is none."""
LIST = "jars.json"
PINS = "pinned.sha256"
DAEMON = "software/amazon/kinesis/multilang/MultiLangDaemon.class"
RESOLVE_SECONDS = 900.0
ASK_SECONDS = 60.0
_MOST_SAID = 400
"""Characters of what Maven says."""


class Unavailable(Exception):
    """Java workers cannot be run here, for this reason."""


def version_of(pom: Path) -> str:
    """Of the library that a POM asks for: the name of its folder."""
    return pom.parent.name


def users_cache(environment: Mapping[str, str]) -> Path:
    """JAVA_KCL_CACHE, or the folder for such things of the user who runs this."""
    if chosen := environment.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pykcl" / "java"


def resolved(pom: Path, cache: Path) -> tuple[Path, ...]:
    """The jars that a POM asks for, sorted. Raises Unavailable without Java, Maven or a repository."""
    java_version()
    target = cache / f"{version_of(pom)}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    with locked(cache):
        found = _complete(target)
        if found is None:
            shutil.rmtree(target, ignore_errors=True)
            _resolve(pom, cache, target)
            found = _complete(target)
    if found is None:
        raise Unavailable(f"what Maven put into {target} is not what it said")
    return found


@cache
def java_version() -> str:
    """What `java -version` says, as one line. Raises Unavailable."""
    java = shutil.which("java")
    if java is None:
        raise Unavailable("java not found")
    done = subprocess.run(  # noqa: S603 - the Java of the path, whichever the user has
        [java, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"java -version ended with {done.returncode}")
    return " ".join(done.stderr.split())


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """One process at a time: downloads and shared archives are big, and two of them would only wait for each other."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _complete(target: Path) -> tuple[Path, ...] | None:
    """The jars of the list, if every one is there in its size."""
    try:
        sizes = json.loads((target / LIST).read_text("utf-8"))
        whole = all((target / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return tuple(target / name for name in sorted(sizes)) if whole and sizes else None


def _resolve(pom: Path, cache: Path, target: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("mvn (Maven) not found")
    # Elsewhere first, then moved as a whole: a broken-off download never looks like a finished one.
    aside, pins = Path(tempfile.mkdtemp(dir=cache)), pinned(pom)
    copy = [
        "--strict-checksums", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
        f"-DoutputDirectory={aside}",
    ]  # fmt: skip
    try:
        done = _maven(aside, *copy)
        if done.returncode != 0 and pins:
            # A mirror may have a jar without the checksum beside it. Then ours says whether it is the right one.
            for artifact in pins:
                _maven(aside, "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false")
            done = _maven(aside, *copy)
        if done.returncode != 0:
            said = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise Unavailable(
                f"Maven could not resolve it: {_reason(said[0]) if said else 'no reason given'}"
            )
        _check_pins(aside, pins)
        _write_list(aside)
        os.rename(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _maven(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Raises Unavailable when it does not come to an end."""
    try:
        return subprocess.run(  # noqa: S603 - Maven, with a POM of ours
            ["mvn", "-B", "-q", *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,  # noqa: S607
            stderr=subprocess.STDOUT, text=True, timeout=RESOLVE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not finish within {RESOLVE_SECONDS:g} s") from None


def _reason(line: str) -> str:
    """Of an ERROR line; what failed is at its end."""
    return line if len(line) <= _MOST_SAID else f"{line[: _MOST_SAID // 2]}…{line[-_MOST_SAID // 2 :]}"


def pinned(pom: Path) -> dict[str, str]:
    """What `pinned.sha256` beside a POM says: group:artifact:version -> SHA-256 of that jar."""
    file = pom.parent / PINS
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return {artifact: digest for digest, artifact in map(str.split, lines)}


def _check_pins(folder: Path, pins: Mapping[str, str]) -> None:
    for artifact, digest in pins.items():
        _, name, version = artifact.split(":")
        jar = folder / f"{name}-{version}.jar"
        if not jar.exists():
            raise Unavailable(f"Maven did not bring {jar.name}")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != digest:
            raise Unavailable(
                f"{jar.name} is another than the one known here: its SHA-256 is {found}, not {digest}"
            )


def _write_list(folder: Path) -> None:
    """Raises Unavailable when a jar is broken or the daemon is in none of them."""
    jars, daemon = sorted(folder.glob("*.jar")), False
    for jar in jars:
        try:
            with zipfile.ZipFile(jar) as opened:
                daemon = daemon or DAEMON in opened.namelist()
        except zipfile.BadZipFile:
            raise Unavailable(f"Maven left a broken {jar.name}") from None
    if not daemon:
        raise Unavailable(f"none of the {len(jars)} jars holds MultiLangDaemon")
    sizes = {jar.name: jar.stat().st_size for jar in jars}
    (folder / LIST).write_text(json.dumps(sizes, indent=1), "utf-8")
