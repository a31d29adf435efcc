"""The direct transport against servers that answer whatever a test says, byte for byte."""

import datetime
import ipaddress
import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))

from raw_server import RawServer


@pytest.fixture
def server():
    with RawServer() as found:
        yield found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A file with a certificate of 127.0.0.1, self-signed, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(pem)
    )
    return str(path)
