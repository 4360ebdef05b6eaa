"""Certificates made at test time: an authority, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Pair"]

DAY = dt.timedelta(days=1)
NAMES = ("localhost", "127.0.0.1", "seedance-mesh")


@dataclass(frozen=True)
class Pair:
    """Two PEM files."""

    certificate: str
    key: str


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Signs certificates into a folder; `file` is its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        certificate = self._sign(self._subject, self._key, x509.BasicConstraints(True, None))
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *extensions: x509.ExtensionType,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, name: str, *names: str) -> Pair:
        """Write `name.pem` and `name.key`, made out to `names` (loopback's, unless told otherwise)."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_alternative(n) for n in names or NAMES])
        certificate = self._sign(_name(name), key, alternatives)
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(pair.certificate).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        Path(pair.key).write_bytes(private)
        return pair
