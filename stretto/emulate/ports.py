"""Ports of this machine: taken before anything answers at them."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from stretto.model.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that holds a port and refuses connections until it listens; port 0 takes a free one.

    Raises:
        ConfigError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise ConfigError(f"port {port} of {host} cannot be used: {error.strerror}") from error
    return held


def check_ports(addresses: Iterable[tuple[str, int]]) -> None:
    """Check that nothing listens at the addresses (host and port). Raises ConfigError if something does."""
    for host, port in addresses:
        bind(host, port).close()
