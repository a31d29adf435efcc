"""CPU utilisation that a member of a KCL 3.x fleet reports, measured as Java measures it.

Java KCL 3.5.1 `worker/WorkerMetricsSelector.java` and `worker/metric/impl/`: in an ECS task the agent's endpoint is
asked, in a pod of EKS the control group is read, on EC2 /proc/stat; elsewhere there is no metric. Java samples once a
second, caps each sample at 100 % and reports the average. All these counters are cumulative, so that a reading with
each report gives the same average: what was used between the two, divided by what could have been. The averages
differ only for a container of ECS that exceeds its share while others of its task rest: Java cuts off such seconds one
by one, here the whole interval is cut off at 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from pykcl.model.metered_json import NotJson, read_json
from pykcl.runtime import Runtime

FAILED: Final = -1.0
"""Reported for an interval that could not be measured. The leader assigns nothing to such a worker."""
KEPT: Final = 10
"""Averages in a report, oldest first."""
SHORTEST: Final = 2.0
"""Seconds between the first reading and the first average; Java's first report comes as late."""

_ECS_ADDRESS, _OLD_ECS_ADDRESS = "ECS_CONTAINER_METADATA_URI_V4", "ECS_CONTAINER_METADATA_URI"
_POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
_GROUPS = "/sys/fs/cgroup/"
_PROC_STAT = "/proc/stat"
_LEAST_SHARE = 2
"""CPU shares of a container of ECS that asks for none."""
_MOST_CPUS = 100_000
_is_counter = re.compile(r"[0-9]{1,20}\Z").match
_is_cpu_range = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?\Z").match


class HostSource(Protocol):
    """Facts of the host. No call takes longer than a few seconds."""

    def environment(self, name: str) -> str:
        """Return a variable of the environment; "" without it."""

    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> str:
        """Return the text of a file. Raises OSError."""

    def get(self, url: str) -> str:
        """Return the text that an HTTP server of this host answers with. Raises OSError, ValueError."""

    def is_ec2(self) -> bool:
        """Return whether the metadata service of EC2 answers."""


class Platform(Enum):
    """Source of the figures; the value is for people."""

    ECS = "the endpoint of the ECS task"
    CGROUP_V2 = "control group v2"
    CGROUP_V1 = "control group v1"
    PROC = "/proc/stat"


def platform_of(source: HostSource) -> Platform | None:
    """Return where Java would measure the CPU; None where it reports no metric."""
    if source.environment(_ECS_ADDRESS):
        return Platform.ECS
    if source.environment(_OLD_ECS_ADDRESS):
        return None
    if source.exists(_POD_TOKEN):
        if source.exists(_GROUPS + "cgroup.controllers"):
            return Platform.CGROUP_V2
        has_v1 = source.exists(_GROUPS + "memory") or source.exists(_GROUPS + "cpu")
        return Platform.CGROUP_V1 if has_v1 else None
    # In this order: only a Linux host is worth a request.
    return Platform.PROC if source.exists(_PROC_STAT) and source.is_ec2() else None


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Counters at one moment, both in the same unit.

    used: CPU time so far, of all CPUs. passed: time so far. limit: CPUs that may be used. before: the reading that the
    same answer of ECS has besides, of a moment earlier.
    """

    used: float
    passed: float
    limit: float = 1.0
    before: CpuReading | None = None


def percent(before: CpuReading, after: CpuReading) -> float | None:
    """Return the utilisation between two readings, 0 to 100; None if no time has passed between them.

    Never below 0: in /proc/stat the time of waiting for input and output may shrink.
    """
    passed = (after.passed - before.passed) * after.limit
    if passed <= 0:
        return None
    return min(100.0, max(0.0, 100.0 * (after.used - before.used) / passed))


def proc_stat(text: str) -> CpuReading:
    """Read the first line of /proc/stat; waiting for input and output counts as use, as in Java. Raises ValueError."""
    name, *fields = text.partition("\n")[0].split() or [""]
    if name != "cpu" or len(fields) < 5:
        raise ValueError("its first line is not that of all CPUs")
    user, nice, system, idle, waiting = map(_counter, fields[:5])
    used = user + nice + system + waiting
    return CpuReading(used, used + idle)


def cgroup_v2(cpu_stat: str, cpu_max: str, cpuset: str, seconds: float) -> CpuReading:
    """Read cpu.stat, cpu.max and cpuset.cpus.effective. seconds: of any clock. Raises ValueError."""
    used = [line.split()[1:] for line in cpu_stat.splitlines() if line.split()[:1] == ["usage_usec"]]
    quota = cpu_max.split()
    if len(used) != 1 or len(used[0]) != 1 or len(quota) != 2:
        raise ValueError("cpu.stat or cpu.max is not of its form")
    limit = _cpus_in(cpuset) if quota[0] == "max" else _quota(quota[0], quota[1])
    return CpuReading(_counter(used[0][0]) / 1e6, seconds, limit)


def cgroup_v1(usage: str, quota: str, period: str, cpuset: str, seconds: float) -> CpuReading:
    """Read cpuacct.usage, cpu.cfs_quota_us, cpu.cfs_period_us and cpuset.effective_cpus. Raises ValueError."""
    limit = _cpus_in(cpuset) if quota.strip() == "-1" else _quota(quota, period)
    return CpuReading(_counter(usage) / 1e9, seconds, limit)


def ecs_share(task: str, container: str, online: float) -> float:
    """Return the CPUs that this container may use: its share of what the task may use. Raises ValueError.

    task, container: answers about the task and about this container. online: CPUs of the host, for a task without a
    limit. A container without a share of its own has 2, as ECS gives it; Java counts it as 0 beside others.
    """
    about, own = _json(task), _json(container).get("DockerId")
    limits = about.get("Limits")
    limit = _number(limits, "CPU") if isinstance(limits, Mapping) and "CPU" in limits else online
    listed = about.get("Containers")
    shares = {
        str(each.get("DockerId")): max(_LEAST_SHARE, _cpu_of(each))
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, Mapping)
    }
    share = shares.setdefault(str(own), _LEAST_SHARE)
    if limit <= 0:
        raise ValueError("the CPU limit of the ECS task is not positive")
    return limit * share / sum(shares.values())


def ecs_stats(stats: str, limit: float | None = None) -> CpuReading:
    """Read the statistics of a container of ECS. limit: see `ecs_share`; None: the CPUs of its host. Raises ValueError.

    The time of the host is counted for all its CPUs together.
    """
    about = _json(stats)
    now = about.get("cpu_stats")
    online = _number(now, "online_cpus")
    if online < 1:
        raise ValueError("online_cpus is not positive")
    limit = online if limit is None else limit
    earlier = about.get("precpu_stats")
    # In the first answer of a container's life there is none, or one of zeros.
    has_earlier = isinstance(earlier, Mapping) and bool(earlier.get("system_cpu_usage"))
    before = _ecs_reading(earlier, online, limit) if has_earlier else None
    return _ecs_reading(now, online, limit, before)


def _ecs_reading(part: Any, online: float, limit: float, before: CpuReading | None = None) -> CpuReading:
    usage = part.get("cpu_usage") if isinstance(part, Mapping) else None
    return CpuReading(
        _number(usage, "total_usage"), _number(part, "system_cpu_usage") / online, limit, before
    )


def _counter(text: str) -> int:
    text = text.strip()
    if not _is_counter(text):
        raise ValueError("a counter is not a whole number")
    return int(text)


def _quota(quota: str, period: str) -> float:
    used, of = _counter(quota), _counter(period)
    if not used or not of:
        raise ValueError("the CPU quota is zero")
    return used / of


def _cpus_in(cpuset: str) -> int:
    """Return the number of CPUs in a list such as "0-4,6,8-10". Raises ValueError."""
    count = 0
    for part in cpuset.strip().split(","):
        found = _is_cpu_range(part)
        if found is None:
            raise ValueError("the list of CPUs is not of its form")
        first, last = int(found[1]), int(found[2] or found[1])
        count += last - first + 1
        if last < first or count > _MOST_CPUS:
            raise ValueError("the list of CPUs is not of its form")
    return count


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = read_json(text)
    except NotJson:
        found = None
    if not isinstance(found, Mapping):
        raise ValueError("its answer is not a JSON object")
    return found


def _number(part: Any, name: str) -> float:
    value = part.get(name) if isinstance(part, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e20:
        raise ValueError(f"{name} is not a number")
    return value


def _cpu_of(container: Mapping[str, Any]) -> float:
    limits = container.get("Limits")
    return _number(limits, "CPU") if isinstance(limits, Mapping) and "CPU" in limits else 0


@dataclass(frozen=True, slots=True)
class Averages:
    """values: the last averages, percent, the newest last. reading: that which the next one begins with."""

    values: tuple[float, ...]
    reading: CpuReading | None


class HostCpu:
    """The CPU of this process's container or host, averaged from report to report. For one thread.

    source: None for a simulation, where there is no host.
    """

    def __init__(self, source: HostSource | None, runtime: Runtime) -> None:
        self._source = source
        self._runtime = runtime
        self._platform: Platform | None = None
        self._has_asked = False
        self._ecs_limit: float | None = None
        self._kept = Averages((), None)
        self._began_at = 0.0

    @property
    def name(self) -> str:
        """Source of the figures, for people; "" where there is none."""
        return self._platform.value if self._platform is not None else ""

    @property
    def is_possible(self) -> bool:
        """False once it is known that there is nothing to measure."""
        return self._source is not None and (self._platform is not None or not self._has_asked)

    def begin(self) -> str:
        """Begin to measure, unless it has begun; return why that is not possible, or ""."""
        if self._kept.reading is not None:
            return ""
        if not self._has_asked and self._source is not None:
            self._has_asked = True
            self._platform = platform_of(self._source)
        if self._platform is None:
            return "this is neither an ECS task nor a pod of EKS nor an EC2 instance with Linux"
        try:
            self._kept = Averages((), self._read())
        except (OSError, ValueError) as error:
            return f"{self.name} cannot be read: {error}"
        self._began_at = self._runtime.monotonic()
        return ""

    @property
    def wait(self) -> float:
        """Seconds until there is enough to average, once it has begun."""
        return max(0.0, self._began_at + SHORTEST - self._runtime.monotonic())

    def measure(self) -> Averages:
        """Return the averages with that since the last reading kept; to be kept once they are reported."""
        before = self._kept.reading
        try:
            now: CpuReading | None = self._read()
        except (OSError, ValueError):
            now = None
        value = self._average(before, now) if before is not None and now is not None else None
        # Behind a failure the next average begins with the last good reading.
        values = (*self._kept.values, FAILED if value is None else value)[-KEPT:]
        return Averages(values, before if now is None else now)

    def _average(self, before: CpuReading, now: CpuReading) -> float | None:
        value = percent(before, now)
        if value is not None:
            return value
        if self._platform is Platform.ECS:
            # Its statistics may be no newer than at the last reading. A host whose time stands still counts as busy,
            # and a container without an earlier moment as idle, both as in Java.
            value = percent(now.before, now) if now.before is not None else 0.0
            return 100.0 if value is None else value
        # Some sandboxes show a file of zeros.
        return 0.0 if now.passed == before.passed else None

    def keep(self, averages: Averages) -> None:
        """Go on from these."""
        self._kept = averages

    def end(self) -> None:
        """Forget all averages, as CPU is not reported any more."""
        self._kept = Averages((), None)

    def _read(self) -> CpuReading:
        """Raises OSError, ValueError."""
        source = self._source
        if source is None:
            raise ValueError("there is no host")
        if self._platform is Platform.ECS:
            return self._read_ecs(source)
        if self._platform is Platform.PROC:
            return proc_stat(source.read(_PROC_STAT))
        seconds = self._runtime.monotonic()
        if self._platform is Platform.CGROUP_V2:
            usage, most = (source.read(_GROUPS + name) for name in ("cpu.stat", "cpu.max"))
            return cgroup_v2(usage, most, _cpuset(source, "cpuset.cpus.effective"), seconds)
        names = ("cpuacct.usage", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        usage, quota, period = (source.read(f"{_GROUPS}cpu/{name}") for name in names)
        return cgroup_v1(usage, quota, period, _cpuset(source, "cpuset/cpuset.effective_cpus"), seconds)

    def _read_ecs(self, source: HostSource) -> CpuReading:
        address = source.environment(_ECS_ADDRESS)
        stats = source.get(address + "/stats")
        if self._ecs_limit is None:
            online = ecs_stats(stats).limit
            self._ecs_limit = ecs_share(source.get(address + "/task"), source.get(address), online)
        return ecs_stats(stats, self._ecs_limit)


def _cpuset(source: HostSource, name: str) -> str:
    """Return the list of CPUs; "" without one, which a container with a quota does not need."""
    try:
        return source.read(_GROUPS + name)
    except OSError:
        return ""
