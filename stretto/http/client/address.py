"""Addresses of HTTP servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a server's URL.

    Attributes:
        authority: host and port as the header `Host` has them.
        path: path that comes before every request's path; without a slash at its end.
    """

    host: str
    port: int
    is_tls: bool
    authority: str = field(default="")
    path: str = ""


def check_port_number(port: int) -> None:
    """Check that a port can be listened at; 0 stands for any. Raises ConfigError."""
    if not 0 <= port < 65536:
        raise ConfigError(f"port is {port}; it must be from 0 to 65535")


def url_of(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return the URL of the HTTP server at a port of a host."""
    return f"{'https' if is_tls else 'http'}://{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Return a name or an address in the form that stands in a URL: IPv6 addresses have brackets there."""
    return f"[{host}]" if ":" in host else host
