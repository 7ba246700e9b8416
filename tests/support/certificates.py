"""Certificates of tests: an authority, and what it signs, as PEM files."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority that signs certificates for 127.0.0.1 and names.

    Attributes:
        file: its own certificate.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._signed(self._name, self._key.public_key(), days=3650, is_authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def sign(
        self, file: str, *, days: float = 90, names: tuple[str, ...] = (), password: bytes = b""
    ) -> tuple[str, str]:
        """Write FILE.pem and FILE.key, valid until `days` from now; return the names of the files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file)])
        signed = self._signed(subject, key.public_key(), days=days, names=names)
        certificate, private = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        private.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, how)
        )
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return str(certificate), str(private)

    def believing(self) -> ssl.SSLContext:
        """Return the settings of a client that believes this authority alone."""
        return ssl.create_default_context(cafile=str(self.file))

    def asking(self, certificate: str, key: str) -> ssl.SSLContext:
        """Return the settings of a server that takes clients with a certificate of this authority alone."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.file))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        return context

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        days: float,
        names: tuple[str, ...] = (),
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        hosts: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        hosts = [x509.DNSName(name) for name in names] if names else hosts
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=365))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
        if is_authority:
            usage = dict.fromkeys(
                (
                    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
                    *("key_agreement", "encipher_only", "decipher_only"),
                ),
                False,
            )
            builder = builder.add_extension(
                x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True
            )
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return builder.sign(self._key, hashes.SHA256())
