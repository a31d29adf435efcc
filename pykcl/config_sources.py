"""Where the options of a Config come from outside: environment variables, NAME=VALUE texts, and files of TOML.

Knows the fields of Config and what they take; every unknown name is an error that tells the nearest one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pykcl.config import Config, nearest_names, number_for
from pykcl.errors import ConfigError

PREFIX = "PYKCL_"
MOST_BYTES = 1024 * 1024
CLIENTS = "clients"
"""The one table of a TOML file: region, endpoint and credentials of each service. They are of no Config."""
HTTP_TOKEN = "PYKCL_HTTP_TOKEN"  # noqa: S105 - the name of the variable
OF_COMMANDS = (
    "PYKCL_HTTP", HTTP_TOKEN, "PYKCL_HTTP_TOKEN_FILE", "PYKCL_HEALTH_FILE", "PYKCL_LOG_FORMAT",
)  # fmt: skip
"""Variables that set no option of a Config but one of the command line."""
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_FLOATS_WITHOUT_DEFAULT = ("idle_time", "processor_timeout")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """source: name of the file. options: fields of Config, as the file has them. clients: its tables `clients.…`."""

    source: str
    options: Mapping[str, Any]
    clients: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def config(self) -> Config:
        """Raises ConfigError with file and key. What `clients` says is not in it."""
        for name, example in (("application", "orders-app"), ("stream", "orders")):
            if name not in self.options:
                raise ConfigError(
                    f'{self.source}: {name} is missing. Write a line such as {name} = "{example}".'
                )
        try:
            return Config(**self.options)
        except ConfigError as error:
            told = str(error)
        raise ConfigError(f"{self.source}: {told}")


def config_from_environment(environment: Mapping[str, str]) -> Config:
    """Raises ConfigError for an unknown PYKCL_ variable, a value of the wrong kind, and a missing one."""
    options = from_environment(environment)
    for name in ("application", "stream"):
        if name not in options:
            raise ConfigError(f"The environment has no {PREFIX}{name.upper()}. Set it.")
    return Config(**options)


def config_from_toml(path: Path) -> Config:
    """Raises ConfigError, also where the file says more than a Config can hold: nothing of it is dropped unseen."""
    found = read_toml(path)
    if found.clients:
        raise ConfigError(
            f"{found.source}: its table [{CLIENTS}] says which endpoints and credentials are used, and a Config holds "
            "none. Do: `pykcl run --config`, which reads all of it, or drop the table and give Worker clients=…"
        )
    return found.config()


def read_toml(path: Path) -> TomlFile:
    """The names of a file are checked, its values are not.

    Raises ConfigError with the file, and line or key: no such file, not permitted, no TOML, an unknown name, a table
    that is none of ours; on Python 3.10 also where the package tomli is missing.
    """
    loads, broken = _toml()
    text = _text(path)
    try:
        content = loads(text)
    except broken as error:
        told = str(error)
    except ValueError:
        # Python's limit for integers, in words that name neither line nor key.
        told = "a number in it has too many digits"
    except RecursionError:
        told = "its tables are nested too deeply"
    else:
        return _checked(path.name, content)
    raise ConfigError(f"{path.name} is no TOML: {told}. Text stands in quotes, and True is written true.")


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Config fields set by PYKCL_NAME variables. Raises ConfigError for a PYKCL_ variable that names none."""
    pairs = [
        (name[len(PREFIX) :].lower(), text)
        for name, text in sorted(environment.items())
        if name.startswith(PREFIX) and name != PREFIX and name not in OF_COMMANDS
    ]
    options = [field.name for field in fields(Config)]
    names = [*options, *(name[len(PREFIX) :].lower() for name in OF_COMMANDS)]
    for name, _ in pairs:
        if name not in options:
            hint = nearest_names(name, names, shown=_variable)
            raise ConfigError(f"environment variable {_variable(name)} names no option.{hint}")
    return from_texts(pairs, lambda name: f"environment variable {_variable(name)}")


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def from_texts(pairs: Iterable[tuple[str, str]], origin: Callable[[str], str]) -> dict[str, Any]:
    """Config fields from names and texts. origin: what to call the place of a name. Raises ConfigError."""
    known = {field.name: field.default for field in fields(Config)}
    result: dict[str, Any] = {}
    for name, text in pairs:
        if name not in known:
            raise ConfigError(f"{origin(name)} names no option.{nearest_option(name)}")
        try:
            result[name] = _value(name, known[name], text)
        except ValueError:
            takes = "true or false" if isinstance(known[name], bool) else number_for(name)
            raise ConfigError(
                f"{origin(name)} takes {takes} (default: {known[name]!r}), not {text!r}."
            ) from None
    return result


def nearest_option(name: str) -> str:
    """What to add to the message about an unknown name, with a blank in front."""
    return nearest_names(name, [field.name for field in fields(Config)], shown=repr)


def _value(name: str, default: Any, text: str) -> Any:
    if isinstance(default, bool):
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if isinstance(default, int):
        return int(text)
    if isinstance(default, float) or name in _FLOATS_WITHOUT_DEFAULT:
        return float(text)
    return None if default is None and text == "" else text


def _toml() -> tuple[Callable[[str], dict[str, Any]], type[ValueError]]:
    if sys.version_info >= (3, 11):
        import tomllib as reader
    else:
        try:
            import tomli as reader
        except ModuleNotFoundError:
            raise ConfigError(
                "Reading TOML on Python 3.10 needs the package tomli. Do: pip install 'pykcl[kclpy]'."
            ) from None
    return reader.loads, reader.TOMLDecodeError


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(
            f"{str(path)!r} cannot be read: {why}. Check the path; it is taken from here."
        ) from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{str(path)!r} is larger than 1 MiB: that is no configuration.")
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path.name}, line {line}: TOML is UTF-8, and this is not. Save it as UTF-8."
        ) from None


def _checked(source: str, content: dict[str, Any]) -> TomlFile:
    known = {field.name for field in fields(Config)}
    clients = content.pop(CLIENTS, {})
    for name, value in content.items():
        if name not in known:
            what = "names no table" if isinstance(value, dict) else "names no option"
            hint = f" Its only table is [{CLIENTS}]." if isinstance(value, dict) else nearest_option(name)
            raise ConfigError(f"{source}: {name!r} {what}.{hint}")
    if not isinstance(clients, dict):
        raise ConfigError(f"{source}: {CLIENTS} is a table, such as [{CLIENTS}.kinesis].")
    return TomlFile(source, content, clients)
