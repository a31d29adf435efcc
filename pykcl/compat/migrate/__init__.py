"""Analysis of `pykcl migrate`: of a .properties file, a program of amazon_kclpy and the rows of a lease table.

Pure: takes what the command has read, and returns findings, a plan and two texts. Imports and opens nothing.
"""

from pykcl.compat.migrate.code import Program, code_findings
from pykcl.compat.migrate.findings import Finding, TableSnapshot, properties_findings, table_findings
from pykcl.compat.migrate.report import (
    Migration,
    Move,
    consumer_of,
    plan,
    report,
    summary,
    toml_text,
)

__all__ = [
    "Finding",
    "Migration",
    "Move",
    "Program",
    "TableSnapshot",
    "code_findings",
    "consumer_of",
    "plan",
    "properties_findings",
    "report",
    "summary",
    "table_findings",
    "toml_text",
]
