"""What a run was measured on: the machine and the versions of everything that takes part."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import ssl
from pathlib import Path

PACKAGES = ("pykcl", "boto3", "botocore", "urllib3", "protobuf", "aws-kinesis-agg")


def machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "tls": ssl.OPENSSL_VERSION,
        **{name: version_of(name) for name in PACKAGES},
    }


def described(found: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in found.items())


def busy() -> str:
    """A warning when the machine has other work to do, else empty."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.5 * cores:
        return ""
    return (
        f"WARNING: load {load:.1f} on {cores} cores: other work runs here, absolute figures will be too high"
    )


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "from the source tree" if package == "pykcl" else "not installed"


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory() -> str:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return f"{int(line.split()[1]) / 1024**2:.0f} GB"
    return "unknown"


def _lines(path: str) -> list[str]:
    found = Path(path)
    return found.read_text("utf-8").splitlines() if found.exists() else []
