"""Tests of enhanced fan-out against AWS' protocol."""

import sys
from pathlib import Path

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))
