"""`import pykcl.testing` is light, its names are all there, and nothing of it needs pytest or, but for LocalAws, moto."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pykcl.testing

ROOT = Path(__file__).parents[2]


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_loads_nothing_else():
    loaded = set(run("import sys, pykcl.testing; dir(pykcl.testing); print(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("pykcl")} == {"pykcl", "pykcl.testing"}
    assert loaded.isdisjoint({"pytest", "moto", "boto3", "botocore", "hypercorn"})


def test_a_run_loads_neither_pytest_nor_moto_nor_boto3():
    loaded = run(
        "import sys\nfrom pykcl import RecordProcessor\nfrom pykcl.testing import *\n"
        "class P(RecordProcessor):\n    def process_records(self, batch): ...\n"
        "assert_no_loss(run_processor(P, records(1)))\nprint(*sys.modules)"
    ).split()
    assert "pykcl.worker.worker" in loaded
    assert "pytest" not in loaded
    # `import *` asks for LocalAws, too; the server imports moto when it starts.
    assert set(loaded).isdisjoint({"pytest", "moto", "boto3"})


def test_without_pytest_and_the_extra_all_but_the_local_aws_works():
    missing = ("pytest", "_pytest", "moto", "hypercorn", "cbor2")
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n"
        "from pykcl import RecordProcessor\n"
        "from pykcl.testing import FaultRule, assert_no_loss, records, run_processor, simulate\n"
        "class P(RecordProcessor):\n    def process_records(self, batch): ...\n"
        "assert_no_loss(run_processor(P, records(1)))\n"
        "try:\n    from pykcl.testing import LocalAws\nexcept ImportError as error:\n    print(error)\n"
    )
    assert run(program) == (
        "pykcl.testing.LocalAws needs the extra `local`, of which moto, hypercorn, cbor2 cannot be imported. "
        "Do: pip install 'pykcl[local]'.\n"
    )


def test_every_name_is_there_documented_and_known_to_type_checkers():
    source = Path(pykcl.testing.__file__).read_text("utf-8")
    assert pykcl.testing.__all__ == sorted(pykcl.testing.__all__) == dir(pykcl.testing)
    assert set(pykcl.testing.__all__) == set(pykcl.testing._HOMES)
    for name in pykcl.testing.__all__:
        found = getattr(pykcl.testing, name)
        assert found.__doc__, name
        assert found.__module__ == pykcl.testing._HOMES[name]
        assert f"from {found.__module__} import" in source
    with pytest.raises(AttributeError, match="no attribute 'run_procesor'"):
        pykcl.testing.run_procesor  # noqa: B018
