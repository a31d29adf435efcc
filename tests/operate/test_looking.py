"""Scans, samples, states, kinds of owners and hints: what looking at a table tells."""

import pytest
from fleet_table import ARN, JAVA, NAME, FleetTable, at, ended, lease, note, shard

from pykcl.errors import SetupError, WrongTable
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import PendingCheckpoint
from pykcl.model.lease_item import to_item
from pykcl.operate.hints import hints_of, short_shard
from pykcl.operate.lease_states import LeaseState, counts, states_of
from pykcl.operate.owner_kind import has_javas_form, owner_kinds
from pykcl.operate.owner_marks import COLOURS, NOBODY, SHAPES, mark_of
from pykcl.operate.sampling import known_failover
from pykcl.operate.table_view import view_of
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.values import aws_error

MULTI = "123456789012:orders:1790000000"


def denied(operation_name):
    def fault(operation, params):
        error = aws_error("AccessDeniedException", "User is not authorized to perform: dynamodb:X", operation)
        return Fault(before=error) if operation == operation_name else None

    return fault


# -- scanning --------------------------------------------------------------------------------------------------


def test_an_on_demand_table_is_scanned_without_pause_page_by_page(clock):
    table = FleetTable(clock, page_bytes=400)
    table.put(*(lease(number, "w1") for number in range(20)))
    assert len(table.view().leases) == 20
    assert table.operations().count("Scan") > 3
    assert clock.waits == []


def test_a_provisioned_table_is_scanned_in_small_pages_with_pauses_at_a_quarter_of_its_units(clock):
    table = FleetTable(clock, billing="PROVISIONED")
    table.client.tables[NAME].description = _with_units(table.client.tables[NAME].description, 10)
    table.put(*(lease(number, "w1") for number in range(500)))
    began = clock.now
    view = table.view()
    assert len(view.leases) == 500
    scans = [params for operation, params in table.client.requests if operation == "Scan"]
    assert all(params["Limit"] <= 200 and "Segment" not in params for params in scans)
    assert len(scans) > 3
    # Nothing is waited for after the last page.
    assert (view.read_units - 3.0) / (clock.now - began) <= 2.5
    assert "PROVISIONED" in table.scanner.pace


def _with_units(description, units):
    told = {"ProvisionedThroughput": {"ReadCapacityUnits": units}, "TableSizeBytes": 17 * 1024**2}
    return lambda: {**description(), **told}


def test_a_large_on_demand_table_is_scanned_by_several_threads_and_every_row_comes_once(clock):
    table = FleetTable(clock, page_bytes=2000)
    described = table.client.tables[NAME].description
    table.client.tables[NAME].description = lambda: {**described(), "TableSizeBytes": 17 * 1024**2}
    table.put(*(lease(number, "w1") for number in range(100)))
    view = table.view()
    assert sorted(view.leases) == [shard(number) for number in range(100)]
    assert len(view.rows) == 100
    segments = {params.get("Segment") for operation, params in table.client.requests if operation == "Scan"}
    assert segments == {0, 1, 2, 3}


def test_a_segment_that_fails_fails_the_whole_scan(clock):
    table = FleetTable(clock, page_bytes=2000)
    described = table.client.tables[NAME].description
    table.client.tables[NAME].description = lambda: {**described(), "TableSizeBytes": 17 * 1024**2}
    table.put(*(lease(number, "w1") for number in range(100)))
    refuse = denied("Scan")
    table.client.fault = lambda operation, params: (
        refuse(operation, params) if params.get("Segment") == 2 else None
    )
    with pytest.raises(SetupError, match=r"not permitted.* policy of whoever runs this command"):
        table.view()


def test_without_the_permission_to_describe_it_scans_slowly_and_says_why(table):
    table.put(lease(0, "w1"))
    table.client.fault = denied("DescribeTable")
    scanner = table.scanner
    assert len(scanner.scan().leases) == 1
    assert "scanned slowly" in scanner.pace
    assert "not permitted" in scanner.pace


def test_a_throttled_page_is_asked_for_again(table, clock):
    table.put(lease(0, "w1"))
    error = aws_error("ProvisionedThroughputExceededException", "slow down", "Scan")
    faults = iter([Fault(before=error), Fault(before=error)])
    table.client.fault = lambda operation, params: next(faults, None) if operation == "Scan" else None
    assert len(table.view().leases) == 1
    assert len(clock.waits) == 2


def test_a_table_of_another_shape_is_refused_before_a_row_is_read(table):
    table.client.create_table(
        TableName="invoices",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    from pykcl.operate.scanning import TableScanner

    with pytest.raises(WrongTable, match="its key is id"):
        TableScanner(table.client, "invoices", table.clock).scan()
    assert "Scan" not in table.operations()
    with pytest.raises(SetupError, match="There is no lease table 'nowhere'"):
        TableScanner(table.client, "nowhere", table.clock).scan()


# -- rows of every kind ----------------------------------------------------------------------------------------


def test_rows_of_kcl_3x_are_foreign_and_no_lease_is_made_of_them(table):
    table.put(lease(0, "w1"))
    table.put_item(leaseKey={"S": "w1"}, entityType={"S": "WORKER_METRIC_STATS"}, lut={"N": "5"})
    table.put_item(leaseKey={"S": "Leader"}, entityType={"S": "LEADER"}, leaseOwner={"S": "w1"})
    view = table.view()
    assert list(view.leases) == [shard(0)]
    assert {row.kind for row in view.foreign} == {"WORKER_METRIC_STATS", "LEADER"}
    assert view.schema == "KCL 3.x"
    states = states_of(table.sampler().look(), 10)
    assert counts(states) == {"UNKNOWN": 1, "FOREIGN": 2}


def test_leases_of_several_streams_are_shown_with_their_own_families(table):
    for number, parents in ((0, ()), (1, (shard(0),))):
        item = to_item(lease(number, "w1", parents=parents))
        table.put_item(**{**item, "leaseKey": {"S": f"{MULTI}:{shard(number)}"}, "streamName": {"S": MULTI}, "shardId": {"S": shard(number)}})  # fmt: skip
    view = table.view()
    assert view.schema == "KCL, several streams"
    assert view.streams[f"{MULTI}:{shard(1)}"] == MULTI
    states = states_of(table.sampler().look(), 10)
    assert states[f"{MULTI}:{shard(1)}"].waits_for == (f"{MULTI}:{shard(0)}",)
    assert states[f"{MULTI}:{shard(1)}"].state is LeaseState.WAITING


def test_rows_as_kcl_1x_wrote_them_are_leases(table):
    table.put_item(leaseKey={"S": shard(0)}, leaseCounter={"N": "7"}, leaseOwner={"S": "old"}, ownerSwitchesSinceCheckpoint={"N": "0"}, checkpoint={"S": "TRIM_HORIZON"})  # fmt: skip
    view = table.view()
    assert view.leases[shard(0)].owner == "old"
    assert view.schema == "KCL 1.x or 2.x before 2.3"


def test_junk_that_only_looks_like_a_lease_is_unreadable_and_blocks_its_children(table):
    table.put_item(leaseKey={"S": shard(0)}, leaseCounter={"S": "seven"}, checkpoint={"S": "TRIM_HORIZON"})
    table.put(lease(1, "w1", parents=(shard(0),)))
    found = table.sampler().look()
    states = states_of(found, 10)
    assert states[shard(0)].state is LeaseState.UNREADABLE
    assert states[shard(1)].state is LeaseState.WAITING
    assert any("cannot be understood" in hint for hint in hints_of(found, states, 10, told=True))


def test_an_empty_table_is_said_to_be_empty(table):
    found = table.sampler().look_twice(10)
    assert found.samples == 1
    states = states_of(found, 10)
    assert states == {}
    assert found.view.schema == "empty"
    assert "no rows" in hints_of(found, states, 10, told=True)[0]


# -- samples and states ----------------------------------------------------------------------------------------


def state(found, number, failover=10.0):
    return states_of(found, failover)[shard(number)].state


def test_one_look_cannot_tell_who_is_alive(table):
    table.put(lease(0, "w1"), lease(1), ended(2, 3), lease(3, "w1", parents=(shard(2),)))
    found = table.sampler().look()
    assert [state(found, number) for number in range(4)] == [
        LeaseState.UNKNOWN, LeaseState.UNOWNED, LeaseState.ENDED, LeaseState.UNKNOWN,
    ]  # fmt: skip
    assert found.moved == {}


def test_a_counter_that_moves_is_active_and_sampling_stops_as_soon_as_all_have_moved(table, clock):
    table.put(lease(0, "w1"), lease(1, "w2"))
    clock.meanwhile = lambda: table.renew(0, 1)
    found = table.sampler().look_twice(10.0)
    assert found.samples == 2
    assert 5.0 < found.span < 7.0
    assert state(found, 0) is state(found, 1) is LeaseState.ACTIVE
    assert found.moved == {shard(0): 1, shard(1): 1}


def test_movement_is_counted_from_the_first_look_of_a_sampling(table, clock):
    table.put(lease(0, "w1"), lease(1, "w2"))
    clock.meanwhile = lambda: table.renew(0)
    found = table.sampler().look_twice(10.0)
    assert found.samples > 2
    assert found.moved == {shard(0): found.samples - 1, shard(1): 0}


def test_an_unmoved_counter_is_stale_only_once_it_stood_still_for_the_failover_time(table, clock):
    table.put(lease(0, "w1"), lease(1, "w2"))
    clock.meanwhile = lambda: table.renew(0)
    sampler = table.sampler()
    found = sampler.look_twice(10.0, longest=9.9)
    assert state(found, 1) is LeaseState.UNKNOWN
    assert state(found, 0) is LeaseState.ACTIVE
    clock.now += 0.2
    assert state(sampler.look(), 1) is LeaseState.STALE


def test_by_default_a_known_failover_time_is_waited_out(table):
    table.put(lease(0, "w1"))
    found = table.sampler().look_twice(10.0)
    assert state(found, 0) is LeaseState.STALE
    assert 10.0 <= found.span < 11.0


def test_without_a_known_failover_time_it_looks_for_six_seconds_and_says_unknown(table):
    table.put(lease(0, "w1"))
    found = table.sampler().look_twice(None)
    assert found.span == pytest.approx(6.0)
    assert state(found, 0, failover=60.0) is LeaseState.UNKNOWN
    hints = hints_of(found, states_of(found, 60.0), 60.0, told=False)
    assert any("a guess" in hint and "--failover" in hint for hint in hints)


def test_an_owner_that_stopped_becomes_stale_although_it_was_seen_moving_before(table, clock):
    table.put(lease(0, "w1"))
    sampler = table.sampler()
    sampler.look()
    table.renew(0)
    clock.now += 3
    assert state(sampler.look(), 0) is LeaseState.ACTIVE
    clock.now += 9.9
    assert state(sampler.look(), 0) is LeaseState.ACTIVE
    clock.now += 0.1
    assert state(sampler.look(), 0) is LeaseState.STALE


def test_a_lease_waits_for_parents_whoever_owns_it_and_no_longer_once_they_ended_or_are_gone(table):
    table.put(lease(0, "w1"), lease(1, "w1"), lease(2, "w1", parents=(shard(0), shard(1))))
    sampler = table.sampler()
    status = states_of(sampler.look(), 10)[shard(2)]
    assert (status.state, status.waits_for) == (LeaseState.WAITING, (shard(0), shard(1)))
    table.put(ended(0, 2))
    assert states_of(sampler.look(), 10)[shard(2)].waits_for == (shard(1),)
    del table.client.tables[NAME].rows[shard(1)]
    assert states_of(sampler.look(), 10)[shard(2)].state is LeaseState.UNKNOWN


def test_a_counter_that_went_back_is_told(table, clock):
    table.put(lease(0, "w1", counter=50))
    sampler = table.sampler()
    sampler.look()
    table.put(lease(0, "w1", counter=1))
    found = sampler.look()
    assert any("went back" in hint for hint in hints_of(found, states_of(found, 10), 10, told=True))


# -- kinds of owners -------------------------------------------------------------------------------------------


def kinds(*leases, foreign=(), renewed=()):
    view = view_of([*map(to_item, leases), *foreign])
    return {owner: kind.kind for owner, kind in owner_kinds(view, renewed).items()}


METRICS = {"leaseKey": {"S": "worker-7"}, "entityType": {"S": "WORKER_METRIC_STATS"}}


def test_the_note_of_pykcl_counts_only_while_it_names_the_owner():
    assert kinds(lease(0, "w1", metadata=note("w1"))) == {"w1": "pykcl"}
    assert kinds(lease(0, "w2", metadata=note("w1"))) == {"w2": "unknown"}


def test_a_name_of_javas_form_alone_proves_nothing_nor_does_an_ending_alone():
    assert kinds(lease(0, JAVA)) == {JAVA: "unknown"}
    assert kinds(ended(0, 1, owner="worker-7")) == {"worker-7": "unknown"}


def test_a_name_of_javas_form_on_an_ending_as_java_writes_it_is_java():
    assert kinds(ended(0, 1, owner=JAVA), lease(1, JAVA)) == {JAVA: "Java"}
    bent = ended(0, 1, owner=JAVA).with_(checkpoint=Checkpoint("SHARD_END", 3))
    assert kinds(bent) == {JAVA: "unknown"}
    assert kinds(ended(0, owner=JAVA)) == {JAVA: "unknown"}


def test_an_owner_that_goes_on_renewing_an_ended_lease_is_java_by_whatever_name(table, clock):
    table.put(ended(0, 1, owner="worker-7"), lease(1, "worker-7"))
    sampler = table.sampler()
    sampler.look()
    table.renew(0, 1)
    found = sampler.look()
    assert found.renewed_after_end == {shard(0)}
    assert owner_kinds(found.view, found.renewed_after_end)["worker-7"].kind == "Java"


def test_an_ending_that_is_just_being_written_is_no_renewal_of_an_ended_lease(table):
    table.put(lease(0, "worker-7"))
    sampler = table.sampler()
    sampler.look()
    table.put(ended(0, 1, owner="worker-7", counter=6))
    assert sampler.look().renewed_after_end == frozenset()


def test_metrics_of_kcl_3x_under_the_owners_name_are_java():
    assert kinds(lease(0, "worker-7"), foreign=[METRICS]) == {"worker-7": "Java"}
    assert kinds(lease(0, "worker-8"), foreign=[METRICS]) == {"worker-8": "unknown"}
    other = {"leaseKey": {"S": "worker-7"}, "entityType": {"S": "STREAM"}}
    assert kinds(lease(0, "worker-7"), foreign=[other]) == {"worker-7": "unknown"}


def test_evidence_both_ways_is_unknown_and_says_so():
    view = view_of([to_item(lease(0, "worker-7", metadata=note("worker-7"))), METRICS])
    kind = owner_kinds(view)["worker-7"]
    assert kind.kind == "unknown"
    assert "share" in kind.why


@pytest.mark.parametrize(
    ("name", "is_java"),
    [
        (JAVA, True),
        (JAVA.partition(":")[2], True),
        ("host:17:3f2a9b6c1d0e", False),
        (JAVA.upper(), False),
        ("ip-10-0-1-7:5a0f3c7e-1d2b-1c3d-9e4f-0123456789ab", False),
        ("", False),
    ],
)
def test_javas_form_is_a_random_uuid_with_or_without_a_host(name, is_java):
    assert has_javas_form(name) is is_java


# -- hints -----------------------------------------------------------------------------------------------------


def hints(table, *, failover=10.0):
    found = table.sampler().look_twice(failover)
    return "\n".join(hints_of(found, states_of(found, failover), failover, told=True))


ODD = [
    ([lease(0, "w1")], "000 did not move for the fail-over time"),
    ([lease(0)], None),
    ([lease(0), lease(1, "w1")], "Nobody owns 000"),
    ([lease(0, "w1"), lease(1, parents=(shard(0),))], "001 cannot begin before 000 has ended"),
    ([ended(0, 1).with_(checkpoint=Checkpoint("SHARD_END", 2))], "Java workers do not see the end"),
    ([lease(0), lease(1, checkpoint=at(1), parents=(shard(0),))], "although a parent has not ended"),
    ([lease(0, "w2", checkpoint_owner="w1")], "handed over"),
    ([lease(0, extra={"leaseOwner": {"NULL": True}})], "there and empty"),
    ([lease(0, owner_switches=5)], "changed hands"),
    ([lease(0, pending=PendingCheckpoint(at(3)))], "never completed"),
    (
        [lease(0, metadata=note("w1")), lease(1, metadata=note("w1").__class__(stream_arn=ARN + "2"))],
        "Leases of 2 streams",
    ),
]


@pytest.mark.parametrize(("leases", "told"), ODD, ids=[str(told) for _, told in ODD])
def test_what_is_odd_is_said_and_what_is_not_is_not(table, leases, told):
    table.put(*leases)
    found = hints(table)
    if told is None:
        assert found == ""
    else:
        assert told in found


def test_an_ordinary_fleet_gives_no_hint(table, clock):
    table.put(ended(0, 1, 2), lease(1, "w1", at(1), parents=(shard(0),)), lease(2, "w2", parents=(shard(0),)))
    clock.meanwhile = lambda: table.renew(1, 2)
    assert hints(table) == ""


def test_short_names_are_numbers_and_other_names_stay():
    assert short_shard(shard(3)) == "003"
    assert short_shard(shard(12345)) == "12345"
    assert short_shard(f"{MULTI}:{shard(3)}") == f"{MULTI}:003"
    assert short_shard("w1") == "w1"
    assert short_shard("shardId-3") == "shardId-3"


def test_an_owner_has_the_same_mark_everywhere_and_nobody_has_none_of_them():
    assert mark_of("w1") == mark_of("w1")
    assert mark_of(None) == NOBODY
    marks = {mark_of(f"worker-{number}") for number in range(2000)}
    assert len(marks) == len(COLOURS) * len(SHAPES)
    assert all(0 <= part <= 255 for mark in marks for part in mark.rgb)


# -- the fail-over time ----------------------------------------------------------------------------------------


def noted(number, owner, millis, **more):
    return lease(number, owner, metadata=note(more.pop("by", owner), failover_millis=millis), **more)


@pytest.mark.parametrize(
    ("leases", "expected"),
    [
        ([], (60.0, False)),
        ([lease(0), lease(1)], (60.0, False)),
        ([noted(0, "w1", 10_000), noted(1, None, 5_000, by="w2")], (10.0, True)),
        ([noted(0, None, 10_000, by="w1"), noted(1, None, 20_000, by="w2")], (20.0, True)),
        ([noted(0, "w1", 10_000), lease(1)], (10.0, True)),
        ([noted(0, "w1", 10_000), lease(1, "java")], (60.0, False)),
        ([noted(0, "w1", 10_000), lease(1, "w0", metadata=note("w0"))], (60.0, False)),
        ([noted(0, "java", 10_000, by="w1")], (60.0, False)),
        ([noted(0, "java", 10_000, by="w1", checkpoint_owner="w1")], (10.0, True)),
        ([noted(0, "w1", 10_000), noted(1, None, 10**13, by="w2")], (60.0, False)),
        ([noted(0, None, 0, by="w1")], (60.0, False)),
    ],
    ids=[
        "no lease", "no note", "the longest", "a fleet that is stopped", "a lease nobody has had", "a lease of Java",
        "a lease of an older pykcl", "Java took it", "Java takes it over", "beyond belief", "no time at all",
    ],
)  # fmt: skip
def test_the_fail_over_time_is_the_longest_noted_where_every_owner_noted_one(leases, expected):
    assert known_failover(None, leases) == expected
    assert known_failover(7.0, leases) == (7.0, True)


def test_a_fail_over_time_that_the_rows_tell_is_no_guess(clock):
    table = FleetTable(clock)
    table.put(noted(0, "w1", 10_000))
    found = table.sampler().look_twice(None)
    failover, is_known = known_failover(None, found.view.leases.values())
    hints = hints_of(found, states_of(found, failover), failover, told=is_known)
    assert not any("a guess" in hint for hint in hints)
