"""Which Java versions stand in the fleets: a POM each, their jars in `.cache/java` at the root, which git ignores."""

from __future__ import annotations

from pathlib import Path

from pykcl.demo import java

CACHE = Path(__file__).parents[2] / ".cache" / "java"
POMS = {
    java.version_of(pom): pom
    for pom in (java.KCL_2, *sorted((Path(__file__).parent / "java").glob("*/pom.xml")))
}
"""By version. That of 2.7.2 belongs to pykcl: the demo's Java worker is one, too."""


def resolved(version: str) -> tuple[Path, ...]:
    """The jars of a version. Raises java.Unavailable."""
    return java.resolved(POMS[version], CACHE)
