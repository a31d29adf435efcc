"""Requests of real daemons are told apart by who sent them and by their form, and compared with the recordings."""

import json

import pytest
from java_requests import RECORDED, form_of, is_seldom, recorded, recording, sent
from java_worker import COMPATIBLE

AGENTS = {"j1": "aws-sdk-java/2.33.0 app/j1", "j2": "aws-sdk-java/2.33.0 app/j2", "": "Boto3/1.44.5"}


@pytest.fixture
def log(tmp_path):
    """log((worker, operation, parameters), …): such a log of the local AWS."""

    def written(*requests):
        path = tmp_path / "requests.jsonl"
        with path.open("w") as file:
            for worker, operation, params in requests:
                line = {"service": "dynamodb", "operation": operation, "parameters": params, "status": 200,
                        "error_code": None, "user_agent": AGENTS[worker]}  # fmt: skip
                file.write(json.dumps(line) + "\n")
        return path

    return written


def test_only_the_workers_that_are_asked_for_count(log):
    path = log(("j1", "Scan", {"Limit": 1}), ("j2", "Scan", {}), ("", "Query", {}))
    assert sent(path, ["j1"]) == {form_of("Scan", {"Limit": 1})}
    assert len(sent(path, ["j1", "j2"])) == 2


def test_a_recording_has_one_line_per_form_and_reads_as_what_was_sent(log):
    get = {"TableName": "t", "Key": {"leaseKey": {"S": "a"}}}
    path = log(
        ("j1", "GetItem", get),
        ("j1", "GetItem", {**get, "Key": {"leaseKey": {"S": "b"}}}),
        ("j1", "Scan", {}),
    )
    lines = list(recording(path, ["j1"]))
    assert [(line["operation"], line["request"]) for line in lines] == [("GetItem", get), ("Scan", {})]
    assert {form_of(line["operation"], line["request"]) for line in lines} == sent(path, ["j1"])


@pytest.mark.parametrize("kind", RECORDED)
def test_there_is_a_recording_of_each_kind_that_differs_from_the_others(kind):
    assert len(recorded(*kind)) >= 12
    for other in RECORDED.keys() - {kind}:
        assert recorded(*kind) != recorded(*other)


def test_what_is_sent_seldom_is_in_the_recordings():
    seldom = {kind: [form for form in recorded(*kind) if is_seldom(form)] for kind in RECORDED}
    children = {form for found in seldom.values() for form in found if form.startswith("UpdateItem ")}
    assert len(children) == 1
    assert all(children & set(found) for found in seldom.values())
    assert [kind for kind, found in seldom.items() if len(found) > 1] == [("3.5.1", COMPATIBLE)]


@pytest.mark.parametrize("kind", RECORDED)
def test_a_request_of_another_form_is_no_recorded_one(kind):
    renewal = {
        "Key": {"leaseKey": {"S": "a"}},
        "AttributeUpdates": {},
        "Expected": {"leaseOwner": {"Exists": False}},
    }
    assert form_of("UpdateItem", renewal) not in recorded(*kind)


def test_what_a_worker_measured_is_not_part_of_the_form():
    def update(load):
        return {
            "ExpressionAttributeValues": {":AMZN_MAPPED_sts": {"M": load}, ":AMZN_MAPPED_sup": {"N": "1"}}
        }

    busy = update({"C": {"L": [{"N": "12.5"}, {"N": "13"}]}})
    assert form_of("UpdateItem", busy) == form_of("UpdateItem", update({}))
    other = {"ExpressionAttributeValues": {":AMZN_MAPPED_sts": {"M": {}}}}
    assert form_of("UpdateItem", busy) != form_of("UpdateItem", other)
