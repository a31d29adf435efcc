"""Request budget (I10): requests of a worker by kind and subject, in windows of virtual time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.testing.simulation.guarantees import Guarantee, Violations

_FASTEST = 1.1
"""Clocks of workers run up to a tenth fast."""
_SPREAD = 0.9
"""Pauses are spread by a tenth, so that workers do not all come at once."""
_SLACK = 1.5
_ANY = "*"
_TRIES = 4
"""How many times as many requests there may be while requests fail: they are tried again after growing pauses."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Limit of the answered requests in each window of seconds, plus one for each of `credits`.

    credits: kinds of requests that justify another one: of the same key, or, named with a star, of any key.
    tries: limit of all requests, answered or not; 0: four times `most`.
    """

    window: float
    most: float
    credits: tuple[str, ...] = ()
    tries: float = 0.0


def rules_for(options: Mapping[str, Any], failover: float) -> dict[str, Rule]:
    """Return the limits of a worker with these options, by kind of request, half above docs/about/design.md.

    A heartbeat comes each half of the failover time, a scan each second, a listing each `shard_sync_interval`.
    """

    def paced(seconds: float, window: float, more: float) -> float:
        return _SLACK * window * _FASTEST / (seconds * _SPREAD) + more

    # Sooner than after a second it scans when one of its lease workers has ended; and once more beside each listing.
    scans = Rule(20, paced(1.0, 20, 6), ("list*", "list*", "take*", "release*", "shard_end*", "create*"))
    listing, polling = options["shard_sync_interval"], options["parent_shard_poll_interval"]
    cleaning, auditing = options["cleanup_interval"], options["audit_interval"]
    # Each of two children asks for its parent; and once more whenever a shard ends here.
    parents = 2 * 20 * _FASTEST / polling + 10
    return {
        "renew": Rule(20, paced(failover / 2, 20, 3), ("doubt",), tries=80),
        # Heartbeats of a lease in doubt.
        "doubt": Rule(20, paced(1.0, 20, 3)),
        "take": Rule(20, 15),
        "create": Rule(60, 12, tries=80),
        # One that was refused is sent again, as long as the row itself cannot be read to see why. Two for a batch that is
        # skipped: its processor may have checkpointed a part of it before it raised.
        "checkpoint": Rule(20, 6, ("batch", "skipped", "GetItem")),
        "shard_end": Rule(60, 6, ("take",), tries=60),
        "release": Rule(60, 6, ("take",)),
        "fill": Rule(60, paced(auditing, 60, 3)),
        "delete": Rule(60, paced(cleaning, 60, 3)),
        "Scan": scans,
        "GetItem": Rule(20, parents, ("take", "shard_end*", "shard_end*", "create*"), tries=8 * parents),
        # At the start, and then once a minute: what Java 3.0-3.4 keeps elsewhere.
        "state": Rule(60, paced(60.0, 60, 2), tries=16),
        "CreateTable": Rule(60, 3, tries=80),
        "DescribeTable": Rule(60, 15, tries=80),
        # And once for each audit, while there are hash keys that no listing brings a lease.
        "list": Rule(120, paced(listing, 120, 6) + paced(auditing, 120, 0), ("shard_end*", "create*")),
        # All its shards together ask once a second while no answer comes.
        "describe": Rule(60, paced(cleaning, 60, 6), ("list*", "open*", "subscribe*", "fill*"), tries=80),
        "open": Rule(
            20,
            paced(cleaning, 20, 4),
            ("list*", "take", "iterator expired", "shard denied", "page nearly trimmed"),
        ),
        # Kinesis answers one a second for each shard, and counts as it gets them. A new owner knows of no earlier one.
        "subscribe": Rule(0.9, 1, ("take",), tries=1),
        # From the third read on that brings nothing a shard is read once a second.
        "idle read": Rule(20, paced(1.0, 20, 3)),
    }


class RequestBudgetChecker:
    """now: virtual seconds. Requests that failed count only as tries: a worker may be patient, but not spin."""

    def __init__(self, violations: Violations, rules: Mapping[str, Rule], now: Callable[[], float]) -> None:
        self._violations, self.rules, self._now = violations, dict(rules), now
        self._done: dict[tuple[str, str, str], list[float]] = {}
        self._tried: dict[tuple[str, str, str], list[float]] = {}

    def spent(self, host: str, kind: str, key: str = "", *, failed: bool = False) -> None:
        """A request of that kind, or a reason for one, about that key (a shard, or a page of a scan)."""
        now = self._now()
        self._tried.setdefault((host, kind, key), []).append(now)
        self._tried.setdefault((host, kind, _ANY), []).append(now)
        if not failed:
            self._done.setdefault((host, kind, key), []).append(now)
        rule = self.rules.get(kind)
        if rule is not None:
            self._check(rule, host, kind, key, now - rule.window)

    def _check(self, rule: Rule, host: str, kind: str, key: str, since: float) -> None:
        done = _count(self._done, (host, kind, key), since)
        tried = _count(self._tried, (host, kind, key), since)
        tries = rule.tries or _TRIES * rule.most
        if done <= rule.most and tried <= tries:
            return
        reasons = sum(
            _count(self._tried, (host, name.rstrip(_ANY), _ANY if name.endswith(_ANY) else key), since)
            for name in rule.credits
        )
        what = f"{host} sent {kind} {key} {done} times (tried {tried}) in {rule.window:g} s, for {reasons} reasons"
        self._violations.expect(
            done <= rule.most + reasons and tried <= tries + _TRIES * reasons, Guarantee.BUDGETS, what
        )


def _count(
    times: Mapping[tuple[str, str, str], list[float]], mark: tuple[str, str, str], since: float
) -> int:
    found = times.get(mark)
    return len(found) - bisect_left(found, since) if found else 0
