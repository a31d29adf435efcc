"""Tests against a server that stands between pykcl and a local AWS."""

import datetime
import ipaddress
import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

from server_between import Between

from pykcl.local.server import LocalAws
from pykcl.runtime import SystemRuntime


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory):
    """Write a self-signed certificate of these names, and its key, into one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def make(*names):
        key = ec.generate_private_key(ec.SECP256R1())
        number = x509.random_serial_number()
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"local {number}")])
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        alternatives = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, names)]
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), number, now - day, now + day)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        path = tmp_path_factory.mktemp("tls") / "server.pem"
        path.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + made.public_bytes(pem)
        )
        return path

    return make


@pytest.fixture
def between():
    """A server before a local AWS with a stream of one shard. ahead: of its clock, in milliseconds, to be changed."""
    ahead = [0]
    with (
        LocalAws(now_millis=lambda: SystemRuntime().utcnow_millis() + ahead[0]) as aws,
        Between(aws) as found,
    ):
        found.ahead = ahead
        aws.kinesis.create_stream("orders", 1)
        yield found
