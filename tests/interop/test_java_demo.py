"""`pykcl demo --with-java`, as a user starts it: a real Java worker takes over, is killed, and nothing is lost."""

import os
import subprocess
import sys

import java_jars

COMMAND = [sys.executable, "-m", "pykcl.cli", "demo", "--fast", "--headless", "--with-java", "--seed", "7"]


def test_the_demo_passes_with_a_java_worker_in_the_fleet(java, tmp_path):
    java("2.7.2")
    folder = tmp_path / "a folder"  # with a blank, which Java's properties cannot quote
    folder.mkdir()
    own = {"TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", "JAVA_KCL_CACHE": str(java_jars.CACHE)}
    done = subprocess.run(
        COMMAND, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "with Java KCL 2.7.2 · table" in done.stdout
    for step in ("Java joins       java", "kill -9 java"):
        assert f"s  {step}" in done.stdout, done.stdout
    assert "2 kills" in done.stdout
    assert "lost 0 · out of order 0" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("PASS"), done.stdout
    assert list(folder.iterdir()) == []
