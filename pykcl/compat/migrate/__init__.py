"""What `pykcl migrate` finds out: of a .properties file, of a program of amazon_kclpy and of the rows of a lease table.

Pure: it is handed what was read, imports no program, opens nothing, and returns findings, a plan and two texts. Knows
config, errors, model, planning and the properties room.
"""

from pykcl.compat.migrate.code import Program, code_findings
from pykcl.compat.migrate.findings import Finding, TableLook, properties_findings, table_findings
from pykcl.compat.migrate.plan import Move, consumer_of, plan
from pykcl.compat.migrate.report import Migration, report, summary, toml_text

__all__ = [
    "Finding",
    "Migration",
    "Move",
    "Program",
    "TableLook",
    "code_findings",
    "consumer_of",
    "plan",
    "properties_findings",
    "report",
    "summary",
    "table_findings",
    "toml_text",
]
