"""`pykcl version`: what is installed here."""

from __future__ import annotations

from typing import Any

import click

from pykcl.cli.output import json_text, say

CORE = ("boto3", "botocore", "protobuf", "tenacity", "click")
EXTRAS = (
    "moto", "hypercorn", "cbor2", "rich", "starlette", "javaproperties", "tomli", "prometheus-client",
    "opentelemetry-api",
)  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def version(as_json: bool) -> None:
    """Print the versions of pykcl, Python and the packages it uses, and what kind of machine this is."""
    found = versions()
    if as_json:
        say(json_text(found, indent=2))
        return
    say(f"pykcl {found['pykcl']}")
    say(f"Python {found['python']} ({found['implementation']}) on {found['platform']}")
    for name, text in {**found["packages"], **found["extras"]}.items():
        say(f"{name} {text}" if text is not None else f"{name} is not installed (optional)")


def versions() -> dict[str, Any]:
    """packages: what pykcl always needs; extras: None for what is not installed."""
    import platform
    import sysconfig

    from pykcl import __version__

    return {
        "pykcl": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _installed(name) for name in CORE},
        "extras": {name: _installed(name) for name in EXTRAS},
    }


def _installed(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
