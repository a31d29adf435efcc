"""The jars come once, whole, or there is a reason: shown with a Maven that only copies what it is told."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import java_jars
import pytest

from pykcl.config import from_environment
from pykcl.demo import java
from pykcl.demo.java import CACHE_VARIABLE, DAEMON, KCL_2, Unavailable, resolved, users_cache

MAVEN = """#!/bin/sh
echo called >> {calls}
for word; do case $word in -DoutputDirectory=*) cp {store}/* "${{word#*=}}"/ ;; esac; done
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with a Java and a Maven of ours; returns where they, the jars to copy and the calls are."""
    store, folder, calls = tmp_path / "store", tmp_path / "bin", tmp_path / "calls"
    store.mkdir()
    folder.mkdir()
    jar(store / "daemon.jar", DAEMON)
    jar(store / "library.jar", "x.class")
    for artifact in java.pinned(KCL_2):
        jar(store / jar_name(artifact), "pinned.class")
    digests = {
        artifact: hashlib.sha256((store / jar_name(artifact)).read_bytes()).hexdigest()
        for artifact in java.pinned(KCL_2)
    }
    monkeypatch.setattr(java, "pinned", lambda pom: digests)
    program(folder / "java", "#!/bin/sh\necho 'java 17 of ours' >&2\n")
    program(folder / "mvn", MAVEN.format(calls=calls, store=store))
    for needed in ("cp", "sh"):
        (folder / needed).symlink_to(shutil.which(needed))
    monkeypatch.setenv("PATH", str(folder))
    java.java_version.cache_clear()
    yield tmp_path
    java.java_version.cache_clear()


def jar_name(artifact):
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"


MULTILANG = "amazon-kinesis-client-multilang-2.7.2.jar"


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def jar(path, name):
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(name, "")


def calls(programs):
    return (programs / "calls").read_text().splitlines()


def test_there_is_a_pom_of_each_version():
    assert tuple(java_jars.POMS) == ("2.7.2", "3.1.3", "3.5.1")


def test_maven_is_asked_once_and_all_jars_are_there(programs):
    first = resolved(KCL_2, programs / "cache")
    assert [path.name for path in first] == [MULTILANG, "daemon.jar", "library.jar"]
    assert resolved(KCL_2, programs / "cache") == first
    assert calls(programs) == ["called"]
    assert sorted(path.name for path in (programs / "cache").iterdir()) == [first[0].parent.name, "lock"]


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"half")], ids=["gone", "cut"])
def test_an_incomplete_folder_is_resolved_again(programs, harm):
    harm(resolved(KCL_2, programs / "cache")[-1])
    assert all(zipfile.is_zipfile(path) for path in resolved(KCL_2, programs / "cache"))
    assert len(calls(programs)) == 2


CHECKSUM_MISSING = """#!/bin/sh
echo called >> {calls}
case "$*" in
  *dependency:get*) echo "$*" >> {root}/got; exit 0 ;;
esac
if ! [ -f {root}/got ]; then echo '[ERROR] Checksum validation failed, no checksums available'; exit 1; fi
for word; do case $word in -DoutputDirectory=*) cp {store}/* "${{word#*=}}"/ ;; esac; done
"""


def test_a_pinned_jar_that_comes_without_a_checksum_is_fetched_by_itself(programs):
    """And then known by ours. A mirror was seen to have it so, and nothing else of that version."""
    text = CHECKSUM_MISSING.format(calls=programs / "calls", root=programs, store=programs / "store")
    program(programs / "bin" / "mvn", text)
    assert MULTILANG in [path.name for path in resolved(KCL_2, programs / "cache")]
    (asked,) = (programs / "got").read_text().splitlines()
    assert "-Dartifact=software.amazon.kinesis:amazon-kinesis-client-multilang:2.7.2" in asked
    assert len(calls(programs)) == 3


def test_two_processes_resolve_once(programs, monkeypatch):
    code = (
        "import pathlib; from pykcl.demo import java; from pykcl.demo.java import KCL_2, resolved; "
        f"java.pinned = lambda pom: {java.pinned(KCL_2)!r}; "
        f"resolved(KCL_2, pathlib.Path({str(programs / 'cache')!r}))"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(java.__file__).parents[2]))
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert calls(programs) == ["called"]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda root: (root / "bin" / "java").unlink(), "java not found"),
        (lambda root: (root / "bin" / "mvn").unlink(), "mvn .Maven. not found"),
        (
            lambda root: program(root / "bin" / "mvn", "#!/bin/sh\necho '[ERROR] no route'\nexit 1\n"),
            "could not resolve it: .ERROR. no route",
        ),
        (lambda root: (root / "store" / "daemon.jar").unlink(), "none of the 2 jars holds MultiLangDaemon"),
        (
            lambda root: (root / "store" / "library.jar").write_text("<html>"),
            "library.jar is not a valid archive",
        ),
        (
            lambda root: jar(root / "store" / MULTILANG, "other.class"),
            f"{MULTILANG} is not the expected file: its SHA-256 is",
        ),
        (lambda root: (root / "store" / MULTILANG).unlink(), f"Maven did not download {MULTILANG}"),
    ],
    ids=["no java", "no maven", "no repository", "no daemon", "no jar", "another jar", "no pinned jar"],
)
def test_without_java_maven_or_whole_jars_there_is_a_reason_and_nothing_is_kept(programs, harm, reason):
    harm(programs)
    java.java_version.cache_clear()
    with pytest.raises(Unavailable, match=reason):
        resolved(KCL_2, programs / "cache")
    assert list((programs / "cache").glob("2.7.2-*")) == []


def test_the_caches_variable_is_not_taken_for_an_option_of_a_worker():
    assert from_environment({CACHE_VARIABLE: "/c"}) == {}


def test_the_cache_is_the_one_that_was_chosen_or_the_users():
    assert users_cache({"JAVA_KCL_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert users_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/pykcl/java")
    assert users_cache({}) == Path.home() / ".cache" / "pykcl" / "java"
