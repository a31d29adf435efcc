"""Reads a file in the syntax of java.util.Properties, and remembers where each key stands."""

from __future__ import annotations

import re
from pathlib import Path

from pykcl.errors import ConfigError

MOST_BYTES = 1024 * 1024
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_UTF8_MARK = b"\xef\xbb\xbf"


class Properties(dict[str, str]):
    """Key -> value; of a key that is there twice the last one, as in Java.

    source: name of the file. lines: key -> number of the line it begins in, 1 for the first. repeated: key -> number of
    the line of its first, overwritten setting.
    """

    def __init__(self, source: str = "the properties") -> None:
        super().__init__()
        self.source = source
        self.lines: dict[str, int] = {}
        self.repeated: dict[str, int] = {}

    def put(self, key: str, value: str, line: int) -> None:
        if key in self:
            self.repeated.setdefault(key, self.lines[key])
        self[key] = value
        self.lines[key] = line

    def place(self, key: str) -> str:
        """Where the key stands, such as "app.properties, line 7"."""
        line = self.lines.get(key)
        return self.source if line is None else f"{self.source}, line {line}"


def read_properties(path: Path) -> Properties:
    """The properties of a file: `=`, `:` or blanks between key and value, `#` and `!` comments, lines continued by a
    backslash, `\\uXXXX`, Latin-1. No value is judged.

    Raises ConfigError with file and line: no such file, a folder, not permitted, no text, a broken escape, or the
    package javaproperties is not installed.
    """
    content = _content(path)
    try:
        import javaproperties
    except ModuleNotFoundError:
        raise ConfigError(
            "Reading .properties files needs the package javaproperties. Do: pip install 'pykcl[kclpy]'."
        ) from None
    found = Properties(path.name)
    line = 1
    elements = javaproperties.parse(content)
    while True:
        try:
            element = next(elements, None)
        except javaproperties.InvalidUEscapeError:
            # What it quotes may be part of a secret.
            raise ConfigError(
                f"{path.name}, line {line}: \\u is not followed by four hexadecimal digits. Write a backslash twice "
                "where one is meant."
            ) from None
        if element is None:
            return found
        if isinstance(element, javaproperties.KeyValue):
            found.put(element.key, element.value, line)
        line += len(_LINE_ENDS.findall(element.source))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"There is no properties file {str(path)!r}. Check the path; it is read from here."
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{str(path)!r} is a folder. Name the .properties file in it.") from None
    except PermissionError:
        raise ConfigError(f"{str(path)!r} may not be read by this user. Change its mode or owner.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read ({type(error).__name__}).") from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{str(path)!r} is larger than 1 MiB: that is no properties file.")
    if b"\0" in content:
        raise ConfigError(
            f"{str(path)!r} is no text in Latin-1 or ASCII (it has zero bytes). Save it as such; "
            "UTF-16 is not read, by Java neither."
        )
    # Java takes the mark for a part of the first key, and loses it.
    return content.removeprefix(_UTF8_MARK)
