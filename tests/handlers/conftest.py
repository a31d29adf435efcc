"""The files of this folder may import one another, and have the fixtures of the pytest plugin."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# By name: the entry point is there only where the package was installed since it got one.
from pykcl.testing.plugin import kcl_clock, kinesis, pykcl_local_aws, worker  # noqa: F401
