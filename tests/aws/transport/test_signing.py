"""Our signature is botocore's own, whatever is signed."""

import hashlib
from datetime import UTC, datetime
from types import SimpleNamespace

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from pykcl.aws.transport.request_template import Signer, canonical_request

SECRETS = st.text("abcXYZ019+/", min_size=1, max_size=40)
SECONDS = st.integers(0, 4_102_444_800)


def botocores(url, headers, body, keys, region, service, amz_date, monkeypatch=None):
    request = AWSRequest("POST", url, headers=dict(headers), data=body)
    request.context["timestamp"] = amz_date
    signer = SigV4Auth(keys, service, region)
    if keys.token:
        request.headers["X-Amz-Security-Token"] = keys.token
    request.headers["X-Amz-Date"] = amz_date
    canonical = signer.canonical_request(request)
    return canonical, signer.signature(signer.string_to_sign(request, canonical), request)


@given(
    seconds=SECONDS,
    secret=SECRETS,
    token=st.none() | SECRETS,
    body=st.binary(max_size=300),
    region=st.sampled_from(["eu-west-1", "us-gov-east-1", "cn-north-1"]),
    path=st.sampled_from(["/", "/kinesis", "//", "/kinesis//"]),
)
def test_it_is_the_one_of_botocore(seconds, secret, token, body, region, path):
    keys = ReadOnlyCredentials("AKID", secret, token)
    signer = Signer(region, "kinesis")
    date = signer.amz_date(seconds)
    assert date == datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "host": "kinesis.example:8080",
        "x-amz-date": date,
    }
    if token:
        headers["x-amz-security-token"] = token
    headers["x-amz-target"] = "Kinesis_20131202.GetRecords"
    asked = {name: headers[name] for name in ("content-type", "x-amz-target")}
    canonical, signature = botocores(
        f"http://kinesis.example:8080{path}", asked, body, keys, region, "kinesis", date
    )
    ours = canonical_request(path, headers, body)
    assert ours == canonical
    assert signer.signature(secret, date, ours) == signature


@given(times=st.lists(SECONDS, min_size=2, max_size=6), secrets=st.lists(SECRETS, min_size=2, max_size=3))
def test_a_key_that_was_kept_is_not_used_for_another_day_or_secret(times, secrets):
    kept = Signer("eu-west-1", "kinesis")
    for seconds in times:
        for secret in secrets:
            date = kept.amz_date(seconds)
            fresh = Signer("eu-west-1", "kinesis").signature(secret, date, "request")
            assert kept.signature(secret, date, "request") == fresh


def test_the_key_of_a_day_is_made_once(monkeypatch):
    made = []
    real = hashlib.sha256

    def counting(key, message, kind):
        made.append(message)
        import hmac

        return hmac.new(key, message, real).digest()

    monkeypatch.setattr("pykcl.aws.transport.request_template.hmac", SimpleNamespace(digest=counting))
    signer = Signer("eu-west-1", "kinesis")
    for second in range(5):
        signer.signature("secret", signer.amz_date(second), "request")
    assert made.count(b"aws4_request") == 1
