"""The `.properties` file of a MultiLangDaemon: read as Java reads it, and turned into a Config and clients.

Every key it may have is honoured, mapped or reported. Knows config, errors and what aws is to be told; sends nothing.
"""

from pykcl.compat.properties.interpretation import Door, Interpretation, interpret, load
from pykcl.compat.properties.keys import KEYS, Key, KeyVerdict, verdict_table
from pykcl.compat.properties.parsing import Properties, read_properties

__all__ = [
    "KEYS",
    "Door",
    "Interpretation",
    "Key",
    "KeyVerdict",
    "Properties",
    "interpret",
    "load",
    "read_properties",
    "verdict_table",
]
