"""Requests as a client sends them to the DynamoDB of a service, and the row that most of them are about."""

import pytest
from botocore.exceptions import ClientError
from lease_writes import plain

VALUE = {":v": {"N": "1"}}
REFUSAL = "ConditionalCheckFailedException"
INVALID = "ValidationException"
ITEM = {
    "leaseKey": {"S": "k"},
    "n": {"N": "5"},
    "s": {"S": "shard-7"},
    "b": {"B": b"ab"},
    "ss": {"SS": ["a", "b"]},
    "ns": {"NS": ["1", "2"]},
    "flag": {"BOOL": True},
    "nulled": {"NULL": True},
    "m": {"M": {"innermost": {"N": "1"}, "deep": {"L": [{"S": "x"}, {"S": "y"}]}}},
    "l": {"L": [{"N": "1"}]},
}
KEY = {"leaseKey": {"S": "k"}}
OWN_KEY = [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
OWN_TYPE = [{"AttributeName": "leaseKey", "AttributeType": "S"}]


def asking(service, table=None):
    def ask(operation, **params):
        answer = getattr(service.direct, operation)(TableName=table or service.name, **params)
        answer.pop("ResponseMetadata")
        if "Attributes" in answer:
            answer["Attributes"] = plain(answer["Attributes"])
        return answer

    return ask


def refused(ask, operation, **params):
    """The answer to a request that is refused with HTTP 400."""
    with pytest.raises(ClientError) as refusal:
        ask(operation, **params)
    answer = refusal.value.response
    code, status = answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]
    assert status == 400, f"answered {status} {code}"
    return answer


def code_of(answer):
    return answer["Error"]["Code"]


def changed(by):
    return plain({name: value for name, value in {**ITEM, **by}.items() if value is not None})
