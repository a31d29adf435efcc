"""The destination of dead letters: its existence and its account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pykcl.aws.dead_letters import call, queue_url
from pykcl.config import Config
from pykcl.errors import PyKclError
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.iam import Prober, is_aws
from pykcl.operate.doctor.facts import Facts, LetterFacts, address_of
from pykcl.operate.doctor.findings import Finding, command, found
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
            return _tried_without_a_record(facts, Prober(runtime), client)
        request = {"QueueUrl": queue_url(client, address), "AttributeNames": ["MaximumMessageSize"]}
        call(f"Reading the attributes of queue {address.name!r}", client.get_queue_attributes, **request)
    except PyKclError as error:
        return replace(facts, is_tried=True, trouble=str(error))
    return replace(facts, is_tried=True)


_PUT = "kinesis:PutRecords"
_KEY = "dry run"


def _tried_without_a_record(facts: LetterFacts, prober: Prober, client: Any) -> LetterFacts:
    """Ask Kinesis for a dry run of a put.

    Only Kinesis of AWS is asked: another endpoint may not know the member, and would put the record. A dry run checks
    no key of an encrypted stream. Sources: "Test your permissions and request inputs with dry run" in the developer
    guide of Kinesis, and botocore, which has the member since September 2026.
    """
    members = client.meta.service_model.operation_model("PutRecords").input_shape.members
    if "DryRun" not in members or not _is_kinesis_of_aws(client.meta.endpoint_url):
        return facts
    one = {"Data": _KEY.encode(), "PartitionKey": _KEY}
    prober.ask(_PUT, lambda: client.put_records(StreamARN=facts.text, Records=[one], DryRun=True))
    trouble = prober.trouble_of(_PUT)
    if trouble is None:
        put = f"A dry run was answered as a put: there may be a record with the partition key {_KEY!r}."
        return replace(facts, is_tried=True, trouble=put)
    if trouble.code == "DryRunOperationException":
        return replace(facts, is_tried=True, proven=_PUT)
    if trouble.kind == "missing":
        return replace(facts, is_tried=True, trouble="The stream does not exist.")
    # Whoever runs this may have fewer permissions than the worker.
    return replace(facts, why_untried=f"a dry run was refused ({trouble.code or trouble.kind})")


def _is_kinesis_of_aws(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    return (
        url.scheme == "https"
        and is_aws(endpoint)
        and (url.hostname or "").startswith(("kinesis.", "kinesis-fips."))
    )


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
