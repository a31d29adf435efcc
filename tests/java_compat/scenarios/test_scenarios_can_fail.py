"""What the scenarios ask for can be missed: each of these broken workers fails the scenario that is about it."""

import importlib

import pytest

from pykcl.config import Config
from pykcl.model import lease_item, lease_writes
from pykcl.model.lease_writes import LeaseWrite
from pykcl.planning.lease_view import LeaseView
from pykcl.worker import lease_worker
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.leader import Leader
from tests.java_compat.mixed_fleet import leave_out_of_creations, leave_out_of_updates
from tests.java_compat.scenarios.checked_fleets import fleets


def change_updates(monkeypatch, kinds, change):
    """`change(text, values) -> text` is applied to pykcl's updates of these kinds."""
    update = LeaseWrite._update

    def changed(self):
        text, values = update(self)
        return (change(text, values), values) if self.kind in kinds else (text, values)

    monkeypatch.setattr(LeaseWrite, "_update", changed)


def change_conditions(monkeypatch, kinds, dropped):
    """The clause that begins so is left out of pykcl's conditions of these kinds."""
    condition = LeaseWrite._condition

    def changed(self):
        text, values = condition(self)
        if self.kind not in kinds:
            return text, values
        clauses = [clause for clause in text.split(" AND ") if not clause.startswith(dropped)]
        text = " AND ".join(clauses)
        return text, {name: value for name, value in values.items() if name in text}

    monkeypatch.setattr(LeaseWrite, "_condition", changed)


def a_take_does_not_ask_for_the_counter(monkeypatch):
    change_conditions(monkeypatch, {"take"}, "leaseCounter")


def a_take_does_not_ask_for_the_owner(monkeypatch):
    change_conditions(
        monkeypatch,
        {"take"},
        ("leaseOwner", "attribute_not_exists(leaseOwner)", "attribute_not_exists(checkpointOwner)"),
    )


def a_take_puts_the_counter_back_to_1(monkeypatch):
    def reset(text, values):
        values[":leaseCounter"] = {"N": "1"}
        return text

    change_updates(monkeypatch, {"take"}, reset)


def a_take_leaves_the_counter_alone(monkeypatch):
    leave_out_of_updates(monkeypatch, "leaseCounter", {"take"})


def a_take_leaves_the_checkpoint_owner(monkeypatch):
    change_updates(monkeypatch, {"take"}, lambda text, _: text.replace(" REMOVE checkpointOwner", ""))


def a_take_drops_what_was_prepared(monkeypatch):
    names = "pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState"
    change_updates(
        monkeypatch, {"take"}, lambda text, _: text.replace("checkpointOwner", f"checkpointOwner, {names}")
    )


def a_renewal_leaves_the_counter_alone(monkeypatch):
    def touch(text, values):
        values[":leaseCounter"] = {"N": str(int(values[":leaseCounter"]["N"]) - 1)}
        return text

    change_updates(monkeypatch, {"renew"}, touch)


def a_creation_overwrites(monkeypatch):
    request = LeaseWrite.request

    def unconditional(self):
        operation, params = request(self)
        if self.kind == "create":
            del params["ConditionExpression"], params["ReturnValuesOnConditionCheckFailure"]
        return operation, params

    monkeypatch.setattr(LeaseWrite, "request", unconditional)


def a_creation_lacks_an_attribute(monkeypatch):
    leave_out_of_creations(monkeypatch, "ownerSwitchesSinceCheckpoint")


def a_checkpoint_leaves_the_sub_sequence_number(monkeypatch):
    leave_out_of_updates(monkeypatch, "checkpointSubSequenceNumber", {"checkpoint"})


def the_end_leaves_the_sub_sequence_number(monkeypatch):
    leave_out_of_updates(monkeypatch, "checkpointSubSequenceNumber", {"end"})


def the_end_comes_before_the_children(monkeypatch):
    monkeypatch.setattr("pykcl.worker.shard_end._ensure_lease", lambda *_: None)


def a_stop_keeps_the_owner(monkeypatch):
    monkeypatch.setattr(lease_writes, "release", lease_writes.renew)


def a_release_writes_null(monkeypatch):
    def null(text, values):
        values[":leaseOwner"] = {"NULL": True}
        return text.replace(
            " REMOVE leaseOwner", ", leaseOwner = :leaseOwner REMOVE checkpointOwner"
        ).replace(", checkpointOwner", "")

    change_updates(
        monkeypatch,
        {"release"},
        lambda text, values: null(
            text.replace(" REMOVE checkpointOwner, leaseOwner", " REMOVE leaseOwner"), values
        ),
    )


def a_refused_write_is_always_lost(monkeypatch):
    monkeypatch.setattr("pykcl.aws.lease_table.resolve_conflict", lambda *_: "rejected")


def a_lease_is_believed_for_ever(monkeypatch):
    monkeypatch.setattr(Config, "belief_time", 1e6)


def a_hand_off_is_a_loss(monkeypatch):
    monkeypatch.setattr(lease_writes, "_asks_for", lambda row, write: False)


def a_hand_off_is_released(monkeypatch):
    monkeypatch.setattr(lease_writes, "hand_over", lease_writes.release)


def a_loss_is_not_noticed(monkeypatch):
    monkeypatch.setattr(HeldLease, "check", lambda self: None)


def any_owned_lease_counts_as_expired(monkeypatch):
    monkeypatch.setattr(LeaseView, "is_expired", lambda self, key, _: self.leases[key].owner is not None)


def a_take_asks_for_nothing(monkeypatch):
    change_conditions(
        monkeypatch, {"take"}, ("leaseCounter", "leaseOwner", "attribute_not_exists(leaseOwner)")
    )


def the_holder_s_writes_ask_for_the_row_only(monkeypatch):
    def any_row(self):
        return "attribute_exists(leaseKey)", {}

    condition = LeaseWrite._condition
    monkeypatch.setattr(
        LeaseWrite,
        "_condition",
        lambda self: any_row(self) if self.kind in ("renew", "checkpoint") else condition(self),
    )


def parents_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(
        "pykcl.planning.shard_graph.FamilyTree.readable",
        lambda self, leases, unreadable=(): [
            leases[key] for key in sorted(leases) if not leases[key].is_ended
        ],
    )
    monkeypatch.setattr(lease_worker, "unfinished_parents", lambda table, lease: ())


def children_need_not_have_begun(monkeypatch):
    monkeypatch.setattr("pykcl.planning.lease_deletion._NOT_STARTED", ())


def the_other_parent_is_not_looked_at(monkeypatch):
    monkeypatch.setattr("pykcl.planning.shard_graph.FamilyTree.parents_ended", lambda *_: True)


def only_an_empty_table_gets_leases(monkeypatch):
    create = importlib.import_module("pykcl.planning.lease_creation").create_new_leases
    monkeypatch.setattr(
        "pykcl.worker.shard_sync.create_new_leases",
        lambda start, shards, leases, *rest: [] if leases else create(start, shards, leases, *rest),
    )


def hash_ranges_are_not_filled_in(monkeypatch):
    monkeypatch.setattr(Leader, "_fill", lambda self, fills: None)


def every_row_is_taken_for_a_lease(monkeypatch):
    monkeypatch.setattr(lease_item, "_foreign_kind", lambda item, key: None)


CAUGHT_BY = [
    (a_creation_lacks_an_attribute, "test_joining", "test_scenario_02_java_joins", {"version": "2.7.2"}),
    (a_creation_overwrites, "test_joining", "test_scenario_03_both_start_on_a_missing_table", {}),
    (a_creation_overwrites, "test_joining", "test_scenario_04_", {}),
    (a_take_does_not_ask_for_the_counter, "test_ownership", "test_scenario_05_", {}),
    (a_take_leaves_the_counter_alone, "test_ownership", "test_scenario_06_", {}),
    (a_loss_is_not_noticed, "test_ownership", "test_scenario_07_", {}),
    (the_holder_s_writes_ask_for_the_row_only, "test_ownership", "test_scenario_08_", {"under_way": "renew"}),
    (a_take_puts_the_counter_back_to_1, "test_ownership", "test_scenario_09_", {"counter": 1}),
    (a_take_puts_the_counter_back_to_1, "test_ownership", "test_scenario_09_", {"counter": 2}),
    (a_stop_keeps_the_owner, "test_ownership", "test_scenario_11_", {}),
    (any_owned_lease_counts_as_expired, "test_ownership", "test_scenario_12_", {}),
    (a_refused_write_is_always_lost, "test_ownership", "test_scenario_13_", {}),
    (a_refused_write_is_always_lost, "test_ownership", "test_scenario_14_", {}),
    (a_checkpoint_leaves_the_sub_sequence_number, "test_positions", "test_scenario_16_", {}),
    (a_take_drops_what_was_prepared, "test_positions", "test_scenario_18_", {}),
    (the_end_comes_before_the_children, "test_resharding", "test_scenario_19_", {}),
    (the_end_leaves_the_sub_sequence_number, "test_resharding", "test_scenario_19_", {}),
    (parents_are_not_waited_for, "test_resharding", "test_scenario_21_", {"first": "java"}),
    (parents_are_not_waited_for, "test_resharding", "test_scenario_21_", {"first": "pykcl"}),
    (children_need_not_have_begun, "test_resharding", "test_scenario_23_pykcl_deletes", {}),
    (the_other_parent_is_not_looked_at, "test_resharding", "test_scenario_24_", {}),
    (only_an_empty_table_gets_leases, "test_resharding", "test_scenario_25_pykcl_puts_back", {}),
    (hash_ranges_are_not_filled_in, "test_repairs", "test_scenario_28_the_leader", {"leads": "pykcl"}),
    (every_row_is_taken_for_a_lease, "test_rows_of_others", "test_scenario_30_", {}),
    (a_release_writes_null, "test_rows_of_others", "test_scenario_31_", {}),
    (every_row_is_taken_for_a_lease, "test_rows_of_others", "test_scenario_37_rows", {}),
    (a_renewal_leaves_the_counter_alone, "test_kcl_3x", "test_scenario_32_", {}),
    (a_take_asks_for_nothing, "test_kcl_3x", "test_scenario_33_", {"first": "leader"}),
    (a_take_leaves_the_checkpoint_owner, "test_kcl_3x", "test_scenario_34_pykcl_takes", {}),
    (a_take_does_not_ask_for_the_owner, "test_kcl_3x", "test_scenario_34_a_hand_off_begins", {}),
    (a_hand_off_is_a_loss, "test_kcl_3x", "test_scenario_35_a_hand_off", {}),
    (a_hand_off_is_released, "test_kcl_3x", "test_scenario_35_a_hand_off", {}),
    (a_checkpoint_leaves_the_sub_sequence_number, "test_rows_of_others", "test_scenario_38_a_stale", {}),
    (a_creation_overwrites, "test_rows_of_others", "test_scenario_38_pykcl_s_own", {}),
    (a_lease_is_believed_for_ever, "test_trouble", "test_scenario_39_beyond", {}),
]
"""Broken worker, and the scenario that shows it."""


def number_of(name):
    return name.removeprefix("test_scenario_")[:2]


def id_of(mutate, name, options):
    return f"{name.removeprefix('test_scenario_')[:2]}: {mutate.__name__}{''.join(f', {each}' for each in options.values())}"


@pytest.mark.parametrize(
    ("mutate", "module", "name", "options"),
    CAUGHT_BY,
    ids=[id_of(mutate, name, options) for mutate, _, name, options in CAUGHT_BY],
)
def test_the_scenario_fails_where(monkeypatch, mutate, module, name, options):
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        run(module, name, options)


def test_a_sound_worker_fails_none_of_a_sample():
    """Else the test above could be about how scenarios are run here. All of them, sound, run where they are defined."""
    for _, module, name, options in CAUGHT_BY[::9]:
        run(module, name, options)


def run(module, name, options):
    (scenario,) = [
        each
        for key, each in vars(importlib.import_module(f"{__package__}.{module}")).items()
        if key.startswith(name)
    ]
    making = fleets("memory", seed=0)
    try:
        scenario(next(making), **options)
        # What the fixture does at the end: broken guarantees count.
        next(making, None)
    finally:
        making.close()
