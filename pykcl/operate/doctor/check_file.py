"""The .properties file that was told, where `pykcl multilangd` would refuse it or warn of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.operate.doctor.facts import Facts
from pykcl.operate.doctor.findings import Finding, command, found


def check_file(facts: Facts) -> Iterator[Finding]:
    file = facts.file
    if file is None:
        return
    if file.unfit is not None:
        what, do = file.unfit
        yield found(
            "program-unfit",
            f"{file.name}: executableName{what}. `pykcl multilangd` refuses the file on this host; `pykcl run` does "
            "not use that key.",
            do,
        )
    for place, key, text in file.unknown:
        yield found("key-unknown", f"{place}: {key} is no key: {text}", "correct it, or delete the line")
    if file.notice:
        yield found(
            "fan-out-used",
            f"{file.name}: {file.notice}",
            command("pykcl", "multilangd", "-p", file.name, "--accept-polling")
            + "   (or retrievalMode = POLLING in the file)",
        )
