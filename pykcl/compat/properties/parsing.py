"""Parse java.util.Properties, values as Java's converters do, and the retrieval mode that a file asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from pykcl.compat.properties.keys import AS_JAVA, POLLING_KEYS, Meaning
from pykcl.errors import ConfigError

MAX_BYTES = 1024 * 1024
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_UTF8_MARK = b"\xef\xbb\xbf"


class Properties(dict[str, str]):
    """Key -> value; the last value of a repeated key, as in Java.

    source: name of the file. lines: key -> line number, from 1. repeated: key -> line number of its first, overwritten
    value.
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
        """Return the place of the key, such as "app.properties, line 7"."""
        line = self.lines.get(key)
        return self.source if line is None else f"{self.source}, line {line}"


def read_properties(path: Path) -> Properties:
    """Parse a file: `=`, `:` or blanks between key and value, `#` and `!` comments, lines continued by a backslash,
    `\\uXXXX`, Latin-1. Values are not checked.

    Raises ConfigError that names file and line if the file is missing, a folder, unreadable or not text, has an invalid
    escape, or the package javaproperties is not installed.
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
            # The text of the error may quote part of a secret.
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
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"There is no properties file {str(path)!r}. Check the path.") from None
    except IsADirectoryError:
        raise ConfigError(f"{str(path)!r} is a folder. Name the .properties file in it.") from None
    except PermissionError:
        raise ConfigError(f"{str(path)!r} may not be read by this user. Change its mode or owner.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read ({type(error).__name__}).") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{str(path)!r} is larger than 1 MiB: not a properties file.")
    if b"\0" in content:
        raise ConfigError(
            f"{str(path)!r} is not Latin-1 or ASCII text (it has zero bytes). Save it in one of these; Java does not "
            "read UTF-16 either."
        )
    # Java reads the mark as a part of the first key, and loses that key.
    return content.removeprefix(_UTF8_MARK)


# -- values ----------------------------------------------------------------------------------------------------

WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DIGITS = re.compile(r"[+-]?[0-9]+\Z")
_GREATEST_INT, _GREATEST_LONG = 2**31 - 1, 2**63 - 1
_DECIMAL = re.compile(r"[+-]?[0-9]*\.[0-9]+\Z")
_TRUE = frozenset({"true", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "no", "n", "off", "0"})
"""Values of commons-beanutils' BooleanConverter."""
_REGION = re.compile(r"[a-z0-9-]{2,40}\Z")


_VARIABLE = re.compile(r"\$[{(A-Za-z_]")
_HOME = re.compile(r"(?:^| )~")
_COMMENT = re.compile(r"\s#(?:\s|$)")


def taken_literally(text: str, *, of_command: bool) -> tuple[str, str] | None:
    """Return the part of a value that a shell would replace or leave out, and the remedy, both as parts of a sentence;
    None where there is none. of_command: a shell would read more out of it."""
    if _VARIABLE.search(text):
        return "the $ in it stands for no variable, in Java either", "write what it stands for"
    if _COMMENT.search(text):
        return "the # in it begins no comment, in Java either", "put the comment on a line of its own"
    if of_command and _HOME.search(text):
        what = "the ~ in it is no home folder, in Java either: no shell runs the command"
        return what, "write the whole path"
    if of_command and "\t" in text:
        return "the tab in it divides no words, in Java either: only blanks do", "write a blank there"
    return None


class Given:
    """One key with its value and its place in the file."""

    def __init__(self, key: str, text: str, place: str) -> None:
        self.key = key
        self.text = text.strip()
        self._place = place

    def with_text(self, text: str) -> Given:
        """Return a part of the value, at the same place."""
        return Given(self.key, text, self._place)

    def refuse(self, what: str) -> ConfigError:
        """Return the error. what: the problem, without the value, which may be a misplaced secret."""
        literal = self.literal
        return ConfigError(f"{self._place}: {self.key} {what}" + (f" {capital(literal)}." if literal else ""))

    @property
    def literal(self) -> str:
        """Two sentences, without the first capital and the last full stop: the part of the value that is taken as it
        stands, and the remedy. "" where there is none."""
        found = taken_literally(self.text, of_command=self.key == "executableName")
        if found is None:
            return ""
        what, do = found
        if self.key in ("workerId", "workerIdentifier") and "$" in what:
            do = "leave the key out, and each process gets a name of its own"
        return f"{what}. {capital(do)}"

    @property
    def is_whole(self) -> bool:
        return WHOLE.match(self.text) is not None

    def number(self, *, unit: str = "") -> int:
        """Return an int of Java's; a long if the number has a unit.

        Raises ConfigError where Java would silently use its default.
        """
        greatest = _GREATEST_LONG if unit else _GREATEST_INT
        if self.is_whole and abs(int(self.text)) <= greatest:
            return int(self.text)
        kind = "a decimal number" if _DECIMAL.match(self.text) else "not a number"
        if _DIGITS.match(self.text):
            kind = "too small" if self.text.startswith("-") else "too large"
        wanted = f"a whole number of {unit}" if unit else "a whole number"
        raise self.refuse(f"is {kind}. Write {wanted}, digits only. (Java would silently use its default.)")

    def flag(self) -> bool:
        """Raises ConfigError for what Java would silently take as false."""
        text = self.text.lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise self.refuse("is neither true nor false. Write one of them. (Java would silently use false.)")

    def choice(self, allowed: tuple[str, ...]) -> str:
        """Return one of `allowed`, ignoring case as Java does. Raises ConfigError."""
        if self.text.upper() in allowed:
            return self.text.upper()
        raise self.refuse(f"is none of {', '.join(allowed)}. Write one of them.")

    def endpoint(self) -> str:
        """Return a URL; https:// is added to a bare host name. Raises ConfigError."""
        url = self.text if "://" in self.text else f"https://{self.text}"
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_url = False
        if not is_url or any(char.isspace() for char in url):
            raise self.refuse(
                "is not an http or https URL. Write one, such as https://kinesis.eu-west-1.amazonaws.com."
            )
        return url

    def region(self) -> str:
        """Raises ConfigError."""
        if not _REGION.match(self.text):
            raise self.refuse("is not an AWS region. Write one, such as eu-west-1.")
        return self.text

    def epoch_seconds(self) -> datetime:
        """Raises ConfigError for a value that is not a time, or is in milliseconds."""
        seconds = self.number(unit="seconds since 1970")
        try:
            if seconds < 0:
                raise ValueError
            return datetime.fromtimestamp(seconds, tz=UTC)
        except (ValueError, OverflowError, OSError):
            raise self.refuse(
                "is not a time in seconds since 1970. Write seconds, not milliseconds, such as 1767225600."
            ) from None


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def given(properties: Mapping[str, str], key: str) -> Given:
    """Return the value of the key, with its place."""
    place = getattr(properties, "place", None)
    return Given(key, properties[key], place(key) if place else "the properties")


# -- retrieval mode --------------------------------------------------------------------------------------------

_MODES = ("DEFAULT", "FANOUT", "POLLING")
_BOXED = POLLING_KEYS[3:]
FANOUT_NOTICE = (
    "The stream is read by enhanced fan-out, as Java reads it ({why}), and by polling where that cannot be had. Its "
    "consumer is billed by shard and hour until `pykcl fanout deregister` removes it, and by gigabyte. To read by "
    "polling alone, say --accept-polling, or write retrievalMode=POLLING."
)
POLLING_NOTICE = (
    "Java reads this stream by enhanced fan-out ({why}); pykcl reads it by polling: GetRecords shares 2 MB and five "
    "reads per second and shard with other consumers, and adds up to a second of latency. The consumer that Java "
    "registered is billed until `pykcl fanout deregister` removes it."
)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Retrieval mode of a file. java_uses_fanout: Java reads by enhanced fan-out with this file. pushes: so does pykcl,
    as neither the file nor its user asks for polling.

    mode, capital: values of retrievalMode and of RetrievalMode, which Java does not know. polls_for: the key that makes
    Java poll by default. why: the reason for which Java uses fan-out, or would.
    """

    java_uses_fanout: bool
    pushes: bool
    mode: str
    capital: str
    polls_for: str
    why: str

    @property
    def notice(self) -> str:
        """Explanation for the user if records are pushed, else ""."""
        return FANOUT_NOTICE.format(why=self.why) if self.pushes else ""


def retrieval_of(properties: Mapping[str, str], *, accepts_polling: bool = False) -> Retrieval:
    """accepts_polling: the user does, whatever the file says. Raises ConfigError for an unknown mode."""
    mode = _mode(properties, "retrievalMode")
    capital = _mode(properties, "RetrievalMode")
    polls_for = next((key for key in POLLING_KEYS if _counts(properties, key)), "")
    java_uses_fanout = mode == "FANOUT" or (mode != "POLLING" and not polls_for)
    asks_for_polling = accepts_polling or (capital == "POLLING" and mode != "FANOUT")
    why = "retrievalMode=FANOUT" if mode == "FANOUT" else "its default, as no polling key is set"
    return Retrieval(
        java_uses_fanout, java_uses_fanout and not asks_for_polling, mode, capital, polls_for, why
    )


def mode_row(found: Retrieval) -> Meaning:
    """Return the meaning of retrievalMode."""
    if found.pushes:
        return (
            "honoured",
            "retrieval='fanout-or-polling': enhanced fan-out, and polling where that cannot be had",
        )
    if found.java_uses_fanout:
        return "mapped", "to polling, which is asked for; Java uses enhanced fan-out"
    why = f", because {found.polls_for} is set" if found.mode != "POLLING" else ""
    return "honoured", f"the stream is read by polling{why}"


def capital_mode_row(found: Retrieval) -> Meaning:
    """Return the meaning of RetrievalMode: Java's log advises this spelling, and Java ignores it."""
    if found.capital == "POLLING" and found.java_uses_fanout and found.mode != "FANOUT":
        return (
            "mapped",
            "read as retrievalMode: the stream is read by polling. This differs: Java ignores this spelling and used "
            "fan-out",
        )
    return AS_JAVA, "only retrievalMode, with a lower-case r, is read"


def _mode(properties: Mapping[str, str], key: str) -> str:
    if not properties.get(key, "").strip():
        return "DEFAULT"
    return given(properties, key).choice(_MODES)


def _counts(properties: Mapping[str, str], key: str) -> bool:
    """Return True if the key counts as set in Java, which reads a malformed number as 0."""
    if key not in properties:
        return False
    text = properties[key].strip()
    return key in _BOXED or bool(WHOLE.match(text) and int(text) != 0)
