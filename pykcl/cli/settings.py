"""What `pykcl run` and `pykcl multilangd` work by: a file, the environment and the command line, in one order.

What comes later wins: defaults, the file (--config or --properties), PYKCL_ variables, --option, the flags.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pykcl.config import Config, from_environment, read_toml

if TYPE_CHECKING:
    from pykcl.aws.credentials import ClientSpec
    from pykcl.compat.properties import Interpretation

Door = Literal["native", "kclpy", "multilang"]
log = logging.getLogger("pykcl.settings")


@dataclass(frozen=True, slots=True)
class Settings:
    """specs: what a file says of each service; None: boto3 finds everything by itself.

    executable, timeout: of the children, for the door "multilang"; see `Interpretation`.
    """

    config: Config
    specs: Mapping[str, ClientSpec] | None = None
    executable: tuple[str, ...] = field(default=(), repr=False)
    timeout: float | None = None

    def clients(self) -> dict[str, Any] | None:
        """For Worker(clients=…). Raises ConfigError, SetupError and TemporaryError for region and credentials."""
        if self.specs is None:
            return None
        from pykcl.aws.credentials import open_specified_clients

        return open_specified_clients(self.config, self.specs)


def settings_of(
    *,
    door: Door,
    properties: Path | None,
    config_file: Path | None,
    overrides: Mapping[str, Any],
    accept_polling: bool,
    use_local: bool = False,
    is_told: bool = True,
    profile: str | None = None,
    endpoint: str | None = None,
) -> Settings:
    """Raises ConfigError for a file, a variable or an option, and click.UsageError for what is missing.

    overrides: fields of Config from the command line. use_local: what the file says of clients is left out, as all
    requests go to the local AWS, and errors are shown. is_told: whether to say what a .properties file comes to.
    profile, endpoint (URL): for every service, before what the file says.
    """
    if properties is not None and config_file is not None:
        raise click.UsageError("Both --config and --properties were given. Use one of them.")
    if use_local and (profile or endpoint):
        flag = "--profile" if profile else "--endpoint-url"
        raise click.UsageError(f"{flag} and --local do not go together. Drop one of them.")
    of_local: dict[str, Any] = {"show_errors": True} if use_local else {}
    base: dict[str, Any] = {**of_local} if door == "native" else {"checkpoint": "manual", **of_local}
    specs: Mapping[str, ClientSpec] | None = None
    found: Interpretation | None = None
    if properties is not None:
        found = _interpreted(properties, door, accept_polling, is_told=is_told)
        base = {option.name: getattr(found.config, option.name) for option in fields(Config)} | of_local
        specs = found.clients
    elif config_file is not None:
        options, specs = _from_toml(config_file)
        base |= options
    later = {**from_environment(os.environ), **overrides}
    if (
        door == "kclpy"
        and properties is None
        and config_file is None
        and not {"application", "stream"} <= later.keys()
    ):
        raise click.UsageError(
            "No properties. Do: --properties FILE, the one that MultiLangDaemon was given, or --config pykcl.toml, "
            "or tell both application and stream: PYKCL_APPLICATION and PYKCL_STREAM, or --app and --stream."
        )
    if "region" in later and specs is not None:
        specs = {service: replace(spec, region=None) for service, spec in specs.items()}
    if profile or endpoint:
        specs = _for_every_service(specs or {}, profile, endpoint)
    return Settings(
        _config({**base, **later}),
        None if use_local else specs,
        found.executable if found else (),
        found.timeout if found else None,
    )


def _for_every_service(
    specs: Mapping[str, ClientSpec], profile: str | None, endpoint: str | None
) -> dict[str, ClientSpec]:
    from pykcl.aws.clients import ALL_SERVICES
    from pykcl.aws.credentials import ClientSpec, CredentialsSource

    flags: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if profile:
        flags["credentials"] = (CredentialsSource(kind="profile", profile=profile),)
    return {service: replace(specs.get(service, ClientSpec()), **flags) for service in ALL_SERVICES}


def _from_toml(path: Path) -> tuple[Mapping[str, Any], Mapping[str, ClientSpec] | None]:
    found = read_toml(path)
    specs = None
    if found.clients:
        from pykcl.aws.credentials import specs_of

        specs = specs_of(found.clients, found.source)
    if "application" in found.options and "stream" in found.options:
        # By itself first, so that what is wrong in the file is told with its name.
        found.config()
    return found.options, specs


def _interpreted(path: Path, door: Door, accept_polling: bool, *, is_told: bool) -> Interpretation:
    from pykcl.compat.properties import interpret, read_properties, verdict_table

    found = interpret(read_properties(path), door=door)
    if not is_told:
        return found
    click.echo(verdict_table(found.verdicts), err=True)
    for notice in found.notices:
        if not (accept_polling and "--accept-polling" in notice):
            log.warning("%s", notice)
    return found


def _config(merged: dict[str, Any]) -> Config:
    for name, flag in (("application", "--app"), ("stream", "--stream")):
        if name not in merged:
            raise click.UsageError(
                f"No {name}. Do: {flag} NAME, set PYKCL_{name.upper()}, or name a file: --config, --properties."
            )
    return Config.from_options(merged)
