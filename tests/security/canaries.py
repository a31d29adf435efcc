"""Canary texts put where data and credentials are, and an ear for everything pykcl says."""

from __future__ import annotations

import base64
import dataclasses
import logging
import traceback
from typing import Any

from pykcl.errors import ProcessorFailed
from pykcl.events import Event
from pykcl.local.stream import LocalKinesis

PAYLOAD = "CanaryOfPayload"
PARTITION_KEY = "CanaryOfPartitionKey"
HASH_KEY = "31415926535897932384626433832795028841"
STATE = "CanaryOfState"
ACCESS_KEY = "AKIACANARYOFACCESS00"
SECRET = "CanaryOfSecretKey"
TOKEN = "CanaryOfSessionToken"


def forms(text: str) -> list[str]:
    """How a text may look in a log: as it is, as base64 (from any of its first three bytes on), as hex."""
    data = text.encode()
    encoded = [base64.b64encode(data[start:])[:-4].decode() for start in range(3)]
    return [text, *encoded, data.hex()]


class Ear(logging.Handler):
    """Hears log records with their tracebacks, events and exceptions; knows the canaries it must never hear."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.heard: list[tuple[str, str]] = []
        self.secrets: dict[str, str] = {}
        for name, text in (
            ("payload", PAYLOAD),
            ("partition key", PARTITION_KEY),
            ("explicit hash key", HASH_KEY),
            ("state", STATE),
            ("access key", ACCESS_KEY),
            ("secret", SECRET),
            ("session token", TOKEN),
        ):
            self.secrets.update(dict.fromkeys(forms(text), name))

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append((f"log {record.name}", self.format(record)))
        self.heard.append((f"log arguments {record.name}", repr((record.msg, record.args))))

    def hear_event(self, event: Event) -> None:
        self.heard.append((type(event).__name__, f"{event!r} {event} {dataclasses.asdict(event)}"))

    def hear_error(self, error: BaseException | None) -> None:
        """Its traceback with the whole chain, and every link's text. A processor's own exception is the user's."""
        seen: set[int] = set()
        waiting = [error]
        while waiting:
            link = waiting.pop()
            if link is None or id(link) in seen:
                continue
            seen.add(id(link))
            shown = "".join(traceback.format_exception(type(link), link, link.__traceback__, chain=False))
            self.heard.append((f"error {type(link).__name__}", f"{shown} {link!r} {link.args!r}"))
            waiting += [link.__context__, None if isinstance(link, ProcessorFailed) else link.__cause__]

    def hear_text(self, where: str, text: str) -> None:
        self.heard.append((where, text))

    def keep(self, name: str, text: str) -> None:
        self.secrets[text] = name

    def leaks(self) -> list[str]:
        return [
            f"{name} in {where}: {text[:300]}"
            for where, text in self.heard
            for secret, name in self.secrets.items()
            if secret in text
        ]


def learn_iterators(ear: Ear, kinesis: LocalKinesis) -> None:
    """Every iterator the stream gives out becomes a secret."""
    opened, fetched = kinesis.get_shard_iterator, kinesis.get_records

    def get_shard_iterator(*arguments: Any, **options: Any) -> str:
        iterator = opened(*arguments, **options)
        ear.keep("iterator", iterator)
        return iterator

    def get_records(*arguments: Any, **options: Any) -> Any:
        page = fetched(*arguments, **options)
        if page.next_iterator is not None:
            ear.keep("iterator", page.next_iterator)
        return page

    kinesis.get_shard_iterator = get_shard_iterator  # type: ignore[method-assign]
    kinesis.get_records = get_records  # type: ignore[method-assign]
