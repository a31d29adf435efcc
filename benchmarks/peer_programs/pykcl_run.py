"""The processor of `pykcl_embedded` for `pykcl run`, which imports this module.

pykcl run benchmarks.peer_programs.pykcl_run:Counting --app APPLICATION --stream STREAM --start TRIM_HORIZON
"""

from benchmarks.peer_programs.line_protocol import answer_counts_beside
from benchmarks.peer_programs.pykcl_embedded import Counting, counts

__all__ = ["Counting"]

answer_counts_beside(counts)
