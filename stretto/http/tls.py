"""What is shown and believed in TLS handshakes: settings of a server and of a client, read from PEM files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from stretto.model.errors import ConfigError

_PROTOCOLS = ["http/1.1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server shows its clients.

    Attributes:
        certificate: PEM file with its certificate, and behind it those up to its authority.
        key: PEM file with the private key of the certificate, without a password.
    """

    certificate: str
    key: str

    def __post_init__(self) -> None:
        server_context(self)

    @property
    def files(self) -> tuple[str, ...]:
        """All files."""
        return self.certificate, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """What a client believes and shows.

    Attributes:
        ca: PEM file with the authorities that may have signed the server's certificate, in place of those
            that the system trusts.
        certificate: PEM file with a certificate that is shown to the server.
        key: PEM file with the private key of this certificate, without a password.
        server_name: name that the server's certificate must have, in place of the host of its URL.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS: a certificate needs its key, and a key its certificate; give both")
        context = client_context(self)
        if self.server_name is not None:
            _check_name(context, self.server_name)

    @property
    def files(self) -> tuple[str, ...]:
        """All files."""
        return tuple(file for file in (self.ca, self.certificate, self.key) if file is not None)


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Return what a server's handshakes need. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    _load_pair(context, tls.certificate, tls.key)
    return context


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return what a client's handshakes need. Raises ConfigError."""
    if tls.ca is not None:
        _check_file("authorities", tls.ca)
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"TLS: {tls.ca} has no certificates of authorities in PEM: {error}") from error
    context.set_alpn_protocols(_PROTOCOLS)
    if tls.certificate is not None and tls.key is not None:
        _load_pair(context, tls.certificate, tls.key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _check_file("certificate", certificate)
    _check_file("key", key)

    def refuse_password() -> str:
        raise ConfigError(f"TLS: the key {key} has a password; give one without")

    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"TLS: the key {key} does not fit the certificate {certificate}") from error
        raise ConfigError(
            f"TLS: {certificate} must be a certificate and {key} its private key, both in PEM: {error}"
        ) from error


def _check_file(what: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except (OSError, ValueError) as error:  # of a name that no file can have
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"TLS: {what} {file!r} cannot be read: {why}") from error


def _check_name(context: ssl.SSLContext, name: str) -> None:
    """Check that a handshake can ask for a server of this name; it would fail in no way that is caught."""
    try:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)
    except (ValueError, TypeError, ssl.SSLError) as error:
        raise ConfigError(f"TLS: server_name is {name!r:.200}; it must be the name of a host") from error
