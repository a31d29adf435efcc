"""Credentials, region, clock, and whether AWS answers at all. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.operate.doctor.facts import Facts
from pykcl.operate.doctor.findings import Finding, found, listed

OFF = 30.0
WRONG = 240.0
"""Seconds. AWS refuses a signature that is five minutes off."""


def check_credentials(facts: Facts) -> Iterator[Finding]:
    account = facts.account
    if account.no_credentials:
        yield found("credentials-missing", account.no_credentials, "aws configure   (or: aws sso login)")
        return
    refused = [probe for probe in facts.probes if probe.trouble and probe.trouble.kind == "credentials"]
    if refused and refused[0].trouble is not None:
        yield found("credentials-refused", refused[0].trouble.text, "aws sts get-caller-identity")
        return
    who = account.identity
    if who is None:
        return
    if who.is_fixed:
        yield found(
            "credentials-temporary",
            f"The credentials ({who.source}) have a session token that nobody renews: they expire within "
            "hours, and "
            "a worker that runs on them stops then. Use a role, or a profile that renews itself.",
            "aws configure sso",
        )
    if who.arn is None:
        yield found(
            "identity-unknown", f"Credentials were found ({who.source}); whose, nobody said: {who.why_not}"
        )
        return
    expires = f", renewed by {who.expires_at}" if who.expires_at else ""
    yield found("credentials-ok", f"{who.arn} ({who.source}{expires})")


def check_region(facts: Facts) -> Iterator[Finding]:
    account = facts.account
    if account.no_region:
        yield found("region-missing", account.no_region, "export AWS_REGION=us-east-1")
        return
    regions = account.regions
    if not regions:
        return
    used = regions.get("kinesis") or regions["dynamodb"]
    if len(set(regions.values())) > 1:
        told = ", ".join(f"{service} in {region}" for service, region in sorted(regions.items()))
        yield found(
            "regions-two",
            f"The services are asked in different regions: {told}. That works, but every heartbeat travels, "
            "and a lease table of the same name may stand in both.",
            f"pykcl doctor --region {used}   (and set one region in the file)",
        )
    others = {source: region for source, region in account.told_regions.items() if region != used}
    if others:
        told = ", ".join(f"{source} says {region}" for source, region in sorted(others.items()))
        yield found(
            "region-differs",
            f"{used} is used, but {told}: another program started here, such as a Java worker, looks there.",
            f"export AWS_REGION={used} AWS_DEFAULT_REGION={used}",
        )
    agreeing = [source for source, region in sorted(account.told_regions.items()) if region == used]
    yield found("region-ok", used + (f" (from {listed(agreeing)})" if agreeing else ""))


def check_clock(facts: Facts) -> Iterator[Finding]:
    skew = facts.account.skew
    if skew is None:
        return
    side = "behind" if skew > 0 else "ahead of"
    text = f"This machine's clock is {abs(skew):,.0f} s {side} AWS'"
    fix = "timedatectl set-ntp true"
    if abs(skew) >= WRONG:
        yield found("clock-wrong", f"{text}; AWS refuses signatures that are 300 s off.", fix)
    elif abs(skew) >= OFF:
        yield found("clock-off", f"{text}; every time it tells is off by as much.", fix)
    else:
        yield found("clock-ok", f"differs from AWS' by {abs(skew):.1f} s")


def check_reach(facts: Facts) -> Iterator[Finding]:
    for kind, id in (("unreachable", "aws-unreachable"), ("refused", "aws-unreachable")):
        bad = {
            probe.action.split(":")[0]: probe for probe in facts.probes if probe.trouble and probe.trouble.kind == kind
        }  # fmt: skip
        for service, probe in bad.items():
            yield found(
                id,
                f"{service}: {probe.trouble.text if probe.trouble else ''}",
                f"aws {service} {_LOOK.get(service, 'help')}",
            )
    throttled = sorted({
        probe.action for probe in facts.probes if probe.trouble and probe.trouble.kind == "throttled"
    })  # fmt: skip
    if throttled:
        yield found(
            "aws-throttles",
            f"Refused for the rate, twice within a second or so: {listed(throttled)}. All readers of a shard "
            "without enhanced fan-out share five GetRecords calls a second; of a table, its units.",
            "pykcl run … --option idle_time=1   (in every application that reads this stream)",
        )


_LOOK = {"kinesis": "list-streams", "dynamodb": "list-tables"}
