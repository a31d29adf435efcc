"""CPU utilisation from recorded texts of /proc/stat, control groups and the endpoint of ECS, as Java computes it."""

import json
from collections import deque

import pytest

from pykcl.metrics.host_cpu import (
    CpuReading,
    HostCpu,
    Platform,
    cgroup_v1,
    cgroup_v2,
    ecs_share,
    ecs_stats,
    percent,
    platform_of,
    proc_stat,
)
from tests.host import ECS, POD, FakeHost, proc_text

PROC_BEFORE = "cpu  1042 17 311 95230 208 0 41 3 0 0\ncpu0 521 8 155 47615 104 0 20 1 0 0\nintr 1\n"
PROC_AFTER = "cpu  1192 17 361 97930 308 0 55 9 0 0\ncpu0 596 8 180 48965 154 0 27 4 0 0\nintr 2\n"
CPU_STAT = "usage_usec {}\nuser_usec 1\nsystem_usec 2\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"


def stats(total, system, *, before=None, online=2):
    """The answer of the endpoint of an ECS task about a container, cut to what is read."""

    def part(used, host):
        return {
            "cpu_usage": {"total_usage": used, "percpu_usage": [used], "usage_in_usermode": 1},
            "system_cpu_usage": host,
            "online_cpus": online,
            "throttling_data": {"periods": 0},
        }

    empty = {"cpu_usage": {"total_usage": 0}, "throttling_data": {}}
    return json.dumps({
        "read": "2026-11-24T10:00:01.5Z",
        "cpu_stats": part(total, system),
        "precpu_stats": part(*before) if before else empty,
    })  # fmt: skip


def task(*shares, limits=None):
    """shares: CPU of each container, the first of which is this one; None: without a limit of its own."""
    listed = [
        {"DockerId": f"c{number}", "Limits": {"Memory": 128} if share is None else {"CPU": share}}
        for number, share in enumerate(shares)
    ]
    return json.dumps({"Cluster": "orders", "Containers": listed, **({"Limits": limits} if limits else {})})


CONTAINER = json.dumps({"DockerId": "c0", "Limits": {"CPU": 2}})


# -- /proc/stat ------------------------------------------------------------------------------------------------


def test_proc_stat_counts_waiting_for_io_as_use_and_leaves_out_interrupts():
    before, after = proc_stat(PROC_BEFORE), proc_stat(PROC_AFTER)
    assert before == CpuReading(1042 + 17 + 311 + 208, 1042 + 17 + 311 + 208 + 95230)
    # 150 user, 50 system and 100 waiting of 3,000 in all.
    assert percent(before, after) == pytest.approx(10.0)


def test_waiting_that_shrinks_is_no_negative_use():
    before, after = proc_stat("cpu 10 0 10 100 50"), proc_stat("cpu 10 0 10 200 40")
    assert percent(before, after) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "cpu0 1 2 3 4 5",
        "cpu 1 2 3 4",
        "cpu 1 2 3 4 x",
        "cpu 1 2 3 -4 5",
        "cpu 1 2 3 4.5 5",
        "cpu 1 2 3 4 " + "9" * 21,
        "intr 1\ncpu 1 2 3 4 5",
        "cpu 1 2 3 4 \u0665",
        "\0" * 100,
    ],
)
def test_another_proc_stat_is_refused(text):
    with pytest.raises(ValueError, match=r"first line|whole number"):
        proc_stat(text)


# -- control groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu_max", "cpuset", "cpus"),
    [
        ("max 100000\n", "0-7\n", 8),
        ("max 100000\n", "0-4,6,8-10\n", 9),
        ("max 100000\n", "3\n", 1),
        ("50000 100000\n", "0-7\n", 0.5),
        ("250000 100000\n", "", 2.5),
    ],
)
def test_the_limit_of_control_group_v2_is_its_quota_or_its_cpus(cpu_max, cpuset, cpus):
    reading = cgroup_v2(CPU_STAT.format(7_500_000), cpu_max, cpuset, 12.0)
    assert reading == CpuReading(7.5, 12.0, cpus)


@pytest.mark.parametrize(
    ("quota", "cpuset", "cpus"), [("-1\n", "0-3\n", 4), ("150000\n", "0-3\n", 1.5), ("20000\n", "", 0.2)]
)
def test_the_limit_of_control_group_v1_is_its_quota_or_its_cpus(quota, cpuset, cpus):
    assert cgroup_v1("7500000000\n", quota, "100000\n", cpuset, 12.0) == CpuReading(7.5, 12.0, cpus)


def test_use_is_measured_against_what_may_be_used_and_capped():
    before, after = (
        cgroup_v2(CPU_STAT.format(used), "200000 100000", "", at)
        for used, at in ((0, 0.0), (15_000_000, 30.0))
    )
    assert percent(before, after) == 25.0
    assert percent(before, CpuReading(90.0, 30.0, 2.0)) == 100.0


@pytest.mark.parametrize(
    ("cpu_stat", "cpu_max", "cpuset"),
    [
        ("", "max 100000", "0"),
        ("usage_usec", "max 100000", "0"),
        ("usage_usec -1", "max 100000", "0"),
        ("usage_usec 1 2", "max 100000", "0"),
        ("user_usec 1", "max 100000", "0"),
        ("usage_usec 1", "max", "0"),
        ("usage_usec 1", "", "0"),
        ("usage_usec 1", "0 100000", "0"),
        ("usage_usec 1", "100000 0", "0"),
        ("usage_usec 1", "nan 100000", "0"),
        ("usage_usec 1", "max 100000", ""),
        ("usage_usec 1", "max 100000", "7-0"),
        ("usage_usec 1", "max 100000", "0-"),
        ("usage_usec 1", "max 100000", "0-999999"),
        ("usage_usec 1", "max 100000", ",".join(["0-99999"] * 3)),
        ("usage_usec 1", "max 100000", "0;1"),
    ],
)
def test_files_of_another_form_are_refused(cpu_stat, cpu_max, cpuset):
    with pytest.raises(ValueError, match=r"form|whole number|quota"):
        cgroup_v2(cpu_stat, cpu_max, cpuset, 1.0)


@pytest.mark.parametrize(
    ("usage", "quota", "period"), [("x", "1", "1"), ("1", "-2", "1"), ("1", "1", "0"), ("1", "", "1")]
)
def test_files_of_another_form_are_refused_in_v1(usage, quota, period):
    with pytest.raises(ValueError, match=r"whole number|quota"):
        cgroup_v1(usage, quota, period, "0-1", 1.0)


# -- ECS -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "cpus"),
    [
        (task(2), 4.0),  # neither limit nor share: all CPUs of the host
        (task(2, limits={"CPU": 0.25, "Memory": 512}), 0.25),
        (task(2, limits={"Memory": 512}), 4.0),
        (task(10, 30, limits={"CPU": 8}), 2.0),
        (task(30, 10, limits={"CPU": 8}), 6.0),
        (task(None, limits={"CPU": 1}), 1.0),
        (task(0, 0, limits={"CPU": 1}), 0.5),
        (json.dumps({"Containers": []}), 4.0),
    ],
)
def test_the_limit_of_ecs_is_the_containers_share_of_its_tasks(answer, cpus):
    assert ecs_share(answer, CONTAINER, 4.0) == pytest.approx(cpus)


def test_the_statistics_of_ecs_count_the_time_of_all_cpus_together():
    reading = ecs_stats(stats(6e9, 100e9, before=(5e9, 96e9)), 0.5)
    assert reading == CpuReading(6e9, 50e9, 0.5, CpuReading(5e9, 48e9, 0.5))
    # One second of CPU time in two seconds of two CPUs: half a CPU, which is all that it may use.
    assert percent(reading.before, reading) == 100.0
    assert percent(reading.before, ecs_stats(stats(6e9, 100e9), 2.0)) == 25.0
    assert ecs_stats(stats(6e9, 100e9)).before is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 100_000,
        "<html>",
        "{}",
        '{"cpu_stats": 1}',
        '{"cpu_stats": {"online_cpus": 0, "system_cpu_usage": 1, "cpu_usage": {"total_usage": 1}}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": NaN, "cpu_usage": {"total_usage": 1}}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": 1e400, "cpu_usage": {"total_usage": 1}}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": true, "cpu_usage": {"total_usage": 1}}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": -1, "cpu_usage": {"total_usage": 1}}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": 1, "cpu_usage": {"total_usage": "1"}}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": 1, "cpu_usage": []}}',
        '{"cpu_stats": {"online_cpus": 2, "system_cpu_usage": ' + "9" * 5000 + ', "cpu_usage": []}}',
    ],
)
def test_statistics_of_another_form_are_refused(text):
    with pytest.raises(ValueError, match=r"number|positive|JSON"):
        ecs_stats(text, 1.0)


@pytest.mark.parametrize(
    ("about_task", "container"),
    [
        ("", CONTAINER),
        (task(2), "[]"),
        (task(2, limits={"CPU": 0}), CONTAINER),
        (task(2, limits={"CPU": "1"}), CONTAINER),
        (task("2"), CONTAINER),
    ],
)
def test_a_task_of_another_form_is_refused(about_task, container):
    with pytest.raises(ValueError, match=r"number|positive|JSON"):
        ecs_share(about_task, container, 2.0)


# -- the platform ----------------------------------------------------------------------------------------------

GROUPS = "/sys/fs/cgroup/"


@pytest.mark.parametrize(
    ("environment", "files", "ec2", "found"),
    [
        ({"ECS_CONTAINER_METADATA_URI_V4": ECS}, {POD, "/proc/stat"}, True, Platform.ECS),
        ({"ECS_CONTAINER_METADATA_URI": ECS}, {"/proc/stat"}, True, None),
        ({}, {POD, GROUPS + "cgroup.controllers", GROUPS + "cpu"}, True, Platform.CGROUP_V2),
        ({}, {POD, GROUPS + "cpu", "/proc/stat"}, True, Platform.CGROUP_V1),
        ({}, {POD, GROUPS + "memory"}, False, Platform.CGROUP_V1),
        ({}, {POD, "/proc/stat"}, True, None),
        ({}, {"/proc/stat"}, True, Platform.PROC),
        ({}, {"/proc/stat", GROUPS + "cgroup.controllers"}, False, None),
        ({}, set(), True, None),
    ],
)
def test_the_platform_is_chosen_as_by_java(environment, files, ec2, found):
    assert platform_of(FakeHost(dict.fromkeys(files, ""), environment, ec2=ec2)) is found


@pytest.mark.parametrize("files", [{}, {POD: ""}])
def test_the_metadata_service_is_asked_for_nothing_that_cannot_be_measured(files):
    host = FakeHost(files, ec2=True)
    platform_of(host)
    assert host.asked == []


# -- averages --------------------------------------------------------------------------------------------------


@pytest.fixture
def cpu_of(simulation):
    return lambda host: HostCpu(host, simulation.runtime("w1"))


def test_the_average_of_an_interval_is_that_of_samples_a_second_apart(simulation, cpu_of):
    host = FakeHost({"/proc/stat": ""}, ec2=True)
    each, used, samples = [0, 20, 40, 5, 100, 35], 0, deque()
    host.files["/proc/stat"] = proc_text(0, 0)
    cpu = cpu_of(host)
    assert cpu.begin() == ""
    last = proc_stat(host.files["/proc/stat"])
    for second, percents in enumerate(each, 1):
        used += 2 * percents
        simulation.sleep(1)
        host.files["/proc/stat"] = proc_text(used, 200 * second - used)
        reading = proc_stat(host.files["/proc/stat"])
        samples.append(percent(last, reading))
        last = reading
    assert cpu.measure().values == (pytest.approx(sum(samples) / len(samples)),)


def test_the_last_ten_averages_are_kept_once_they_are_reported(simulation, cpu_of):
    host = FakeHost({"/proc/stat": proc_text(0, 0)}, ec2=True)
    cpu = cpu_of(host)
    cpu.begin()
    used = 0
    for percents in range(1, 13):
        used += percents
        host.files["/proc/stat"] = proc_text(used, 100 * percents - used)
        # A report that is refused is measured once more, from the last one that was not.
        assert cpu.measure() == cpu.measure()
        cpu.keep(cpu.measure())
    assert [round(value) for value in cpu.measure().values[:-1]] == list(range(4, 13))
    cpu.end()
    assert cpu.begin() == ""
    assert len(cpu.measure().values) == 1


def test_a_reading_that_fails_is_reported_as_minus_one_and_the_next_average_covers_its_time(cpu_of):
    host = FakeHost({"/proc/stat": proc_text(0, 0)}, ec2=True)
    cpu = cpu_of(host)
    cpu.begin()
    for text in ("", None):
        host.files["/proc/stat"] = text
        cpu.keep(cpu.measure())
    host.files["/proc/stat"] = proc_text(30, 70)
    assert cpu.measure().values == (-1.0, -1.0, 30.0)


def test_counters_that_ran_backwards_are_no_measure(cpu_of):
    host = FakeHost({"/proc/stat": proc_text(50, 50)}, ec2=True)
    cpu = cpu_of(host)
    cpu.begin()
    host.files["/proc/stat"] = proc_text(5, 5)
    cpu.keep(cpu.measure())
    host.files["/proc/stat"] = proc_text(15, 15)
    assert cpu.measure().values == (-1.0, 50.0)


def test_a_file_of_zeros_is_an_idle_host(cpu_of):
    cpu = cpu_of(FakeHost({"/proc/stat": proc_text(0, 0)}, ec2=True))
    cpu.begin()
    assert cpu.measure().values == (0.0,)


def test_two_seconds_are_waited_for_before_the_first_average(simulation, cpu_of):
    cpu = cpu_of(FakeHost({"/proc/stat": proc_text(0, 0)}, ec2=True))
    cpu.begin()
    assert cpu.wait == 2.0
    simulation.sleep(1.5)
    assert cpu.begin() == ""
    assert cpu.wait == 0.5
    simulation.sleep(5)
    assert cpu.wait == 0.0


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_without_a_list_of_cpus_is_measured_by_its_quota(simulation, cpu_of, version):
    files = {
        1: {
            "cpu": "",
            "cpu/cpuacct.usage": "0",
            "cpu/cpu.cfs_quota_us": "50000",
            "cpu/cpu.cfs_period_us": "100000",
        },
        2: {"cgroup.controllers": "cpu", "cpu.stat": CPU_STAT.format(0), "cpu.max": "50000 100000"},
    }[version]
    host = FakeHost({POD: "", **{GROUPS + name: text for name, text in files.items()}})
    cpu = cpu_of(host)
    assert cpu.begin() == ""
    simulation.sleep(10)
    host.files[GROUPS + "cpu.stat"] = CPU_STAT.format(1_000_000)
    host.files[GROUPS + "cpu/cpuacct.usage"] = "1000000000"
    assert cpu.measure().values == (pytest.approx(20.0),)


def ecs_host(first):
    answers = {ECS + "/stats": first, ECS + "/task": task(2, limits={"CPU": 1}), ECS: CONTAINER}
    return FakeHost({}, {"ECS_CONTAINER_METADATA_URI_V4": ECS}, answers=answers)


def test_a_task_of_ecs_is_asked_once_for_its_limit_and_then_for_statistics(cpu_of):
    host = ecs_host(stats(0, 1e9))
    cpu = cpu_of(host)
    assert cpu.begin() == ""
    host.answers[ECS + "/stats"] = stats(15e9, 61e9)
    cpu.keep(cpu.measure())
    assert cpu.measure().values[0] == 50.0
    assert host.asked == [ECS + "/stats", ECS + "/task", ECS, ECS + "/stats", ECS + "/stats"]


@pytest.mark.parametrize(
    ("before", "value"), [((4e9, 8e9), 100.0), ((4.5e9, 8e9), 50.0), ((5e9, 10e9), 100.0), (None, 0.0)]
)
def test_statistics_that_are_no_newer_are_averaged_over_their_own_interval(cpu_of, before, value):
    cpu = cpu_of(ecs_host(stats(5e9, 10e9, before=before)))
    cpu.begin()
    assert cpu.measure().values == (value,)


def test_an_endpoint_that_does_not_answer_is_asked_again_with_the_next_report(cpu_of):
    host = ecs_host("")
    cpu = cpu_of(host)
    assert cpu.begin() == "the endpoint of the ECS task cannot be read: its answer is not a JSON object"
    del host.answers[ECS + "/stats"]
    assert "cannot be read" in cpu.begin()
    host.answers[ECS + "/stats"] = stats(0, 1e9)
    assert cpu.begin() == ""


@pytest.mark.parametrize("host", [None, FakeHost({}), FakeHost({"/proc/stat": proc_text(0, 0)})])
def test_elsewhere_nothing_is_measured_and_the_host_is_asked_once(cpu_of, host):
    cpu = cpu_of(host)
    assert cpu.is_possible is (host is not None)
    assert "neither an ECS task nor a pod of EKS nor an EC2 instance" in cpu.begin()
    asked = list(host.asked) if host else []
    assert cpu.begin()
    assert not cpu.is_possible
    assert cpu.name == ""
    assert (host.asked if host else []) == asked
