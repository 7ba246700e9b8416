"""What the URL of a worker says."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from stretto.http.client.address import Address
from stretto.model.errors import ConfigError
from stretto.wire.server_url import read_server_url


def server_of(url: str) -> tuple[str, str]:
    """Return what is the same for two forms of one worker's URL: its server, and the path of its API."""
    read = read_server_url(url)
    return read.root, read.target("v1/")


def parse_address(url: str) -> Address:
    """Return the parts of the address of a worker's server; the path is that before `/v1` and `/health`.

    Raises:
        ConfigError: it is no URL of an HTTP server, has a user, or has a query other than `api-version`.
    """
    if not isinstance(url, str):
        raise ConfigError(f"worker {url!r}: it must be a URL like http://HOST:PORT")
    shown = re.sub(r"//[^/?#]*@|[?#].*", lambda found: "//***@" if "@" in found[0] else "", url, flags=re.S)
    try:
        parts = urlsplit(url)
        port = parts.port
        read = read_server_url(url)
    except (ValueError, AttributeError, TypeError, ConfigError) as error:
        why = "" if isinstance(error, ConfigError) else f"{error}; "
        raise ConfigError(f"worker {shown!r}: {why}it must be a URL like http://HOST:PORT") from None
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"worker {shown!r}: it must be a URL without a user, spaces or non-ASCII letters")
    if any(name != "api-version" for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise ConfigError(
            f"worker {shown!r}: it must be a URL whose query has api-version alone; keys belong into api_key "
            "or headers"
        )
    hostname = parts.hostname or ""
    if not all(0 < len(label) < 64 for label in hostname.removesuffix(".").split(".")):
        raise ConfigError(
            f"worker {shown!r}: {hostname!r} names no host; it must be a URL like http://HOST:PORT"
        )
    is_tls = parts.scheme == "https"
    default = 443 if is_tls else 80
    return Address(hostname, port or default, is_tls, parts.netloc, urlsplit(read.root).path)
