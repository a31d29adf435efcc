"""How Java would read the stream: by polling, or by enhanced fan-out, which pykcl has not.

The rule is that of Java KCL 3.1.3 `multilang/config/RetrievalMode` and `PollingConfigBean.anyPropertiesSet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pykcl.compat.properties.keys import AS_JAVA, POLLING_KEYS
from pykcl.compat.properties.values import WHOLE, given
from pykcl.compat.properties.verdicts import Verdict

_MODES = ("DEFAULT", "FANOUT", "POLLING")
_BOXED = POLLING_KEYS[3:]
FANOUT_NOTICE = (
    "Java reads this stream by enhanced fan-out ({why}); pykcl reads it by polling: GetRecords, which shares 2 MB and "
    "five reads a second of each shard with other consumers, and is later by up to a second. Accept that with "
    "--accept-polling, or write retrievalMode=POLLING. The consumer that Java registered goes on costing money until "
    "`aws kinesis deregister-stream-consumer` removes it."
)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """java_uses_fanout: what it did with this very file. must_be_accepted: and pykcl was not told to poll.

    mode, capital: values of retrievalMode and of RetrievalMode, which Java does not know. polls_for: the key that made
    Java poll by default. notice: to be told where polling must be accepted, else "".
    """

    java_uses_fanout: bool
    must_be_accepted: bool
    mode: str
    capital: str
    polls_for: str
    notice: str


def retrieval_of(properties: Mapping[str, str]) -> Retrieval:
    """Raises ConfigError for a mode nobody knows."""
    mode = _mode(properties, "retrievalMode")
    capital = _mode(properties, "RetrievalMode")
    polls_for = next((key for key in POLLING_KEYS if _counts(properties, key)), "")
    java_uses_fanout = mode == "FANOUT" or (mode != "POLLING" and not polls_for)
    must_be_accepted = java_uses_fanout and (capital != "POLLING" or mode == "FANOUT")
    why = "retrievalMode=FANOUT" if mode == "FANOUT" else "its default, as no polling key is set"
    notice = FANOUT_NOTICE.format(why=why) if must_be_accepted else ""
    return Retrieval(java_uses_fanout, must_be_accepted, mode, capital, polls_for, notice)


def mode_row(found: Retrieval) -> tuple[Verdict, str]:
    """Of retrievalMode."""
    if found.java_uses_fanout:
        return "mapped", "to polling, which has to be accepted: pykcl has no enhanced fan-out"
    why = f", as {found.polls_for} is set" if found.mode != "POLLING" else ""
    return "honoured", f"records are polled for{why}"


def capital_mode_row(found: Retrieval) -> tuple[Verdict, str]:
    """Of RetrievalMode: Java's own log tells users to write it so, and then ignores it."""
    if found.capital == "POLLING" and found.java_uses_fanout and not found.must_be_accepted:
        return (
            "mapped",
            "read as retrievalMode: records are polled for. A change: Java ignores this spelling and used fan-out",
        )
    return AS_JAVA, "only retrievalMode with a small r is read"


def _mode(properties: Mapping[str, str], key: str) -> str:
    if not properties.get(key, "").strip():
        return "DEFAULT"
    return given(properties, key).choice(_MODES)


def _counts(properties: Mapping[str, str], key: str) -> bool:
    """Whether Java takes the key for set. What is no number is 0 to it; that is refused elsewhere where it matters."""
    if key not in properties:
        return False
    text = properties[key].strip()
    return key in _BOXED or bool(WHOLE.match(text) and int(text) != 0)
