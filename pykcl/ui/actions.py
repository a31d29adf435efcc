"""The two things that may be done from the page, where that was asked for: release a lease, reset checkpoints.

Both as the commands do them, through `operate`: first a plan, which is shown; then exactly this plan, fenced by what
was seen, once the application's name has been typed. One at a time, each in a thread of its own.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pykcl.aws.operator_table import OperatorTable
from pykcl.errors import ConfigError, PyKclError, Refused
from pykcl.operate.checkpoints.audit import Audit
from pykcl.operate.checkpoints.backup import lines_of
from pykcl.operate.checkpoints.carrying_out import carry_out
from pykcl.operate.checkpoints.looking import look_around, plan_for
from pykcl.operate.checkpoints.places import Destination
from pykcl.operate.checkpoints.plan import Plan, Situation, Step
from pykcl.operate.checkpoints.stillness import movers, told, wait_until_still
from pykcl.operate.checkpoints.telling import rows_of
from pykcl.operate.checkpoints.times import millis_of
from pykcl.operate.hints import short_shard
from pykcl.operate.names import shown
from pykcl.operate.release import ReleasePlan, plan_release, release
from pykcl.operate.sampling import known_failover
from pykcl.ports import LeaseTable, Stream
from pykcl.runtime import Runtime

log = logging.getLogger("pykcl.ui")

MOST_JOBS = 20
PLAN_SECONDS = 600.0
"""A plan that was shown longer ago is made again."""
_MOST_HOURS = 24 * 366


class Means(Protocol):
    """What the actions are carried out with. Each may raise as its opening does."""

    def rows(self) -> OperatorTable:
        """Single rows, for an operator."""

    def table(self) -> LeaseTable: ...

    def stream(self) -> Stream:
        """Raises ConfigError where nobody knows which."""

    def save(self, lines: list[str]) -> str:
        """Keep a backup; returns where. Raises ConfigError."""

    def caller(self) -> str:
        """Who this is at AWS: an ARN, or that nobody can tell."""


@dataclass(slots=True)
class Job:
    """One thing under way, or over. state: "running", "done", "refused" or "failed"."""

    state: str = "running"
    progress: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    def told(self) -> dict[str, Any]:
        return {
            "state": self.state, "progress": self.progress, "result": self.result, "problem": self.problem,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan that was shown. at: monotonic seconds."""

    at: float
    release: ReleasePlan | None = None
    reset: tuple[Plan, Situation, str] | None = None


class Actions:
    """application: what has to be typed. failover: seconds, None where nobody told.

    on_done: called after something was written.
    """

    def __init__(
        self,
        means: Means,
        application: str,
        runtime: Runtime,
        *,
        failover: float | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._means, self._application, self._runtime = means, application, runtime
        self._failover = failover
        self._on_done = on_done
        self._lock = runtime.lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._plans: dict[str, _Kept] = {}
        self._kinds: Mapping[str, Callable[[Mapping[str, Any], Job], dict[str, Any]]] = {
            "plan-release": self._plan_release,
            "release": self._release,
            "plan-reset": self._plan_reset,
            "reset": self._reset,
        }

    def begin(self, asked: Mapping[str, Any]) -> str | None:
        """Start what is asked for; its name, or None while something else is under way."""
        with self._lock:
            if any(job.state == "running" for job in self._jobs.values()):
                return None
            name, job = self._runtime.token(), Job()
            self._jobs[name] = job
            while len(self._jobs) > MOST_JOBS:
                self._jobs.popitem(last=False)
        self._runtime.spawn("pykcl-ui-action", lambda: self._run(job, asked))
        return name

    def job(self, name: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._jobs.get(name)
        return found.told() if found is not None else None

    def _run(self, job: Job, asked: Mapping[str, Any]) -> None:
        kind = asked.get("do")
        try:
            act = self._kinds.get(kind) if isinstance(kind, str) else None
            if act is None:
                raise Refused("Nothing of that kind can be done here.")
            job.result = act(asked, job)
            job.state = "done"
        except (Refused, ConfigError) as error:
            job.state, job.problem = "refused", str(error)
        except PyKclError as error:
            job.state, job.problem = "failed", str(error)
        except Exception as error:
            job.state, job.problem = "failed", f"{type(error).__name__}; the log says more"
            raise
        finally:
            log.info("action kind=%r outcome=%s", str(kind)[:40], job.state)

    # -- plans -------------------------------------------------------------------------------------------------

    def _keep(self, **plan: Any) -> str:
        now = self._runtime.monotonic()
        with self._lock:
            self._plans = {name: kept for name, kept in self._plans.items() if now - kept.at < PLAN_SECONDS}
            name = self._runtime.token()
            self._plans[name] = _Kept(now, **plan)
        return name

    def _taken(self, asked: Mapping[str, Any]) -> _Kept:
        """The plan, once. Raises Refused where it is too old, or where another name was typed."""
        if asked.get("confirm") != self._application:
            raise Refused("That is not the application's name. Nothing was written.")
        with self._lock:
            kept = self._plans.pop(str(asked.get("plan")), None)
        if kept is None or self._runtime.monotonic() - kept.at > PLAN_SECONDS:
            raise Refused("That plan is used up, or too old. Nothing was written. Do: look at a new one.")
        return kept

    # -- release -----------------------------------------------------------------------------------------------

    def _plan_release(self, asked: Mapping[str, Any], job: Job) -> dict[str, Any]:
        key = asked.get("key")
        if not isinstance(key, str):
            raise Refused("No lease was named.")
        plan = plan_release(key, self._means.rows().read(key))
        return {"plan": self._keep(release=plan), **_release_told(plan)}

    def _release(self, asked: Mapping[str, Any], job: Job) -> dict[str, Any]:
        plan = self._taken(asked).release
        if plan is None:
            raise Refused("That plan is for something else. Nothing was written.")
        done = release(
            self._means.rows(), plan, lambda newer: setattr(job, "progress", f"again at {newer.seen.counter}")
        )
        self._on_done()
        log.warning("lease released from the page lease=%s owner=%s", shown(plan.seen.key), shown(plan.owner))
        new_owner = done.row.owner
        return {
            "outcome": done.outcome,
            "counter": done.row.counter,
            "owner": shown(new_owner) if new_owner else None,
        }

    # -- reset -------------------------------------------------------------------------------------------------

    def _plan_reset(self, asked: Mapping[str, Any], job: Job) -> dict[str, Any]:
        table = self._means.table()
        stream = self._means.stream()
        job.progress = "looking at the stream and the table"
        situation = look_around(table, stream)
        destination, what = destination_of(asked, situation.now_millis)
        reads = [0]

        def read() -> None:
            reads[0] += 1
            job.progress = f"looking into the shards: {reads[0]} reads"

        plan = plan_for(situation, destination, _keys(asked), stream, self._runtime, read)
        active = movers(situation.rows, table.scan().rows)
        hints = [*plan.hints]
        if active:
            hints.append(
                f"It would be refused now: {told(active)}. Stop the fleet, and make this plan again."
            )
        name = self._keep(reset=(plan, situation, what)) if plan.changes else None
        rows = [
            {**row, "shard": shown(short_shard(row["shard"])), "why": shown(row["why"])}
            for row in rows_of(plan, situation.now_millis)
        ]
        return {
            "plan": name,
            "what": what,
            "stream": shown(situation.stream.name),
            "rows": rows,
            "changes": len(plan.changes),
            "hints": [shown(hint) for hint in hints],
            "active": bool(active),
            "failover": known_failover(self._failover, situation.leases.values())[0],
        }

    def _reset(self, asked: Mapping[str, Any], job: Job) -> dict[str, Any]:
        kept = self._taken(asked).reset
        if kept is None:
            raise Refused("That plan is for something else. Nothing was written.")
        plan, situation, what = kept
        table = self._means.table()
        failover, _ = known_failover(self._failover, situation.leases.values())
        job.progress = f"watching the fleet for {failover:g} s: nothing may move"
        rows = wait_until_still(table, self._runtime, failover=failover)
        moved = movers(situation.rows, rows)
        if moved:
            raise Refused(
                f"The table is not as it was when this was planned ({told(moved)}). Nothing was written. Do: make the "
                "plan again."
            )
        backup = self._means.save(
            lines_of(
                situation.leases.values(),
                table=self._application,
                stream=situation.stream,
                now_millis=situation.now_millis,
                before=f"reset {what} from the page",
                absent=[step.key for step in plan.changes if step.action == "create"],
            )
        )
        written, who = [0], self._means.caller()

        def done(step: Step) -> None:
            written[0] += 1
            job.progress = f"written: {written[0]} of {len(plan.changes)}"

        try:
            carry_out(plan, table, self._runtime, Audit(who, self._application, backup), done)
        finally:
            self._on_done()
            log.warning(
                "checkpoints reset from the page to=%r written=%s backup=%r", what, written[0], backup
            )
            job.result = {"backup": shown(backup), "written": written[0], "by": shown(who)}
        return job.result


def destination_of(asked: Mapping[str, Any], now_millis: int) -> tuple[Destination, str]:
    """Where to, and that in words. Raises ConfigError."""
    to, value = asked.get("to"), asked.get("value")
    if to in ("earliest", "latest"):
        return Destination(to), f"to {to}"
    if to == "datetime" and isinstance(value, str):
        return Destination("time", at_millis=millis_of(value)), f"to {value.strip()[:40]}"
    if to == "minutes" and isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value <= _MOST_HOURS * 60:
            raise ConfigError("So many minutes back there is nothing. Name more than 0, and at most a year.")
        return (
            Destination("time", at_millis=max(0, now_millis - round(value * 60_000))),
            f"{value:g} min back",
        )
    raise ConfigError("Say where to: the earliest record, the latest, a time, or so many minutes back.")


def _keys(asked: Mapping[str, Any]) -> list[str] | None:
    keys = asked.get("shards")
    if keys is None:
        return None
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigError("No shards were named.")
    return keys


def _release_told(plan: ReleasePlan) -> dict[str, Any]:
    after = plan.write.after
    return {
        "name": shown(short_shard(plan.seen.key)),
        "owner": shown(plan.owner),
        "checkpoint": shown(str(plan.seen.checkpoint)),
        "counter": plan.seen.counter,
        "after": after.counter if after is not None else None,
    }
