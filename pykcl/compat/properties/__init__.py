"""The `.properties` file of a MultiLangDaemon: parsed as Java parses it, and converted to a Config and client settings.

Every key is honoured, mapped or reported. Sends no requests.
"""

from pykcl.compat.properties.interpretation import EntryPoint, Interpretation, interpret, load
from pykcl.compat.properties.keys import KEYS, Key, KeyVerdict, verdict_table
from pykcl.compat.properties.parsing import Properties, read_properties

__all__ = [
    "KEYS",
    "EntryPoint",
    "Interpretation",
    "Key",
    "KeyVerdict",
    "Properties",
    "interpret",
    "load",
    "read_properties",
    "verdict_table",
]
