from __future__ import annotations

from contextlib import suppress

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from pykcl.errors import (
    AnswerRefused,
    PositionRefused,
    PyKclError,
    SetupError,
    ShardGone,
    StreamMissing,
    TemporaryError,
    Throttled,
    WrongStream,
)
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.shard import HashRange, Shard

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
NOT_FOUND = (400, {"__type": "ResourceNotFoundException", "message": "under account 123456789012 not found"})
SHARD = "shardId-000000000000"
HORIZON = ReadFrom("TRIM_HORIZON")


def shard(number, **more):
    return {
        "ShardId": f"shardId-{number:012d}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "99"},
        "SequenceNumberRange": {"StartingSequenceNumber": "5"},
        **more,
    }


# describe


def test_a_stream_is_asked_for_by_name_until_its_arn_is_known_and_by_arn_from_then_on(wire, summary):
    wire.answer("DescribeStreamSummary", summary())
    wire.answer("ListShards", {"Shards": []})
    wire.answer("GetShardIterator", {"ShardIterator": "it"})
    stream = wire.stream()
    found = stream.describe()
    assert (found.name, found.arn, found.created_at, found.status) == (
        "orders",
        ARN,
        1_600_000_000_500,
        "ACTIVE",
    )
    stream.describe()
    stream.list_shards()
    stream.open(SHARD, HORIZON)
    assert wire.requests[0][1] == {"StreamName": "orders"}
    assert wire.requests[1][1] == {"StreamARN": ARN}
    assert wire.requests[2][1] == {"StreamARN": ARN}
    assert wire.requests[3][1]["StreamARN"] == ARN
    assert "StreamName" not in wire.requests[3][1]


def test_a_stream_given_by_arn_is_asked_for_by_arn_at_once_and_has_a_name(wire, summary):
    wire.answer("DescribeStreamSummary", summary())
    stream = wire.stream(ARN)
    assert stream.name == "orders"
    assert stream.describe().name == "orders"
    assert wire.asked("DescribeStreamSummary") == [{"StreamARN": ARN}]


def refusal(code, message="", status=400):
    return status, {"__type": code, "message": message}


NO_NAME = refusal("ValidationException", "Value null at 'streamName' failed to satisfy constraint")
NO_NAME_TO_LIST = refusal("InvalidArgumentException", "Either NextToken or StreamName should be provided.")


def as_kinesalite_does(wire, summary):
    """It knows names alone."""
    wire.answer("DescribeStreamSummary", summary())
    wire.answer("ListShards", NO_NAME_TO_LIST, {"Shards": [shard(0)]})
    wire.answer("GetShardIterator", {"ShardIterator": "it"})
    wire.answer("GetRecords", {"Records": [], "NextShardIterator": "next", "MillisBehindLatest": 0})


def test_a_stream_that_is_named_is_asked_for_by_name_where_its_arn_is_refused_and_that_is_said_once(
    wire, summary, caplog
):
    as_kinesalite_does(wire, summary)
    stream = wire.stream()
    stream.describe()
    for _ in range(2):
        assert [each.shard_id for each in stream.list_shards().shards] == [SHARD]
        assert stream.describe().arn == ARN
    stream.fetch(SHARD, stream.open(SHARD, HORIZON), 10)
    assert [name for name, request in wire.requests if "StreamARN" in request] == ["ListShards"]
    assert [line for line in caplog.messages if "endpoint" in line] == [
        "the endpoint refuses the ARN of the stream, which is asked for by its name from now on stream='orders'"
    ]


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "ThrottlingException", "ResourceNotFoundException"]
)
def test_no_other_refusal_of_an_arn_is_answered_by_a_name(wire, summary, code):
    wire.answer("DescribeStreamSummary", summary())
    wire.answer("ListShards", refusal(code))
    stream = wire.stream()
    stream.describe()
    with pytest.raises(PyKclError):
        stream.list_shards()
    assert wire.asked("ListShards") == [{"StreamARN": ARN}]


def test_an_arn_that_was_taken_once_is_not_replaced_by_a_name(wire, summary):
    wire.answer("DescribeStreamSummary", summary())
    wire.answer("GetShardIterator", refusal("InvalidArgumentException"))
    stream = wire.stream()
    stream.describe()
    stream.describe()
    with pytest.raises(PositionRefused):
        stream.open(SHARD, HORIZON)
    assert len(wire.asked("GetShardIterator")) == 1


def test_a_refusal_that_a_name_does_not_mend_is_raised_as_it_is(wire, summary, caplog):
    wire.answer("DescribeStreamSummary", summary())
    wire.answer("ListShards", NO_NAME_TO_LIST, refusal("InternalFailure", status=500))
    stream = wire.stream()
    stream.describe()
    with pytest.raises(SetupError, match=r"refused the request as invalid \(InvalidArgumentException\)"):
        stream.list_shards()
    assert "by its name" not in caplog.text
    assert stream.describe().arn == ARN
    assert wire.requests[-1] == ("DescribeStreamSummary", {"StreamARN": ARN})


def test_a_stream_given_by_arn_is_never_taken_for_one_of_that_name_and_the_text_names_the_way(wire):
    wire.answer("DescribeStreamSummary", NO_NAME)
    with pytest.raises(
        SetupError,
        match=r"^Describing stream 'orders' failed: the endpoint refuses its ARN \(ValidationException\). Do: check "
        r"account and region in it; for an emulator that knows no ARNs, such as kinesalite, give the name, "
        r"stream='orders'\.$",
    ):
        wire.stream(ARN).describe()
    assert wire.asked("DescribeStreamSummary") == [{"StreamARN": ARN}]


def test_a_missing_stream_says_which_where_and_what_to_do(wire):
    wire.answer("DescribeStreamSummary", NOT_FOUND)
    with pytest.raises(StreamMissing) as caught:
        wire.stream().describe()
    for words in ("'orders'", "eu-west-1", "123456789012", "list-streams"):
        assert words in str(caught.value)


def test_a_stream_missing_in_another_region_than_its_arn_says_so(wire):
    wire.answer("DescribeStreamSummary", NOT_FOUND)
    with pytest.raises(StreamMissing, match="ARN names region us-east-1"):
        wire.stream(ARN.replace("eu-west-1", "us-east-1")).describe()


def test_a_stream_that_is_being_deleted_counts_as_missing(wire, summary):
    wire.answer("DescribeStreamSummary", summary(status="DELETING"))
    with pytest.raises(StreamMissing, match="being deleted"):
        wire.stream().describe()


@pytest.mark.parametrize(
    "body", [{}, b"", b"<html>", {"StreamDescriptionSummary": {"StreamName": "orders"}}, [1], b"\xff\xfe"]
)
def test_a_description_without_what_identifies_the_stream_is_refused(wire, body):
    wire.answer("DescribeStreamSummary", body)
    with pytest.raises(AnswerRefused):
        wire.stream().describe()


# list_shards


def test_shards_are_listed_page_by_page_and_never_with_the_stream_beside_a_token(wire):
    wire.answer(
        "ListShards",
        {"Shards": [shard(0), shard(1)], "NextToken": "t1"},
        {
            "Shards": [
                shard(2, ParentShardId="shardId-000000000000", AdjacentParentShardId="shardId-000000000001")
            ],
            "NextToken": "t2",
        },
        {
            "Shards": [
                shard(3, SequenceNumberRange={"StartingSequenceNumber": "5", "EndingSequenceNumber": "9"})
            ]
        },
    )
    listing = wire.stream().list_shards()
    assert listing.complete
    assert [one.shard_id[-1] for one in listing.shards] == ["0", "1", "2", "3"]
    assert listing.shards[2].parents == ("shardId-000000000000", "shardId-000000000001")
    assert listing.shards[0] == Shard("shardId-000000000000", (), HashRange(0, 99), "5", None)
    assert not listing.shards[3].is_open
    assert wire.asked("ListShards") == [{"StreamName": "orders"}, {"NextToken": "t1"}, {"NextToken": "t2"}]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"StartingHashKey": "start", "EndingHashKey": "end"}, "start to end"),
        ({"StartingHashKey": "5", "EndingHashKey": "5"}, "5 to 5"),
        ({"StartingHashKey": "9", "EndingHashKey": "5"}, "9 to 5"),
        ({"StartingHashKey": "0", "EndingHashKey": str(2**128)}, f"0 to {2**128}"),
        ({"StartingHashKey": "x" * 100, "EndingHashKey": "5"}, f"{'x' * 64} to 5"),
        ({}, "None to None"),
    ],
)
def test_what_is_no_range_of_hash_keys_is_kept_to_be_told_and_costs_no_shard(wire, keys, said):
    wire.answer("ListShards", {"Shards": [shard(0, HashKeyRange=keys), shard(1)]})
    odd, good = wire.stream().list_shards().shards
    assert (odd.hash_range, odd.refused_range) == (None, said)
    assert (good.hash_range, good.refused_range) == (HashRange(0, 99), "")


def test_an_empty_listing_is_complete_and_a_listing_without_shards_is_refused(wire):
    wire.answer("ListShards", {"Shards": []}, {}, b"{")
    stream = wire.stream()
    assert stream.list_shards().shards == ()
    for _ in range(2):
        with pytest.raises(AnswerRefused):
            stream.list_shards()


@pytest.mark.parametrize(
    "second",
    [
        (400, {"__type": "ExpiredNextTokenException"}),
        (400, {"__type": "LimitExceededException"}),
        (500, {"__type": "InternalFailure"}),
        (400, {"__type": "AccessDeniedException"}),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:9"),
        {},
        {"Shards": [{}]},
        {"Shards": [shard(1)], "NextToken": "t1"},
    ],
)
def test_a_later_page_that_fails_leaves_an_incomplete_listing(wire, second):
    wire.answer("ListShards", {"Shards": [shard(0)], "NextToken": "t1"}, second)
    listing = wire.stream().list_shards()
    assert not listing.complete
    assert listing.shards[0].shard_id == SHARD


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((400, {"__type": "LimitExceededException"}), Throttled),
        ((400, {"__type": "ProvisionedThroughputExceededException"}), Throttled),
        ((400, {"__type": "ThrottlingException"}), Throttled),
        ((400, {"__type": "ResourceInUseException"}), TemporaryError),
        ((503, {"__type": "ServiceUnavailable"}), TemporaryError),
        ((500, b"<html>no json</html>"), TemporaryError),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:9"), TemporaryError),
        (NOT_FOUND, StreamMissing),
        ((400, {"__type": "AccessDeniedException"}), SetupError),
        ({"Shards": [{"HashKeyRange": {}}]}, AnswerRefused),
    ],
)
def test_a_first_page_that_fails_raises_what_can_be_done_about_it(wire, answer, expected):
    wire.answer("ListShards", answer)
    wire.answer("DescribeStreamSummary", answer)
    with pytest.raises(expected) as caught:
        wire.stream().list_shards()
    assert type(caught.value) is expected


# open


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (ReadFrom("TRIM_HORIZON"), {}),
        (ReadFrom("LATEST"), {}),
        (ReadFrom("AT_SEQUENCE_NUMBER", sequence_number="495"), {"StartingSequenceNumber": "495"}),
        (ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number="495"), {"StartingSequenceNumber": "495"}),
        (ReadFrom("AT_TIMESTAMP", at_millis=1_600_000_000_000), {"Timestamp": 1_600_000_000}),
    ],
)
def test_every_start_becomes_the_iterator_type_of_the_same_name(wire, start, expected):
    wire.answer("GetShardIterator", {"ShardIterator": "it"})
    assert wire.stream().open(SHARD, start) == "it"
    assert wire.requests[0][1] == {
        "StreamName": "orders",
        "ShardId": SHARD,
        "ShardIteratorType": start.kind,
        **expected,
    }


def test_a_time_is_never_sent_later_than_asked(wire):
    wire.answer("GetShardIterator", {"ShardIterator": "it"})
    wire.stream().open(SHARD, ReadFrom("AT_TIMESTAMP", at_millis=1_600_000_000_987))
    assert 1_600_000_000 <= wire.requests[0][1]["Timestamp"] <= 1_600_000_000.987


def test_a_shard_kinesis_does_not_know_is_gone_only_if_the_stream_still_stands(wire, summary):
    wire.answer("GetShardIterator", NOT_FOUND)
    wire.answer("DescribeStreamSummary", summary())
    with pytest.raises(ShardGone, match=SHARD):
        wire.stream().open(SHARD, HORIZON)
    wire.answer("DescribeStreamSummary", NOT_FOUND)
    with pytest.raises(StreamMissing):
        wire.stream().open(SHARD, HORIZON)


def test_nothing_is_called_gone_while_the_stream_cannot_be_described(wire):
    wire.answer("GetShardIterator", NOT_FOUND)
    for trouble in ((400, {"__type": "LimitExceededException"}), (400, {"__type": "AccessDeniedException"})):
        wire.answer("DescribeStreamSummary", trouble)
        with pytest.raises(TemporaryError) as caught:
            wire.stream().open(SHARD, HORIZON)
        assert type(caught.value) is TemporaryError


def test_a_stream_made_again_under_its_name_is_refused_every_time(wire, summary):
    wire.answer("DescribeStreamSummary", summary(), summary(created=1_650_000_000.0))
    wire.answer("GetShardIterator", NOT_FOUND, (400, {"__type": "InvalidArgumentException"}), NOT_FOUND)
    stream = wire.stream()
    stream.describe()
    for _ in range(3):
        with pytest.raises(WrongStream, match="deleted and created again"):
            stream.open(SHARD, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number="7"))


def test_a_number_that_is_no_position_of_the_shard_concerns_that_shard_alone_and_is_named(wire, summary):
    wire.fail("GetShardIterator", "InvalidArgumentException", "Invalid StartingSequenceNumber.")
    wire.answer("DescribeStreamSummary", summary())
    with pytest.raises(PositionRefused, match="AT_SEQUENCE_NUMBER 777") as caught:
        wire.stream().open(SHARD, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number="777"))
    assert SHARD in str(caught.value)
    assert not isinstance(caught.value, StreamMissing | WrongStream)


def test_a_start_time_that_has_not_come_yet_is_waited_for(wire):
    wire.fail("GetShardIterator", "InvalidArgumentException")
    with pytest.raises(TemporaryError, match="time in the future"):
        wire.stream().open(SHARD, ReadFrom("AT_TIMESTAMP", at_millis=1_700_000_000_500))


def test_a_start_time_that_is_refused_though_all_clocks_that_we_see_are_past_it_is_no_position_of_a_row(
    wire, summary
):
    """A wrong clock of this machine and a proxy's hide that it is still to come: no row was changed by hand."""
    wire.fail("GetShardIterator", "InvalidArgumentException")
    wire.answer("DescribeStreamSummary", summary())
    with pytest.raises(TemporaryError, match="time in the future") as caught:
        wire.stream().open(SHARD, ReadFrom("AT_TIMESTAMP", at_millis=1_599_999_000_000))
    assert not isinstance(caught.value, PositionRefused)
    assert caught.value.code == "E30"
    assert "2020-09-13T12:26:40" in str(caught.value), "the clock of this machine"


def test_an_answer_without_an_iterator_is_refused(wire):
    wire.answer("GetShardIterator", {}, {"ShardIterator": ""}, {"ShardIterator": None})
    stream = wire.stream()
    for _ in range(3):
        with pytest.raises(AnswerRefused):
            stream.open(SHARD, HORIZON)


def test_missing_credentials_say_what_to_set(wire):
    wire.answer("DescribeStreamSummary", NoCredentialsError())
    with pytest.raises(SetupError, match="AWS_ACCESS_KEY_ID"):
        wire.stream().describe()


# server time


def test_without_any_answer_the_server_time_is_our_own_to_the_second(wire, runtime):
    assert wire.stream(runtime=runtime).server_time_millis() == 1_600_000_000_000


def test_the_server_time_is_the_date_of_the_answer_carried_forward_and_rounded_down(wire, runtime):
    runtime.millis = 1_700_000_009_000
    wire.answer("ListShards", {"Shards": []})
    stream = wire.stream(runtime=runtime)
    stream.list_shards()
    assert stream.server_time_millis() == 1_700_000_000_000
    runtime.seconds += 1.9
    assert stream.server_time_millis() == 1_700_000_001_000
    stream.list_shards()  # the same Date, late: it does not turn the clock back
    assert stream.server_time_millis() == 1_700_000_001_000
    wire.date = "Tue, 14 Nov 2023 22:13:24 GMT"
    stream.list_shards()
    assert stream.server_time_millis() == 1_700_000_004_000


def test_a_proxy_whose_clock_is_ahead_moves_no_position_and_is_logged_once(wire, runtime, caplog):
    """Else a start at LATEST would be noted at a time to come, and the next owner would skip what was put till then."""
    runtime.millis = 1_700_000_000_000 - 20_000
    wire.answer("ListShards", {"Shards": []})
    stream = wire.stream(runtime=runtime)
    for wire.date in ("Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:21 GMT"):
        stream.list_shards()
        assert stream.server_time_millis() == runtime.millis
    assert stream.server_time_millis(as_seen=True) == 1_700_000_001_000
    assert caplog.text.count("the clock of this machine is 20 s behind") == 1


def test_a_clock_of_this_machine_that_is_ahead_moves_no_position(wire, runtime, caplog):
    runtime.millis = 1_700_000_000_000 + 3_600_000
    wire.answer("ListShards", {"Shards": []})
    stream = wire.stream(runtime=runtime)
    stream.list_shards()
    assert stream.server_time_millis() == 1_700_000_000_000
    assert "3600 s ahead of" in caplog.text


@pytest.mark.parametrize("page", [b"<html>Service Unavailable", b""])
def test_the_page_of_a_proxy_says_nothing_about_the_time(wire, runtime, page):
    runtime.millis = 1_800_000_000_000
    stream = wire.stream(runtime=runtime)
    for status in (503, 200):
        wire.request_id = None
        wire.answer("ListShards", (status, page))
        with suppress(TemporaryError):
            stream.list_shards()
        assert stream.server_time_millis() == 1_800_000_000_000
        assert stream.server_time_millis(as_seen=True) == 1_800_000_000_000


def test_a_refusal_says_nothing_about_the_time(wire, runtime):
    """Its id and its Date may be as false as its text."""
    runtime.millis = 1_800_000_000_000
    wire.fail("ListShards", "LimitExceededException")
    stream = wire.stream(runtime=runtime)
    with pytest.raises(Throttled):
        stream.list_shards()
    assert stream.server_time_millis() == 1_800_000_000_000


@pytest.mark.parametrize("date", [None, "yesterday", "Tue, 99 Nov 2023 99:13:20 GMT"])
def test_an_unreadable_date_is_no_reason_to_fail(wire, runtime, date):
    wire.date = date
    wire.answer("ListShards", {"Shards": []})
    stream = wire.stream(runtime=runtime)
    assert stream.list_shards().complete
    assert stream.server_time_millis() == 1_600_000_000_000
