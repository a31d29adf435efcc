"""The hosts that requests go to, proxies and certificates, as the environment of a process chooses them.

Every test makes each call of a worker over boto3 alone, and as it comes: over the direct transport where that can be.
"""

import contextlib
import socket
import socketserver
import threading

import pytest
from calls import call_all
from server_between import Between

from pykcl.aws.clients import connect
from pykcl.config import Config
from pykcl.errors import TemporaryError
from pykcl.local.server import LocalAws
from pykcl.runtime import SystemRuntime

WAYS = pytest.mark.parametrize("way", ["boto3", "auto"])
REGION = "eu-west-1"
SUFFIX = f"{REGION}.amazonaws.com"
KINESIS, DYNAMODB = f"kinesis.{SUFFIX}", f"dynamodb.{SUFFIX}"
NAMES = (
    KINESIS, DYNAMODB, f"*.control-kinesis.{SUFFIX}", f"*.data-kinesis.{SUFFIX}", f"*.ddb.{SUFFIX}",
    f"kinesis-fips.{SUFFIX}", f"dynamodb-fips.{SUFFIX}", f"kinesis.{REGION}.api.aws", f"dynamodb.{REGION}.api.aws",
    f"*.ddb.{REGION}.api.aws", f"kinesis-fips.{REGION}.api.aws", f"dynamodb-fips.{REGION}.api.aws",
    f"*.control-kinesis.{REGION}.api.aws", f"*.data-kinesis.{REGION}.api.aws",
    f"*.control-kinesis-fips.{SUFFIX}", f"*.data-kinesis-fips.{SUFFIX}",
    f"*.control-kinesis-fips.{REGION}.api.aws", f"*.data-kinesis-fips.{REGION}.api.aws",
)  # fmt: skip


@pytest.fixture(scope="module")
def aws():
    with LocalAws() as local:
        local.kinesis.create_stream("orders", 1)
        yield local


@pytest.fixture(scope="module")
def certificate(make_certificate):
    return make_certificate(*NAMES)


@pytest.fixture
def tls(aws, certificate):
    """AWS' own names lead to this server, by TLS."""
    with Between(aws, certificate) as found:
        yield found


@pytest.fixture
def environment(monkeypatch, tmp_path, certificate):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CA_BUNDLE": str(certificate),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def resolved(tls, monkeypatch):
    """AWS' names have the address of the server. The names that were asked for."""
    real, names = socket.getaddrinfo, []

    def getaddrinfo(host, port, *args, **kwargs):
        if not str(host).endswith((".amazonaws.com", ".api.aws")):
            return real(host, port, *args, **kwargs)
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", tls.port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


def opened(way):
    config = Config(application="orders-app", stream="orders", region=REGION, http_transport=way)
    return connect(config, SystemRuntime())


def call_twice(way):
    table, stream = opened(way)
    call_all(table, stream)
    call_all(table, stream)
    return stream.transport


def is_as_wished(transport, way):
    return transport == "boto3" if way == "boto3" else transport.startswith("direct")


# -- endpoints -------------------------------------------------------------------------------------------------


@WAYS
def test_the_names_of_aws(tls, environment, resolved, way):
    assert is_as_wished(call_twice(way), way)
    assert KINESIS in tls.hosts() or any(host.endswith(f"-kinesis.{SUFFIX}") for host in tls.hosts())
    assert DYNAMODB in tls.hosts()


@WAYS
def test_endpoints_of_an_account(tls, environment, resolved, way):
    """DynamoDB has hosts for each account where the credentials name it; Kinesis where the stream's ARN does."""
    environment.setenv("AWS_ACCOUNT_ID", "123456789012")
    assert is_as_wished(call_twice(way), way)
    assert f"123456789012.ddb.{SUFFIX}" in tls.hosts()
    if way == "auto":
        hosts = {
            headers["host"] for operation, headers, _ in tls.seen if "amz-sdk-invocation-id" not in headers
        }
        assert f"123456789012.ddb.{SUFFIX}" in hosts, "over the direct transport, too"


@WAYS
@pytest.mark.parametrize(
    ("variables", "ends"),
    [
        (("AWS_USE_FIPS_ENDPOINT",), (f"-fips.{SUFFIX}",)),
        (("AWS_USE_DUALSTACK_ENDPOINT",), (f".{REGION}.api.aws",)),
        (("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT"), (f"-fips.{REGION}.api.aws",)),
    ],
)
def test_fips_and_dual_stack(tls, environment, resolved, way, variables, ends):
    for name in variables:
        environment.setenv(name, "true")
    assert is_as_wished(call_twice(way), way)
    assert tls.hosts()
    assert all(host.endswith(ends) for host in tls.hosts()), tls.hosts()


@WAYS
def test_an_endpoint_of_one_service_leaves_the_other_where_it_is(tls, aws, environment, resolved, way):
    with Between(aws) as own:
        environment.setenv("AWS_ENDPOINT_URL_KINESIS", own.url)
        assert is_as_wished(call_twice(way), way)
    assert own.hosts() == {own.url.removeprefix("http://")}
    assert {operation for operation in own.operations() if operation.startswith("Get")} == {
        "GetShardIterator", "GetRecords",
    }  # fmt: skip
    assert tls.hosts() == {DYNAMODB}
    assert not {"GetRecords", "ListShards"} & set(tls.operations())


@WAYS
def test_configured_endpoints_can_be_ignored(tls, aws, environment, resolved, way):
    environment.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:9")
    environment.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert is_as_wished(call_twice(way), way)


# -- proxies ---------------------------------------------------------------------------------------------------


class Proxy:
    """An HTTP proxy that knows CONNECT only, and leads all names to one port. asked: the names."""

    def __init__(self, port):
        self.asked = []
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                outer.asked.append(self.rfile.readline().decode().split(" ")[1])
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                with socket.create_connection(("127.0.0.1", port)) as behind:
                    back = threading.Thread(target=copy, args=(behind, self.connection), daemon=True)
                    back.start()
                    copy(self.connection, behind)
                    back.join(60)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(tls):
    with Proxy(tls.port) as found:
        yield found


@WAYS
def test_a_proxy_of_the_environment_is_used_for_everything(environment, proxy, tls, way):
    environment.setenv("HTTPS_PROXY", proxy.url)
    assert call_twice(way) == "boto3", "the direct transport knows no proxies"
    assert {name.removesuffix(":443") for name in proxy.asked} == tls.hosts()


@WAYS
def test_what_no_proxy_names_goes_past_it(environment, proxy, tls, resolved, way):
    environment.setenv("HTTPS_PROXY", proxy.url)
    environment.setenv("NO_PROXY", KINESIS)
    assert is_as_wished(call_twice(way), way)
    assert {name.removesuffix(":443") for name in proxy.asked} == {DYNAMODB}
    assert KINESIS in resolved


# -- certificates ----------------------------------------------------------------------------------------------


@WAYS
def test_a_bundle_that_does_not_trust_the_server_is_temporary_trouble(
    environment, resolved, make_certificate, way
):
    environment.setenv("AWS_CA_BUNDLE", str(make_certificate(KINESIS)))
    _, stream = opened(way)
    with pytest.raises(TemporaryError, match="SSLError"):
        stream.describe()


@WAYS
def test_a_bundle_that_is_replaced_is_used_without_a_restart(
    aws, environment, monkeypatch, make_certificate, tmp_path, way
):
    """A private authority is replaced, as every year: the file has the new one, and the server, too."""
    bundle, old, new = tmp_path / "bundle.pem", make_certificate(*NAMES), make_certificate(*NAMES)
    bundle.write_bytes(old.read_bytes())
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    with Between(aws, old) as before, Between(aws, new) as after:
        port = before.port
        real = socket.getaddrinfo

        def getaddrinfo(host, asked, *args, **kwargs):
            if not str(host).endswith(".amazonaws.com"):
                return real(host, asked, *args, **kwargs)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        table, stream = opened(way)
        call_all(table, stream)
        call_all(table, stream)
        bundle.write_bytes(new.read_bytes())
        port = after.port
        for client in (table, stream):
            close_connections(client)
        call_all(table, stream)
        assert is_as_wished(stream.transport, way)
        assert {"GetRecords", "Scan", "UpdateItem"} <= set(after.operations())


def close_connections(adapter):
    """As a server that ends: whatever is sent next goes over a new connection."""
    adapter._client._endpoint.http_session._manager.clear()
    selector = (adapter._reads if hasattr(adapter, "_reads") else adapter._requests)._selector
    for _, transport in selector._transports.values():
        while transport._idle:
            transport._idle.pop().close()
