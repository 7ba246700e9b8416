"""Fetches documents from the URLs of requests: only from allowed hosts, and never from private addresses.

A name is resolved once, all its addresses are checked, and the connection goes to the first of them, so that
the name cannot mean another machine the second time. Redirects are followed by the same rules.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from stretto.documents.parse import PARSERS
from stretto.http.client.address import bracketed
from stretto.http.fair_slots import FairTurns
from stretto.model.errors import ConfigError, DocumentError
from stretto.runtime.loop_thread import LoopThread
from stretto.service.apps.inputs import UnparsedDocument

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_MAX_REDIRECTS = 5
_MOST_AT_ONCE = 8
_PORTS = {"http": 80, "https": 443}
_SUFFIXES: Mapping[str, str] = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/pdf": ".pdf",
    "text/markdown": ".md",
    "text/x-rst": ".rst",
    "text/csv": ".csv",
    "application/json": ".json",
    "message/rfc822": ".eml",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""A function from a host and a port to the host's addresses. It raises OSError if there is none."""


@dataclass(frozen=True, slots=True)
class FetchRules:
    """The rules by which documents are fetched.

    Attributes:
        hosts: hosts that may be asked, such as "example.com"; "*.example.com" stands for all below it, and
            "*" for every host. Without any, no URL is fetched.
        allow_private: whether hosts may have private addresses, such as 127.0.0.1 or 10.0.0.1.
        max_bytes: largest size of a document.
        max_query_bytes: largest size of all documents together that are fetched for one query.
        timeout_s: seconds that fetching one document may take, redirects included.
    """

    hosts: tuple[str, ...] = ()
    allow_private: bool = False
    max_bytes: int = 50_000_000
    max_query_bytes: int = 200_000_000
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        for host in self.hosts:
            plain = host.removeprefix("*.") if host != "*" else "any"
            if not plain or (any(char in "*/:@ " for char in plain) and not _is_address(plain)):
                raise ConfigError(f"{host!r} is no host; give a name such as example.com or *.example.com")

    def allows(self, host: str) -> bool:
        """Return whether a host is in the list of allowed ones."""
        host = host.lower().rstrip(".")
        return any(
            rule == "*" or host == rule or (rule.startswith("*.") and host.endswith(rule[1:]))
            for rule in map(str.lower, self.hosts)
        )


@dataclass(slots=True)
class FetchBudget:
    """The size that the documents that are fetched for one query may have together.

    Attributes:
        left_bytes: what is left of `max_bytes`.
    """

    max_bytes: int
    left_bytes: int

    def spend(self, name: str, num_bytes: int) -> None:
        """Count a document. Raises DocumentError if it is too large beside the others of the query."""
        self.left_bytes -= num_bytes
        if self.left_bytes < 0:
            raise DocumentError(
                f"{name:.200}: with it, the documents fetched for the query have more than the "
                f"{self.max_bytes} bytes allowed"
            )


class Fetcher:
    """A client that fetches documents by rules. It is an async context manager, and belongs to one loop.

    A few documents are fetched at a time, and tenants share these fairly. A stranger's server may answer in a
    way that takes long to read, so what they send is read on an event loop of a thread of its own.

    Args:
        resolve: function that finds the addresses of hosts, called on that loop; None asks the system, in
            threads of the fetcher, as a name server that does not answer holds one up for long.
        is_shared: whether there are several tenants.
    """

    def __init__(self, rules: FetchRules, resolve: Resolve | None = None, *, is_shared: bool = False) -> None:
        self.rules = rules
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, "resolving")
        self._resolve = resolve or self._resolved
        self._client: httpx.AsyncClient | None = None
        self._thread: LoopThread | None = None
        self._turns = FairTurns(_MOST_AT_ONCE, is_shared=is_shared)

    async def __aenter__(self) -> Fetcher:
        if self.rules.hosts:
            import httpx

            self._thread = LoopThread()
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,  # a proxy of the environment would resolve names again
                headers={"Accept-Encoding": "identity"},
                timeout=self.rules.timeout_s,
            )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None and self._thread is not None:
            await self._there(self._client.aclose())
            await asyncio.to_thread(self._thread.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def budget(self) -> FetchBudget:
        """Return what may be fetched for a new query."""
        return FetchBudget(self.rules.max_query_bytes, self.rules.max_query_bytes)

    async def fetch(
        self, upload: UnparsedDocument, budget: FetchBudget, tenant: str = ""
    ) -> UnparsedDocument:
        """Fetch the bytes of an upload of a tenant that has a URL, and return the upload with them.

        The type of the content says the format, unless the name does.

        Raises:
            DocumentError: the URL is not allowed, cannot be reached, takes too long, or is too large, alone
                or for the budget of its query.
        """
        assert upload.url is not None
        try:
            async with self._turns.turn(tenant), asyncio.timeout(self.rules.timeout_s):
                self._checked(upload.url)
                data, kind = await self._there(self._follow(upload.url))
        except TimeoutError:
            raise DocumentError(f"{upload.url}: took longer than {self.rules.timeout_s:g} s") from None
        budget.spend(upload.name, len(data))
        known = os.path.splitext(upload.name.lower())[1] in PARSERS
        return replace(upload, data=data, suffix="" if known else _SUFFIXES.get(kind, ""))

    async def _there(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns on the loop of the thread. Cancelling cancels it there."""
        assert self._thread is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._thread.loop))

    async def _resolved(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, as the system knows them. Raises OSError if there is none."""
        loop = asyncio.get_running_loop()
        find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await loop.run_in_executor(self._threads, find)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def _follow(self, url: str) -> tuple[bytes, str]:
        """Return the content of a URL, redirects followed, and the type of the content."""
        for _ in range(_MAX_REDIRECTS + 1):
            parts = self._checked(url)
            found = await self._get(url, parts, await self._address(url, parts))
            if isinstance(found, tuple):
                return found
            url = self._redirected(url, found)
        raise DocumentError(f"{url}: more than {_MAX_REDIRECTS} redirects led here")

    @staticmethod
    def _redirected(url: str, location: str) -> str:
        """Return the URL that a redirect from `url` leads to. Raises DocumentError if it is none."""
        try:
            return urljoin(url, location)
        except ValueError as error:
            raise DocumentError(f"{url:.200}: redirects to {location!r:.200}, which is no URL") from error

    def _checked(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            has_port = parts.port != 0
        except ValueError as error:
            raise DocumentError(f"{url:.200}: is no URL: {error}") from error
        if parts.scheme not in _PORTS or not parts.hostname or not has_port or not url.isprintable():
            raise DocumentError(f"{url:.200}: is no http or https URL")
        if parts.username is not None or parts.password is not None:
            raise DocumentError(f"{parts.hostname}: a URL must not hold a password")
        if not self.rules.allows(parts.hostname):
            raise DocumentError(
                f"{url:.200}: the host {parts.hostname} is not allowed; allowed are "
                f"{', '.join(self.rules.hosts) or 'none'}"
            )
        return parts

    async def _address(self, url: str, parts: SplitResult) -> str:
        assert parts.hostname is not None
        try:
            addresses = await self._resolve(parts.hostname, parts.port or _PORTS[parts.scheme])
        except (OSError, UnicodeError) as error:
            raise DocumentError(f"{url:.200}: the host has no address: {error}") from error
        if not addresses:
            raise DocumentError(f"{url:.200}: the host has no address")
        if not self.rules.allow_private and not all(map(_is_public, addresses)):
            raise DocumentError(f"{url:.200}: the host has a private address, which is not allowed")
        return addresses[0]

    async def _get(self, url: str, parts: SplitResult, address: str) -> tuple[bytes, str] | str:
        """Return the content and its type, or the place to which a redirect points."""
        import httpx

        assert self._client is not None
        assert parts.hostname is not None
        port = "" if parts.port is None else f":{parts.port}"
        target = parts._replace(netloc=bracketed(address) + port, fragment="").geturl()
        try:
            name = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
            self._client.cookies.clear()  # those of earlier documents, which may be another tenant's
            request = self._client.build_request(
                "GET", target, headers={"Host": bracketed(name) + port}, extensions={"sni_hostname": name}
            )
            response = await self._client.send(request, stream=True)
            try:
                return await self._read(url, response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise DocumentError(f"{url:.200}: {type(error).__name__}: {error}") from error

    async def _read(self, url: str, response: httpx.Response) -> tuple[bytes, str] | str:
        if response.has_redirect_location:
            return response.headers["location"]
        if response.status_code != 200:
            raise DocumentError(f"{url:.200}: the server answered with status {response.status_code}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise DocumentError(f"{url:.200}: the server sent compressed content, which was not asked for")
        pieces, num_bytes = list[bytes](), 0
        async for piece in response.aiter_raw():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > self.rules.max_bytes:
                raise DocumentError(f"{url:.200}: has more than the {self.rules.max_bytes} bytes allowed")
        return b"".join(pieces), response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_public(address: str) -> bool:
    """Return whether an address is on the public internet; of an IPv6 address with an IPv4 one in it, whether
    that is.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo[1] if parsed.teredo else None)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
        if parsed in _NAT64:
            return _is_public(str(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)))
        if parsed not in _GLOBAL_UNICAST:  # `is_global` is true of some local and some old kinds
            return False
    return parsed.is_global and not parsed.is_multicast
