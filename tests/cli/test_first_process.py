"""Commands as the first process of a container (PID 1), for which the kernel drops a signal that has no handler yet."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANGS = """
    # In pieces: a signal that comes right before a wait does not end it.
    while True:
        threading.Event().wait(0.1)
"""
SAYS_SO_AND_HANGS = f"""
import os, threading
os.write(1, b"importing\\n")
if True:{HANGS}
"""
SCRIPT = "from pykcl.cli.__main__ import main; main()"
"""The console script of the package."""


def namespaces():
    """Return a command that makes what follows the first process of a PID namespace; None where that is not permitted."""
    unshare = shutil.which("unshare")
    for options in ([], ["--user", "--map-root-user"]) if unshare else ():
        command = [unshare, *options, "--pid", "--fork", "--kill-child"]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return None


FIRST = namespaces()
pytestmark = pytest.mark.skipif(FIRST is None, reason="unshare --pid is not permitted here")


def signalled(folder, *arguments, at="importing"):
    """Return the exit code of python with these arguments, to which SIGTERM comes once it has said that it imports."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "AWS_REGION": "us-east-1"}
    with subprocess.Popen(
        [*FIRST, sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().strip() == at
            (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            return process.wait(60)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "entry",
    [("-m", "pykcl"), ("-m", "pykcl.cli"), ("-m", "pykcl.compat.kclpy"), ("-c", SCRIPT)],
    ids=" ".join,
)
def test_sigterm_ends_a_command_that_still_imports_its_modules(tmp_path, entry):
    (tmp_path / "click.py").write_text(SAYS_SO_AND_HANGS)
    assert signalled(tmp_path, *entry, "--help") == 128 + signal.SIGTERM


def test_sigterm_ends_a_worker_that_still_imports_its_program(tmp_path):
    (tmp_path / "shop.py").write_text(SAYS_SO_AND_HANGS)
    arguments = ("run", "shop:Orders", "--app", "orders-app", "--stream", "orders")
    assert signalled(tmp_path, "-m", "pykcl", *arguments) == 128 + signal.SIGTERM


def test_a_process_that_such_a_program_forks_ends_by_the_signal(tmp_path):
    (tmp_path / "shop.py").write_text(
        f"""
import os, signal, threading
there, says = os.pipe()
child = os.fork()
if not child:
    # Python forgets a signal that comes while it forks.
    os.write(says, b"!"){HANGS}
os.read(there, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if True:{HANGS}
"""
    )
    arguments = ("run", "shop:Orders", "--app", "orders-app", "--stream", "orders")
    found = signalled(tmp_path, "-m", "pykcl", *arguments, at=str(-signal.SIGTERM))
    assert found == 128 + signal.SIGTERM


def test_in_any_other_process_the_signal_is_left_as_it_is():
    code = f"import signal; {SCRIPT.replace('; main()', '')}; from pykcl.cli import end_by_sigterm; end_by_sigterm(); "
    code += "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "True\n"
