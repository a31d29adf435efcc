"""Names made unreadable, the same name always alike within one text, and never the other way round.

Names are hashed with a salt that is thrown away, so that nobody can try out guesses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pykcl.operate.names import shown

_ARN = re.compile(r"arn:[a-z0-9-]*:[^\s,;'\")\]}]+")
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")),
    ("url", re.compile(r"\bhttps?://[^\s,;'\")\]}]+")),
    ("account", re.compile(r"(?<![0-9.])[0-9]{12}(?![0-9])")),
    ("address", re.compile(r"(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])")),
)
_SHARD = re.compile(r"shardId-[0-9]{12}")
_SHORT = 4
_BESIDE_A_SHARD = ":-_./ "


def parts_of_key(key: str) -> set[str]:
    """What a lease key says besides the id of a shard, as it stands and as it is shown."""
    parts = {part.strip(_BESIDE_A_SHARD) for part in _SHARD.split(key)} - {""}
    return {form for part in parts for form in (part, shown(part), shown(part).rstrip("…"))}


class Redactor:
    """names: kind ("stream") -> names of that kind to be made unreadable wherever they stand."""

    def __init__(self, salt: str, names: Mapping[str, Iterable[str]]) -> None:
        self._salt = salt
        known: dict[str, str] = {}
        for kind, some in names.items():
            for name in filter(None, some):
                known.setdefault(name, kind)
        # The longest first: a name may be a part of another.
        self._names = sorted(known.items(), key=lambda item: -len(item[0]))

    def token(self, kind: str, name: str) -> str:
        """ "stream-1a2b3c4d"."""
        return f"{kind}-{hashlib.sha256(f'{self._salt}/{name}'.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"

    def text(self, text: str) -> str:
        """`text` without names; ids of shards stay, as they say nothing of anybody."""
        kept: list[str] = []

        def keep(token: str) -> str:
            # What stands for a name is not looked at again. No text holds these characters: they are halves of one.
            kept.append(token)
            return f"\udc00{len(kept) - 1}\udc01"

        def replace(pattern: re.Pattern[str], kind: str, text: str) -> str:
            return pattern.sub(lambda match: keep(self.token(kind, match[0])), text)

        text = text.encode("utf-8", "backslashreplace").decode()
        text = _SHARD.sub(lambda match: keep(match[0]), text)
        # ARNs before names, which are parts of them; everything else after, as it may be a part of a name.
        text = replace(_ARN, "arn", text)
        for name, kind in self._names:
            if name in text:  # quicker than the pattern, and a table may have thousands of names
                text = replace(re.compile(_bounded(name)), kind, text)
        for kind, pattern in _PATTERNS:
            text = replace(pattern, kind, text)
        return re.sub("\udc00([0-9]+)\udc01", lambda match: kept[int(match[1])], text)

    def value(self, value: Any) -> Any:
        """The same within lists and mappings, their keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, Sequence):
            return [self.value(inner) for inner in value]
        return value


def _bounded(name: str) -> str:
    """A long name is found inside other words, too; a short one only where it stands alone."""
    found = re.escape(name)
    return found if len(name) >= _SHORT else rf"(?<![A-Za-z0-9_]){found}(?![A-Za-z0-9_])"
