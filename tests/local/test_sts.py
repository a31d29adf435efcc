"""STS of the local AWS: one call, as boto3 sees it."""

import pytest
from botocore.exceptions import ClientError

from pykcl.local.errors import AwsError


def test_everybody_is_the_same_user_of_the_account_of_the_streams(client, aws):
    told = client("sts").get_caller_identity()
    aws.kinesis.create_stream("orders", 1)
    assert told["Arn"] == "arn:aws:iam::000000000000:user/local"
    assert told["Account"] == aws.kinesis.describe("orders").arn.split(":")[4]
    assert [one.operation for one in aws.requests.of("sts")] == ["GetCallerIdentity"]


def test_a_refusal_is_one_of_sts(client, aws):
    def fault(service, operation, parameters):
        if service == "sts":
            raise AwsError("ExpiredToken", "<too> old", 403)

    aws.fault = fault
    with pytest.raises(ClientError, match=r"ExpiredToken.*<too> old"):
        client("sts").get_caller_identity()
