"""The hosts that requests go to, proxies and certificates, as the environment of a process chooses them.

Every test makes each call of a worker over boto3 alone, and as it comes: over the direct transport where that can be.
"""

import base64
import contextlib
import re
import socket
import socketserver
import threading
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config as BotocoreConfig
from calls import SHARD, call_all
from server_between import Between

from pykcl.aws.clients import client_config, connect
from pykcl.config import Config
from pykcl.errors import ConfigError, SetupError, TemporaryError
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import ReadFrom
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
    for name in (
        "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "REQUESTS_CA_BUNDLE",
        "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy",
    ):  # fmt: skip
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
    return lead_to(monkeypatch, lambda: tls.port)


def lead_to(monkeypatch, port):
    """AWS' names lead to the port that this function returns. Returns the names that were asked for."""
    real, names = socket.getaddrinfo, []

    def getaddrinfo(host, asked, *args, **kwargs):
        if not str(host).endswith((".amazonaws.com", ".api.aws")):
            return real(host, asked, *args, **kwargs)
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port()))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


def opened(way, clients=None):
    config = Config(application="orders-app", stream="orders", region=REGION, http_transport=way)
    return connect(config, SystemRuntime(), clients=clients)


def call_twice(way):
    table, stream = opened(way)
    call_all(table, stream)
    call_all(table, stream)
    return stream.transport


def is_as_wished(transport, way):
    return transport == "boto3" if way == "boto3" else transport.startswith("direct")


def trouble_of(way="auto", clients=None):
    """What the first request says, which may work later."""
    _, stream = opened(way, clients)
    with pytest.raises(TemporaryError) as raised:
        stream.describe()
    return str(raised.value)


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


@pytest.mark.parametrize("service", ["kinesis", "dynamodb"])
def test_endpoints_of_an_account_that_is_not_known_end_the_start(environment, service):
    environment.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "required")
    table, stream = opened("auto")
    with pytest.raises(SetupError, match="AccountIdEndpointMode is required but no AccountID") as raised:
        table.prepare(create=True) if service == "dynamodb" else stream.describe()
    assert "AWS_ACCOUNT_ID_ENDPOINT_MODE with AWS_ACCOUNT_ID" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AWS_ACCOUNT_ID_ENDPOINT_MODE", "requierd", "'requierd' for 'account_id_endpoint_mode' is invalid"),
        ("AWS_CA_BUNDLE", " ", "AWS_CA_BUNDLE"),
        ("AWS_STS_REGIONAL_ENDPOINTS", "local", "STS regional endpoints option local is invalid"),
        ("AWS_METADATA_SERVICE_TIMEOUT", "1s", "AWS_METADATA_SERVICE_TIMEOUT"),
        (
            "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
            "IPv5",
            "Invalid EC2 Instance Metadata endpoint mode: IPv5",
        ),
    ],
)
def test_a_setting_that_boto3_refuses_ends_the_start_and_is_said(environment, name, value, said):
    environment.setenv(name, value)
    with pytest.raises((ConfigError, SetupError), match=re.escape(said)):
        opened("auto")


# -- proxies ---------------------------------------------------------------------------------------------------

REFUSED = "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"


class Proxy:
    """An HTTP proxy that leads all names to one port. asked: the names.

    Without CONNECT it passes on the first request of a connection alone. instead: an answer that it gives to all;
    "" if it gives none. password: of a user, without which it refuses.
    """

    def __init__(self, port, instead=None, password=None):
        self.asked = []
        self._ended = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            rbufsize = 0  # what follows the head stays in the socket

            def line(self):
                return self.rfile.readline().decode().rstrip()

            def handle(self):
                first, *head = iter(self.line, "")
                method, asked, version = first.split(" ")
                outer.asked.append(asked)
                said = instead if outer.permits(password, head) else REFUSED
                if said is not None:
                    self.wfile.write(said.encode())
                    if not said:
                        outer._ended.wait(60)
                    return
                with socket.create_connection(("127.0.0.1", port)) as behind:
                    if method == "CONNECT":
                        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    else:
                        head = [one for one in head if not one.lower().startswith("connection:")]
                        first = f"{method} {urlsplit(asked).path or '/'} {version}"
                        behind.sendall("\r\n".join([first, *head, "Connection: close", "", ""]).encode())
                    back = threading.Thread(target=copy, args=(behind, self.connection), daemon=True)
                    back.start()
                    copy(self.connection, behind)
                    back.join(60)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url_with_password = self.url.replace("//", "//worker:secret@")

    def permits(self, password, head):
        named = base64.b64encode(f"worker:{password}".encode()).decode()
        return password is None or f"Proxy-Authorization: Basic {named}" in head

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._ended.set()
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


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            REFUSED,
            "{} answered HTTP 407). It may work later; if it does not, put user and password into it",
        ),
        (
            "HTTP/1.1 502 secret\r\n\r\n",
            "{} answered HTTP 502). It may work later; if it does not, see that the proxy lets the hosts of AWS through",
        ),
        ("no HTTP\r\n\r\n", f"ConnectionClosedError at https://{KINESIS}; by way of {{}})"),
        (
            "",
            f"ReadTimeoutError at https://{KINESIS}: {{}} has not answered). It may work later; if it does not, check",
        ),
    ],
    ids=["407", "502", "no HTTP", "hangs"],
)
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_a_proxy_that_fails_is_named_with_its_variable_and_without_its_password(
    environment, answer, said, variable
):
    with Proxy(0, answer) as proxy:
        environment.setenv(variable, proxy.url_with_password)
        trouble = trouble_of(clients=None if answer else impatient_clients())
    assert said.format(f"the proxy {proxy.url} of {variable}") in trouble
    assert "secret" not in trouble


def impatient_clients():
    config = client_config(connect_timeout=1, read_timeout=1, connections=1)
    return {
        service: boto3.Session().client(service, region_name=REGION, config=config)
        for service in ("kinesis", "dynamodb")
    }


def test_a_proxy_that_nobody_listens_at_is_named(environment):
    with Proxy(0) as proxy:
        """Its port is free then."""
    environment.setenv("HTTPS_PROXY", proxy.url.removeprefix("http://"))
    assert f"ProxyConnectionError: the proxy {proxy.url} of HTTPS_PROXY cannot be reached" in trouble_of()


def test_a_proxy_that_a_client_brings_is_named_without_a_variable(environment):
    with Proxy(0, "HTTP/1.1 403 no\r\n\r\n") as proxy:
        given = BotocoreConfig(proxies={"https": proxy.url_with_password})
        client = boto3.Session().client("kinesis", region_name=REGION, config=given)
        trouble = trouble_of(clients={"kinesis": client})
    assert f"the proxy {proxy.url} answered HTTP 403" in trouble


def test_a_proxy_whose_url_cannot_be_read_is_said(environment):
    environment.setenv("HTTPS_PROXY", "http://worker:secret@proxy:port")
    trouble = trouble_of()
    assert "a URL cannot be read" in trouble
    assert "check HTTPS_PROXY, HTTP_PROXY" in trouble
    assert "secret" not in trouble


def test_an_answer_without_a_code_of_aws_is_of_whatever_stands_between(environment, proxy):
    """Without TLS, a proxy answers in the place of AWS."""
    environment.setenv("AWS_ENDPOINT_URL_KINESIS", "http://kinesis.example")
    with Proxy(0, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n") as between:
        environment.setenv("HTTP_PROXY", between.url_with_password)
        trouble = trouble_of()
    assert (
        f"got HTTP 502 without an error code of AWS; the proxy {between.url} of HTTP_PROXY may have"
        in trouble
    )


def test_sts_behind_a_proxy_that_refuses_names_the_proxy(environment, tmp_path):
    (tmp_path / "token").write_text("token")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    environment.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    environment.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")
    with Proxy(0, "HTTP/1.1 407 no\r\n\r\n") as proxy:
        environment.setenv("HTTPS_PROXY", proxy.url_with_password)
        trouble = trouble_of()
    assert (
        f"from STS (ProxyConnectionError: the proxy {proxy.url} of HTTPS_PROXY answered HTTP 407)" in trouble
    )
    assert "put user and password into it" in trouble


# -- certificates ----------------------------------------------------------------------------------------------


@WAYS
def test_a_bundle_that_does_not_trust_the_server_is_temporary_trouble_and_named(
    environment, resolved, make_certificate, way
):
    bundle = make_certificate(KINESIS)
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    said = trouble_of(way)
    assert (
        f"SSLError at https://{KINESIS}: the certificate is not accepted, self-signed certificate; " in said
    )
    assert f"the authorities that are trusted are in AWS_CA_BUNDLE={bundle}" in said
    assert (
        "It may work later; if it does not, name by AWS_CA_BUNDLE a file that also has the authority" in said
    )


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (lambda env, path: env.setenv("REQUESTS_CA_BUNDLE", str(path)), "REQUESTS_CA_BUNDLE={}"),
        (
            lambda env, path: path.with_name("config").write_text(f"[default]\nca_bundle = {path}\n"),
            "{}, of ca_bundle in the AWS profile",
        ),
        (lambda env, path: None, "boto3's own list, as AWS_CA_BUNDLE is not set"),
    ],
    ids=["REQUESTS_CA_BUNDLE", "profile", "none"],
)
def test_the_setting_that_names_the_authorities_is_named(
    environment, resolved, make_certificate, tmp_path, setting, named
):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(make_certificate(KINESIS).read_bytes())
    environment.delenv("AWS_CA_BUNDLE")
    setting(environment, bundle)
    assert f"the authorities that are trusted are in {named.format(bundle)}" in trouble_of()


def test_a_certificate_of_another_host_is_told_from_one_of_another_authority(
    aws, environment, monkeypatch, make_certificate
):
    certificate = make_certificate("other.example")
    environment.setenv("AWS_CA_BUNDLE", str(certificate))
    with Between(aws, certificate) as server:
        lead_to(monkeypatch, lambda: server.port)
        assert "the certificate is for other names than that host" in trouble_of()


def test_the_direct_transport_names_the_same_reasons(
    aws, certificate, environment, resolved, monkeypatch, make_certificate, tmp_path
):
    """The server gets other certificates while a worker runs."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(certificate.read_bytes())
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    _, stream = opened("auto")
    iterator = stream.open(SHARD, ReadFrom("TRIM_HORIZON"))
    stream.fetch(SHARD, iterator, 10)
    assert stream.transport.startswith("direct")

    def trouble_with(other):
        with Between(aws, other) as server:
            lead_to(monkeypatch, lambda: server.port)
            close_connections(stream)
            with pytest.raises(TemporaryError) as raised:
                stream.fetch(SHARD, iterator, 10)
            return str(raised.value)

    said = trouble_with(make_certificate(*NAMES))
    assert "the certificate is not accepted, self-signed certificate; the authorities" in said
    assert f"AWS_CA_BUNDLE={bundle}" in said
    of_another_host = make_certificate("other.example")
    bundle.write_bytes(of_another_host.read_bytes())
    assert "the certificate is for other names than that host" in trouble_with(of_another_host)


def test_https_to_a_port_of_http_is_said(aws, environment):
    environment.setenv("AWS_ENDPOINT_URL", aws.url.replace("http:", "https:"))
    said = trouble_of()
    assert "what listens there does not speak TLS" in said
    assert "if it does not, check the URL of the endpoint: http:// may be meant" in said


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("no certificate", "no certificate in it can be read"),
        ("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", "no certificate in it can be read"),
    ],
)
def test_a_bundle_that_cannot_be_read_ends_the_start(environment, tmp_path, content, why):
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    with pytest.raises(SetupError) as raised:
        opened("auto")
    assert f"cannot be read from AWS_CA_BUNDLE={bundle}: {why}." in str(raised.value)


def test_a_bundle_that_cannot_be_read_ends_the_start_with_clients_that_were_given(environment, tmp_path):
    clients = {
        service: boto3.Session().client(service, region_name=REGION, verify=str(tmp_path / "missing.pem"))
        for service in ("kinesis", "dynamodb")
    }
    with pytest.raises(SetupError, match=r"verify= of the client: No such file or directory"):
        opened("auto", clients=clients)


def test_a_bundle_in_the_home_folder_is_found(environment, resolved, certificate, tmp_path):
    (tmp_path / "bundle.pem").write_bytes(certificate.read_bytes())
    (tmp_path / "config").write_text("[default]\nca_bundle = ~/bundle.pem\n")
    environment.delenv("AWS_CA_BUNDLE")
    environment.setenv("HOME", str(tmp_path))
    _, stream = opened("auto")
    stream.describe()


def test_an_endpoint_without_tls_needs_no_authorities(aws, environment, tmp_path):
    environment.setenv("AWS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    environment.setenv("AWS_ENDPOINT_URL", aws.url)
    assert call_twice("auto").startswith("direct")


def test_a_bundle_that_is_gone_for_a_moment_is_temporary_trouble_of_a_worker_that_runs(
    environment, resolved, certificate, tmp_path
):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(certificate.read_bytes())
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    table, stream = opened("boto3")
    bundle.unlink()
    with pytest.raises(TemporaryError, match=f"cannot be read from AWS_CA_BUNDLE={bundle}: No such file"):
        stream.describe()
    bundle.write_bytes(certificate.read_bytes())
    call_all(table, stream)


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
        lead_to(monkeypatch, lambda: port)
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


# -- what a message advises, followed ------------------------------------------------------------------------------


def advised_names(said, around):
    """The variables that a text names in the place of VARIABLE."""
    found = re.search(re.escape(around).replace("VARIABLE", "([A-Z_]+)"), said)
    assert found, said
    return found.groups()


@WAYS
def test_a_start_succeeds_once_the_advised_variable_names_a_file_that_also_has_the_authority(
    environment, resolved, certificate, make_certificate, tmp_path, way
):
    bundle = make_certificate(KINESIS)
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    (name,) = advised_names(trouble_of(way), "name by VARIABLE a file that also has the authority")
    both = tmp_path / "both.pem"
    both.write_bytes(bundle.read_bytes() + certificate.read_bytes())
    environment.setenv(name, str(both))
    assert is_as_wished(call_twice(way), way)


def test_a_start_succeeds_once_the_file_of_authorities_is_corrected(
    environment, resolved, certificate, tmp_path
):
    bundle = tmp_path / "bundle.pem"
    environment.setenv("AWS_CA_BUNDLE", str(bundle))
    with pytest.raises(SetupError) as raised:
        opened("auto")
    assert f"AWS_CA_BUNDLE={bundle}" in str(raised.value)
    assert "Do: correct the path or the file, which has certificates in PEM." in str(raised.value)
    bundle.write_bytes(certificate.read_bytes())
    assert call_twice("auto").startswith("direct")


@WAYS
@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ("HTTP/1.1 502 no\r\n\r\n", "lets the hosts of AWS through, or name them in VARIABLE"),
        ("", "check that the proxy runs and can be reached, or name the host in VARIABLE"),
    ],
    ids=["refuses", "hangs"],
)
def test_a_start_succeeds_once_the_hosts_of_aws_are_named_as_advised(
    environment, resolved, answer, advice, way
):
    with Proxy(0, answer) as proxy:
        environment.setenv("HTTPS_PROXY", proxy.url)
        trouble = trouble_of(way, clients=None if answer else impatient_clients())
        assert advised_names(trouble, advice) == ("NO_PROXY",)
        environment.setenv("NO_PROXY", f"{KINESIS},{DYNAMODB}")
        proxy.asked.clear()
        assert is_as_wished(call_twice(way), way)
    assert proxy.asked == []


def test_a_start_succeeds_once_user_and_password_are_in_the_url_of_the_proxy_as_advised(environment, tls):
    with Proxy(tls.port, password="pass word") as proxy:
        environment.setenv("HTTPS_PROXY", proxy.url)
        said = trouble_of()
        name, form = re.search(r"the proxy \S+ of (\w+) answered .* into it: (\S+)\.$", said).groups()
        assert name == "HTTPS_PROXY"
        filled = form.replace("USER", "worker").replace("PASSWORD", "pass%20word")
        environment.setenv(name, filled.replace("HOST:PORT", proxy.url.removeprefix("http://")))
        call_twice("auto")
    assert proxy.asked


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_a_start_succeeds_once_the_url_of_the_advised_variable_can_be_read(environment, aws, tls, scheme):
    """Both variables are named; the one of the scheme of the endpoint is wrong."""
    with Proxy(tls.port if scheme == "https" else int(aws.url.rpartition(":")[2])) as proxy:
        if scheme == "http":
            environment.setenv("AWS_ENDPOINT_URL", "http://localhost:1")
        variables = {"https": "HTTPS_PROXY", "http": "HTTP_PROXY"}
        environment.setenv(variables[scheme], "http://proxy:port")
        named = advised_names(trouble_of(), "check VARIABLE, VARIABLE and the URL of the endpoint")
        assert set(named) == {"HTTPS_PROXY", "HTTP_PROXY"}
        environment.setenv(variables[scheme], proxy.url)
        call_twice("auto")
    assert proxy.asked


def test_a_start_succeeds_once_the_url_of_the_endpoint_is_the_one_that_is_meant(aws, environment):
    environment.setenv("AWS_ENDPOINT_URL", aws.url.replace("http:", "https:"))
    (scheme,) = re.search(r"check the URL of the endpoint: (\S+) may be meant", trouble_of()).groups()
    environment.setenv("AWS_ENDPOINT_URL", aws.url.replace("http://", scheme))
    call_twice("auto")


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("AWS_METADATA_SERVICE_TIMEOUT", "1s", "5"),
        ("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "three", "3"),
        ("AWS_ENDPOINT_URL", "ftp//127.0.0.1", None),
        ("AWS_ENDPOINT_URL_KINESIS", "127.0.0.1", None),
        ("AWS_REGION", "eu west", "eu-west-1"),
        ("AWS_DEFAULT_REGION", "eu west", "eu-west-1"),
    ],
)
def test_a_setting_that_is_refused_by_its_name_is_accepted_once_it_is_corrected(
    aws, environment, name, wrong, right
):
    environment.delenv("AWS_DEFAULT_REGION", raising=False)
    environment.setenv("AWS_ENDPOINT_URL", aws.url)
    environment.setenv(name, wrong)
    config = Config(application="orders-app", stream="orders")
    with pytest.raises(ConfigError) as raised:
        connect(config, SystemRuntime())
    assert name in str(raised.value).partition("Do: ")[2]
    environment.setenv(name, right or aws.url)
    connect(config, SystemRuntime())[1].describe()


@pytest.mark.parametrize("service", ["kinesis", "dynamodb"])
def test_endpoints_of_an_account_are_found_once_the_advised_variable_names_it(environment, resolved, service):
    environment.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "required")
    table, stream = opened("auto")
    with pytest.raises(SetupError) as raised:
        table.prepare(create=True) if service == "dynamodb" else stream.describe()
    mode, account = advised_names(str(raised.value), "Do: check VARIABLE with VARIABLE")
    assert (mode, account) == ("AWS_ACCOUNT_ID_ENDPOINT_MODE", "AWS_ACCOUNT_ID")
    environment.setenv(account, "123456789012")
    call_twice("auto")
