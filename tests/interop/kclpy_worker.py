"""`KclpyWorker`: a worker on amazon_kclpy's own sample.properties, run by its MultiLangDaemon or by pykcl. `KclRsWorker`:
one of kcl-rs, the Rust port of KCL 3."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import boto3
from fleet_evidence import STREAM, TABLE
from fleet_processes import NAME_VARIABLE, PykclWorker, WorkerProcess, environment
from fleet_reaper import Reaper
from fleet_recording import RECORDING_VARIABLE, WORKER_VARIABLE
from java_jars import resolved
from java_worker import JavaWorker

from pykcl.cli.local import local_environment
from pykcl.demo.java import daemon_command, shared_classes

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
DAEMON, MULTILANGD, IN_PROCESS = "daemon", "multilangd", "run"
EQUAL = ("--option", "leader=equal")
JARS = "3.5.1"
"""The newest library that is served. amazon_kclpy 3.2.0 asks for 3.5.3."""


class _Other(WorkerProcess):
    """A process group of its own."""

    def __init__(self, folder: Path, worker: str, url: str, reaper: Reaper, package: Path | None) -> None:
        super().__init__(folder, worker)
        self._reaper, self._folder = reaper, folder
        self._asked = {
            **local_environment(url), "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
            RECORDING_VARIABLE: str(self.recording), WORKER_VARIABLE: worker, NAME_VARIABLE: worker,
        }  # fmt: skip
        self._paths = [] if package is None else [str(package), str(ROOT)]

    def _start(self, command: list[str], out: Path) -> None:
        surroundings = environment(**self._asked)
        surroundings["PYTHONPATH"] = os.pathsep.join([surroundings["PYTHONPATH"], *self._paths])
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=self._folder, env=surroundings, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self._reaper.watch(self.process.pid)

    def end(self) -> None:
        """Kill all of it, in any state."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
        self._reaper.forget(self.process.pid)


class KclpyWorker(_Other):
    """how: DAEMON, the MultiLangDaemon of Java; MULTILANGD, `pykcl multilangd`; IN_PROCESS, `pykcl run --kclpy`. These two
    lead as soon as Java may, as is advised for fleets that shall do without Java.

    package: source of amazon_kclpy, of which all of them use sample.properties, with other names: program, stream,
    application and worker. And retrievalMode, so that all three poll. The endpoints come from the environment. Raises java.Unavailable.
    """

    def __init__(
        self, folder: Path, url: str, worker: str, *, reaper: Reaper, package: Path, how: str = DAEMON
    ) -> None:
        super().__init__(folder, worker, url, reaper, package)
        self.how = how
        self.STARTED = JavaWorker.STARTED if how == DAEMON else PykclWorker.STARTED
        program = str(PROGRAMS / "fleet_processor.py")
        names = {
            "executableName": f"{sys.executable} {program}", "streamArn": arn_of_the_stream(url), "streamName": STREAM,
            "applicationName": TABLE, "workerId": worker,
        }  # fmt: skip
        text = with_names((package / "samples" / "sample.properties").read_text("utf-8"), names)
        file = folder / f"{worker}.properties"
        if how == DAEMON:
            jars = resolved(JARS)
            command = daemon_command(
                jars, folder, worker, properties={}, log=self.log, flags=shared_classes(jars)
            )
        elif how == MULTILANGD:
            command = [
                sys.executable,
                "-m",
                "pykcl.cli",
                "multilangd",
                "--properties-file",
                str(file),
                *EQUAL,
            ]
        else:
            command = [sys.executable, "-m", "pykcl.cli", "run", "--kclpy", program, "-p", str(file), *EQUAL]
        file.write_text(f"{text}\nretrievalMode = POLLING\n", "utf-8")
        self._start(command, folder / f"{worker}.out" if how == DAEMON else self.log)

    def errors(self) -> list[str]:
        """ERROR lines of a daemon of Java, without those that each writes when it is stopped."""
        text = self.log.read_text("utf-8", "replace") if self.how == DAEMON else ""
        found = re.findall(r"^\S+ ERROR +(.*)$", text, re.MULTILINE)
        return [line for line in found if "Encountered an error during shutdown" not in line]


def with_names(text: str, names: dict[str, str]) -> str:
    """A properties file with these values in the place of its own, or of a comment that offers to set one."""
    for name, value in names.items():
        text, count = re.subn(rf"^#?{name} *=.*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text


def arn_of_the_stream(url: str) -> str:
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
    with contextlib.closing(boto3.client("kinesis", endpoint_url=url, **keys)) as kinesis:
        arn: str = kinesis.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
        return arn


class KclRsWorker(_Other):
    """python: the interpreter that has kcl-rs."""

    STARTED = ""

    def __init__(self, folder: Path, url: str, worker: str, *, reaper: Reaper, python: Path) -> None:
        super().__init__(folder, worker, url, reaper, None)
        self._start([str(python), str(PROGRAMS / "fleet_kcl_rs.py"), TABLE, STREAM, worker, url], self.log)
