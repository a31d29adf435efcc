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
from pykcl.operate.aws.iam import Probe
from pykcl.operate.doctor.facts import Facts, LetterFacts, address_of
from pykcl.operate.doctor.findings import Finding, command, found
from pykcl.operate.doctor.puts import dry_put
from pykcl.runtime import Runtime


def letter_facts(config: Config, clients: OperatorClients, runtime: Runtime) -> LetterFacts | None:
    """Ask AWS about a queue or for a dry run of a put, and this machine about a directory. Nothing is written."""
    address = address_of(config)
    if address is None or address.kind == "discard":
        return None
    facts = LetterFacts(text=address.text, account=address.account)
    if address.kind == "file":
        return replace(facts, is_tried=True, trouble=_unwritable(Path(address.name)))
    if address.kind not in ("sqs", "kinesis"):
        return facts
    in_its_region = replace(clients, region=address.region)
    try:
        client = in_its_region.client(address.kind)
        if address.kind == "kinesis":
            return _after(facts, dry_put(client, {"StreamARN": facts.text}, runtime))
        request = {"QueueUrl": queue_url(client, address), "AttributeNames": ["MaximumMessageSize"]}
        call(f"Reading the attributes of queue {address.name!r}", client.get_queue_attributes, **request)
    except PyKclError as error:
        return replace(facts, is_tried=True, trouble=str(error))
    return replace(facts, is_tried=True)


def _after(facts: LetterFacts, dry_run: Probe | None) -> LetterFacts:
    if dry_run is None:
        return facts
    trouble = dry_run.trouble
    if trouble is None:
        return replace(facts, is_tried=True, proven=dry_run.action)
    if trouble.kind == "missing":
        return replace(facts, is_tried=True, trouble="The stream does not exist.")
    if trouble.kind == "refused" and trouble.code is None:
        return replace(facts, is_tried=True, trouble=trouble.text)
    # Whoever runs this may have fewer permissions than the worker.
    return replace(facts, why_untried=f"a dry run was refused ({trouble.code or trouble.kind})")


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
    tried = f"is not tried: {letters.why_untried}"
    if letters.is_tried:
        tried = "takes a record in a dry run, which checks no key" if letters.proven else "is there"
    yield found("dead-letters-ok", f"The destination of dead letters, {letters.text}, {tried}.")
