"""The way out of Java in steps, each with its commands and with the way back from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pykcl.compat.migrate.findings import TableLook
from pykcl.config import Config

ROLLS_BACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
"""The one client version of native fleets from which KCL has a way back of its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """text: what is done and what to see. commands: for a shell; lines that begin with # are for people."""

    title: str
    text: str
    commands: tuple[str, ...]
    back: str


@dataclass(frozen=True, slots=True)
class Move:
    """What is to be moved. properties, config_file: names of the files. program: the file that is run, by --kclpy;
    None: children of executableName go on running, under `pykcl multilangd`. consumer: of fan-out, as arguments of the
    AWS CLI; by default of the name that Java gives it."""

    config: Config
    properties: str
    config_file: str
    program: str | None
    used_fanout: bool
    consumer: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """The command that takes the daemon's place."""
        if self.program is None:
            return _shell("pykcl", "multilangd", "--properties-file", self.properties)
        return _shell("pykcl", "run", "--config", self.config_file, "--kclpy", self.program)


def consumer_of(properties: Mapping[str, str], config: Config) -> tuple[str, ...]:
    """The consumer of enhanced fan-out that Java registered or was given, as arguments of the AWS CLI."""
    arn = properties.get("fanoutConfig.consumerArn", "").strip()
    if arn:
        return "--consumer-arn", arn
    name = properties.get("fanoutConfig.consumerName", "").strip() or config.application
    return "--stream-arn", config.stream_arn or "STREAM_ARN", "--consumer-name", name


def plan(move: Move, look: TableLook) -> list[Step]:
    """In order. Where the fleet is native, the two ways out stand before the first host."""
    steps = [_look(move), _shadow(move)]
    if look.is_native:
        fleet = look.fleet
        rolls_back = fleet is not None and fleet.client_version == ROLLS_BACK
        return [
            *steps,
            _out_of_native(move, rolls_back=rolls_back),
            _one_host(move),
            _all_hosts(move),
            _remove(move),
        ]
    return [*steps, _one_host(move), _all_hosts(move), _remove(move)]


def _look(move: Move) -> Step:
    code = ("--code", move.program) if move.program else ()
    return Step(
        "Look",
        "Mend what has to be changed first, then look again, from a host that reaches the lease table, until "
        "nothing is left there. The files in which it is written are overwritten.",
        (_shell("pykcl", "migrate", move.properties, *code, "--force"),),
        "nothing was changed: the look only reads.",
    )


def _shadow(move: Move) -> Step:
    name = f"{move.config.application}-shadow"
    rehearse = _shell("pykcl", "run", "--shadow", name, "--config", move.config_file)
    commands = [rehearse]
    if move.program is not None:
        # The first only counts, for hours; the second is for a processor that may do its work twice.
        commands.append(f"{rehearse} " + _shell("--kclpy", move.program, "--shadow-call-processor"))
    return Step(
        "Shadow",
        "Read the same stream under another lease table, beside the Java fleet, for some hours, a deploy and, if "
        "it can be had, a reshard; compare the counts with Java's metrics. It shares the five reads a second "
        "that Kinesis allows for each shard. "
        + (
            "The second command calls the processor, too: only for one whose work may be done twice, or against "
            "a sink for tests."
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
        "Back first, and then host by host: KCL's own tool takes the fleet back, and Java workers are deployed with "
        "clientVersionConfig=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1 (before 3.5: ..._COMPATIBLE_WITH_2X). "
        "Look again afterwards, and go on when the table says so."
        if rolls_back
        else "Back first is not to be had here: KCL's own tool goes back from CLIENT_VERSION_3X_WITH_ROLLBACK only, in "
        "which a fleet stands that came from 2.x by CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X (3.5: ..._PHASE1)."
    )
    commands = (tool, "# or, with every Java worker stopped for good:") if rolls_back else ()
    cut_over = f"{move.run} --option unsafe_join_v3=true"
    return Step(
        "Out of KCL 3.x's own mode: one of two ways",
        f"{back_first} Or stop all and cut over: stop every Java worker, for good; wait for the fail-over time of "
        f"{move.config.failover_time:g} s; start pykcl on all hosts with unsafe_join_v3, as long as the rows of "
        "KCL 3.x are in the table.",
        (*commands, cut_over),
        "stop all pykcl workers, start the Java workers: the rows they left are all there, with the checkpoints of "
        "pykcl. After the tool: its --mode rollforward.",
    )


def _one_host(move: Move) -> Step:
    return Step(
        "One host",
        "Stop the daemon of one host, and start this in its place. Its log says `fleet joined` and whom it met, then "
        "`lease taken`. Java gives nothing back when it stops: its leases are taken after the fail-over time of "
        f"{move.config.failover_time:g} s. Wait for a deploy, a split or merge, and for quiet.",
        (move.run,),
        "stop it (SIGTERM): it calls shutdown_requested for each shard, a checkpoint is written only where that method "
        "writes one, and it releases its leases; Java goes on at the checkpoints there are. Start the daemon again, "
        f"with {move.properties} as it is.",
    )


def _all_hosts(move: Move) -> Step:
    return Step(
        "All hosts",
        "The same on the next host, one by one, each after balance. When the last daemon has gone, nothing is "
        "left to do: the table stays as it is.",
        (move.run,),
        "any host, at any time, as before; also all of them.",
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
            "The consumer of enhanced fan-out costs money until it is deregistered. "
            if move.used_fanout
            else ""
        )
        + "The permissions for the tables of KCL 3.x can go, once nobody goes back.",
        tuple(commands),
        "deploy the image of before; keep it until a month has gone without it.",
    )


def _shell(*words: str) -> str:
    return shlex.join(words)
