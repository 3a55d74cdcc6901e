"""Creates certificates for tests: an authority, a server on loopback, and a client."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """PEM files: ``authority.pem``, ``server.pem`` with its key (Java reads both from one file), ``client.pem`` and ``client.key``."""

    home: Path

    @property
    def authority(self) -> Path:
        return self.home / "authority.pem"

    @property
    def server(self) -> Path:
        return self.home / "server.pem"

    @property
    def client(self) -> Path:
        return self.home / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.home / "client.key"


def make(home: Path) -> Certificates:
    """Create certificates that are valid for a day, in files below ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    certificates = Certificates(home)
    authority_key, server_key, client_key = (_key() for _ in range(3))
    authority = _certificate("authority", authority_key, None, authority_key)
    certificates.authority.write_bytes(_pem(authority))
    certificates.server.write_bytes(
        _private(server_key) + _pem(_certificate("127.0.0.1", server_key, authority, authority_key))
    )
    certificates.client.write_bytes(_pem(_certificate("client", client_key, authority, authority_key)))
    certificates.client_key.write_bytes(_private(client_key))
    return certificates


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    name: str, key: rsa.RSAPrivateKey, issuer: x509.Certificate | None, issuer_key: rsa.RSAPrivateKey
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(name) if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if name == "127.0.0.1":
        address = x509.IPAddress(ipaddress.ip_address(name))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
