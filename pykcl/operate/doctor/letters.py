"""The destination of dead letters: its existence and its account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pykcl.aws.dead_letters import call, queue_url
from pykcl.config import Config
from pykcl.errors import PyKclError
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.doctor.facts import Facts, LetterFacts, address_of
from pykcl.operate.doctor.findings import Finding, command, found


def letter_facts(config: Config, clients: OperatorClients) -> LetterFacts | None:
    """Ask what a worker may ask: about a queue, and this machine about a directory. Nothing is written."""
    address = address_of(config)
    if address is None or address.kind == "discard":
        return None
    facts = LetterFacts(text=address.text, account=address.account)
    if address.kind == "file":
        return replace(facts, is_tried=True, trouble=_unwritable(Path(address.name)))
    if address.kind != "sqs":
        return facts
    in_its_region = replace(clients, region=address.region)
    try:
        client = in_its_region.client("sqs")
        request = {"QueueUrl": queue_url(client, address), "AttributeNames": ["MaximumMessageSize"]}
        call(f"Reading the attributes of queue {address.name!r}", client.get_queue_attributes, **request)
    except PyKclError as error:
        return replace(facts, is_tried=True, trouble=str(error))
    return replace(facts, is_tried=True)


def _unwritable(directory: Path) -> str:
    """Return the reason why no letter could be written there, else ""."""
    place = directory if directory.exists() else directory.absolute().parent
    if not place.is_dir():
        return f"{str(place)!r} is no directory."
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{str(place)!r} is not writable for this process."
    return ""


def check_letters(facts: Facts) -> Iterator[Finding]:
    """Return the findings about the destination. Pure."""
    letters, identity = facts.letters, facts.account.identity
    if letters is None:
        return
    if letters.trouble:
        yield found(
            "dead-letters-unreachable",
            f"{letters.text}: {letters.trouble} A worker holds up the shard of a record that it gives up.",
            command("pykcl", "iam", "--application", facts.application_word, "--stream", facts.stream_word)
            + "   (prints the permissions; or correct dead_letters, or create what it names)",
        )
        return
    own = identity.account if identity is not None else None
    if letters.account is not None and own is not None and letters.account != own:
        yield found(
            "dead-letters-elsewhere",
            f"{letters.text} is of account {letters.account}, and these credentials are of {own}: that account must "
            "permit what is sent.",
        )
    tried = "is there" if letters.is_tried else "is not tried, as that would write to it"
    yield found("dead-letters-ok", f"The destination of dead letters, {letters.text}, {tried}.")
