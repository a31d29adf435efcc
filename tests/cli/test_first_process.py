"""Commands as the first process of a container (PID 1), for which the kernel drops a signal that has no handler yet."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws

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


ENDED = 128 + signal.SIGTERM
FIRST = namespaces()
pytestmark = pytest.mark.skipif(FIRST is None, reason="unshare --pid is not permitted here")


def signalled(folder, *arguments, at="importing", **environment):
    """Return the exit code of python with these arguments, to which SIGTERM comes once a line of it ends with that."""
    environment = {"AWS_REGION": "us-east-1", **environment, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    with subprocess.Popen(
        [*FIRST, sys.executable, *arguments], cwd=folder, env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            said = []
            for line in process.stdout:
                said.append(line.strip())
                if said[-1].endswith(at):
                    break
            else:
                pytest.fail(f"it ended before {at!r}: {said}")
            (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            return process.wait(60)
        finally:
            process.kill()


CHILD = """
import json, sys
print("up", file=sys.stderr, flush=True)
for line in sys.stdin:
    print(json.dumps({"action": "status", "responseFor": json.loads(line)["action"]}), flush=True)
"""
PROPERTIES = f"""
executableName = {sys.executable} child.py
streamName = orders
applicationName = orders-app
regionName = us-east-1
retrievalMode = POLLING
"""
SHOP = """
import os
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def initialize(self, init):
        os.write(1, b"up\\n")
    def process_records(self, batch):
        pass
"""
RUN = ("run", "shop:Orders", "--app", "orders-app", "--stream", "orders")
COMMANDS = {
    "local": (("local", "--port", "0"), "hypercorn", ENDED, "# ready; Ctrl-C ends it"),
    "ui": (("ui", "--app", "orders-app", "--bind", "0"), "starlette", ENDED, "Ctrl-C stops the page."),
    "multilangd": (("multilangd", "-p", "app.properties"), "boto3", ENDED, "up"),
    "run": (RUN, "shop", ENDED, "up"),
    # The parent itself does not import the program.
    "run --processes 2": ((*RUN, "--processes", "2"), "shop", 0, "up"),
}
"""Arguments, a module that is imported late and the exit code meanwhile, and the end of a line that says it is up."""


@pytest.mark.parametrize(
    "entry",
    [("-m", "pykcl"), ("-m", "pykcl.cli"), ("-m", "pykcl.compat.kclpy"), ("-c", SCRIPT)],
    ids=" ".join,
)
def test_sigterm_ends_a_command_that_still_imports_its_modules(tmp_path, entry):
    (tmp_path / "click.py").write_text(SAYS_SO_AND_HANGS)
    assert signalled(tmp_path, *entry, "--help") == ENDED


@pytest.fixture(scope="module")
def environment():
    """The variables that lead to a local AWS with the stream "orders"."""
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 2)
        yield local_environment(aws.url)


@pytest.fixture
def folder(tmp_path):
    """A folder with the programs of all commands."""
    for name, text in {"shop.py": SHOP, "child.py": CHILD, "app.properties": PROPERTIES}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_ends_each_command_while_it_imports_its_first_module(folder, environment, name):
    arguments, *_ = COMMANDS[name]
    (folder / "click.py").write_text(SAYS_SO_AND_HANGS)
    assert signalled(folder, "-m", "pykcl", *arguments, **environment) == ENDED


@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_ends_each_command_while_it_imports_one_of_its_last_modules(folder, environment, name):
    arguments, module, code, _ = COMMANDS[name]
    (folder / f"{module}.py").write_text(SAYS_SO_AND_HANGS)
    assert signalled(folder, "-m", "pykcl", *arguments, **environment) == code


@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_ends_each_command_that_is_up(folder, environment, name):
    arguments, _, _, up = COMMANDS[name]
    assert signalled(folder, "-m", "pykcl", *arguments, at=up, **environment) == 0


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
    found = signalled(tmp_path, "-m", "pykcl", *RUN, at=str(-signal.SIGTERM))
    assert found == ENDED


def test_in_any_other_process_the_signal_is_left_as_it_is():
    code = f"import signal; {SCRIPT.replace('; main()', '')}; from pykcl.cli import end_by_sigterm; end_by_sigterm(); "
    code += "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "True\n"
