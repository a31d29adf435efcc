"""What may be called: proven by calls that read, and by IAM where it was asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.aws.policy import actions_of, worker_policy
from pykcl.operate.doctor.facts import Facts
from pykcl.operate.doctor.findings import Finding, command, found, listed, many


def check_permissions(facts: Facts) -> Iterator[Finding]:
    yield from _proven(facts)
    yield from _simulated(facts)


def policy_command(facts: Facts) -> str:
    """Prints the policy a worker needs."""
    table = facts.table.name if facts.table is not None else None
    own = table if facts.application is not None and table != facts.application else None
    return command(
        "pykcl", "iam", "--application", facts.application_word, "--stream", facts.stream_word,
        *(("--table", own) if own is not None else ()),
    )  # fmt: skip


def _proven(facts: Facts) -> Iterator[Finding]:
    denied = sorted({p.action for p in facts.probes if p.trouble and p.trouble.kind == "denied"})
    who = facts.account.identity.arn if facts.account.identity else None
    if denied:
        yield found(
            "permission-denied",
            f"Denied{f' for {who}' if who else ''}: {listed(denied, 12)}.",
            policy_command(facts),
        )
    for probe in facts.probes:
        if probe.trouble is not None and probe.trouble.kind == "key":
            yield found(
                "key-denied",
                f"The stream is encrypted, and its key cannot be used ({probe.trouble.code}): nothing can "
                "be read. The "
                "worker needs kms:Decrypt on the key, and the key must be enabled.",
                command("pykcl", "streams", "describe", facts.stream_word) + "   (names the key)",
            )
            break
    # A resource that is missing was looked for, and looking was allowed.
    proven = [
        p.action for p in facts.probes if p.trouble is None or p.trouble.kind in ("missing", "throttled")
    ]
    if proven:
        yield found("permissions-ok", f"called, and permitted: {listed(dict.fromkeys(proven), 12)}")


def _simulated(facts: Facts) -> Iterator[Finding]:
    simulation = facts.simulation
    again = command("pykcl", "doctor", "--application", facts.application_word, "--stream", facts.stream_word)
    if simulation is None:
        if any(p.trouble is None for p in facts.probes):
            unproven = sorted(actions_of(needed_policy(facts)) - {p.action for p in facts.probes})
            yield found(
                "permissions-unproven",
                f"The doctor writes nothing, so nobody knows about {listed(unproven, 12)}. IAM can be asked.",
                f"{again} --simulate-iam",
            )
    elif simulation.why_not:
        yield found(
            "simulation-failed",
            f"IAM could not be asked: {simulation.why_not}",
            "grant iam:SimulatePrincipalPolicy and iam:GetRole to whoever runs this, or run it as an "
            "administrator",
        )
    elif simulation.denied:
        told = [f"{action} on {resource.rpartition(':')[2]}" for action, resource in simulation.denied]
        yield found(
            "permission-would-be-denied", f"IAM would not permit {listed(told, 12)}.", policy_command(facts)
        )
    else:
        yield found(
            "permissions-simulated", f"IAM permits all {many(simulation.asked, 'action')} that a worker needs"
        )


def needed_policy(facts: Facts) -> dict[str, object]:
    """The policy of a worker as it is configured here."""
    config, identity = facts.config, facts.account.identity
    arn = facts.stream.arn if facts.stream is not None else None
    parts = (arn or "arn:aws:kinesis:::").split(":")
    table = facts.table
    return worker_policy(
        stream=facts.stream_word,
        table=table.name if table is not None else facts.application_word,
        region=facts.account.regions.get("dynamodb") or "REGION",
        account=(identity.account if identity is not None else None) or parts[4] or "ACCOUNT",
        partition=parts[1],
        create_table=config.create_table and (table is None or table.exists is not True),
        table_recovery=config.table_recovery,
        application=facts.application,
        state_table=config.state_table,
        metrics_namespace=(config.metrics_namespace or facts.application_word)
        if "cloudwatch" in config.metrics_sinks
        else None,
    )
