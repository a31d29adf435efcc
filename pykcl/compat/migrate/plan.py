"""Plan of a migration from Java: steps, each with its commands and the way back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pykcl.compat.migrate.findings import TableSnapshot
from pykcl.config import Config

ROLLS_BACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
"""The only client version of a native fleet that KCL's own tool can roll back."""


@dataclass(frozen=True, slots=True)
class Step:
    """text: what to do, and what to expect. commands: for a shell; lines that start with # are comments."""

    title: str
    text: str
    commands: tuple[str, ...]
    back: str


@dataclass(frozen=True, slots=True)
class Move:
    """An application to migrate.

    properties, config_file: names of the files. program: the file that --kclpy runs; None: children of executableName
    run under `pykcl multilangd`. consumer: of fan-out, as arguments of the AWS CLI; by default with the name that Java
    gives it.
    """

    config: Config
    properties: str
    config_file: str
    program: str | None
    used_fanout: bool
    consumer: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """Command that replaces the daemon."""
        if self.program is None:
            return _shell("pykcl", "multilangd", "--properties-file", self.properties)
        return _shell("pykcl", "run", "--config", self.config_file, "--kclpy", self.program)


def consumer_of(properties: Mapping[str, str], config: Config) -> tuple[str, ...]:
    """Return Java's consumer of enhanced fan-out, registered or given, as arguments of the AWS CLI."""
    arn = properties.get("fanoutConfig.consumerArn", "").strip()
    if arn:
        return "--consumer-arn", arn
    name = properties.get("fanoutConfig.consumerName", "").strip() or config.application
    return "--stream-arn", config.stream_arn or "STREAM_ARN", "--consumer-name", name


def plan(move: Move, snapshot: TableSnapshot) -> list[Step]:
    """Return the steps in order. For a native fleet the two ways out come before the first host."""
    steps = [_review(move), _shadow(move)]
    if snapshot.is_native:
        fleet = snapshot.fleet
        rolls_back = fleet is not None and fleet.client_version == ROLLS_BACK
        return [
            *steps,
            _out_of_native(move, rolls_back=rolls_back),
            _one_host(move),
            _all_hosts(move),
            _remove(move),
        ]
    return [*steps, _one_host(move), _all_hosts(move), _remove(move)]


def _review(move: Move) -> Step:
    code = ("--code", move.program) if move.program else ()
    return Step(
        "Review",
        "Change what has to be changed first, and repeat this command from a host with access to the lease table until "
        "nothing of that is left. It overwrites its files.",
        (_shell("pykcl", "migrate", move.properties, *code, "--force"),),
        "nothing was changed: the command only reads.",
    )


def _shadow(move: Move) -> Step:
    name = f"{move.config.application}-shadow"
    rehearse = _shell("pykcl", "run", "--shadow", name, "--config", move.config_file)
    commands = [rehearse]
    if move.program is not None:
        # The first command only counts, for hours; the second is for a processor that may process records twice.
        commands.append(f"{rehearse} " + _shell("--kclpy", move.program, "--shadow-call-processor"))
    return Step(
        "Shadow",
        "Read the same stream with another lease table, beside the Java fleet, for some hours, a deploy and, if "
        "possible, a reshard; compare the counts with Java's metrics. It shares the five reads per second that Kinesis "
        "allows for each shard. "
        + (
            "The second command also calls the processor: only for one that may process records twice, or with a sink "
            "for tests."
            if move.program is not None
            else "No child is started."
        ),
        tuple(commands),
        f"Ctrl-C, then `{_shell('aws', 'dynamodb', 'delete-table', '--table-name', name)}`. The application's "
        "own table is not touched.",
    )


def _out_of_native(move: Move, *, rolls_back: bool) -> Step:
    region = move.config.effective_region or "REGION"
    tool = _shell(
        "python3", "KclMigrationTool.py", "--region", region, "--mode", "rollback", "--application_name",
        move.config.application, "--lease_table_name", move.config.table,
    )  # fmt: skip
    back_first = (
        "Either roll back, and then go host by host: roll the fleet back with KCL's own tool, and deploy the Java "
        "workers with clientVersionConfig=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1 (before 3.5: "
        "..._COMPATIBLE_WITH_2X). Run `pykcl migrate` again afterwards, and continue when it reports a fleet that is "
        "not native."
        if rolls_back
        else "This fleet cannot roll back: KCL's own tool does so only from CLIENT_VERSION_3X_WITH_ROLLBACK, the state "
        "of a fleet that came from 2.x by CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X (3.5: ..._PHASE1)."
    )
    commands = (tool, "# or, with every Java worker stopped for good:") if rolls_back else ()
    cut_over = f"{move.run} --option unsafe_join_v3=true"
    return Step(
        "Out of KCL 3.x's own mode: one of two ways",
        f"{back_first} Or cut over: stop every Java worker for good, wait for the failover time of "
        f"{move.config.failover_time:g} s, and start pykcl on all hosts with unsafe_join_v3, as long as the rows of "
        "KCL 3.x are in the table.",
        (*commands, cut_over),
        "stop all pykcl workers, and start the Java workers: all their rows are still there, with the checkpoints of "
        "pykcl. After the tool: its --mode rollforward.",
    )


def _one_host(move: Move) -> Step:
    return Step(
        "One host",
        "Stop the daemon of one host, and start this instead. Its log shows `fleet joined` with the other workers, "
        "then `lease taken`. Java does not release its leases when it stops: pykcl takes them after the failover time "
        f"of {move.config.failover_time:g} s. Wait until a deploy and a split or merge have passed without errors.",
        (move.run,),
        "stop it (SIGTERM): it calls shutdown_requested for each shard, which may write a checkpoint, and releases its "
        "leases; Java continues at the checkpoints in the table. Start the daemon again, "
        f"with {move.properties} as it is.",
    )


def _all_hosts(move: Move) -> Step:
    return Step(
        "All hosts",
        "The same on the next host, one by one, each after the leases are balanced. After the last daemon has stopped "
        "nothing is left to do: the table stays as it is.",
        (move.run,),
        "as before, for any host, at any time; also for all of them.",
    )


def _remove(move: Move) -> Step:
    commands = ["docker image ls  # before and after"]
    if move.program is not None:
        commands.append("pip uninstall amazon_kclpy")
    commands.append("pip install 'pykcl[kclpy]'")
    if move.used_fanout:
        commands.append(
            "aws kinesis deregister-stream-consumer "
            + _shell(*(move.consumer or consumer_of({}, move.config)))
        )
    return Step(
        "Remove Java",
        "Take the JRE, the jars and the helper script out of the image"
        + (", and amazon_kclpy out of the requirements" if move.program else "")
        + "; the command is the one above. "
        + (
            "The consumer of enhanced fan-out is billed until it is deregistered. "
            if move.used_fanout
            else ""
        )
        + "Remove the permissions for the tables of KCL 3.x when no way back is needed any more.",
        tuple(commands),
        "deploy the previous image; keep it for a month.",
    )


def _shell(*words: str) -> str:
    return shlex.join(words)
