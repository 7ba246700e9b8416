"""Documents at URLs: which hosts are asked, at which addresses, and how much is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from stretto.model.errors import ConfigError, DocumentError
from stretto.service.apps.fetching import Fetcher, FetchRules
from stretto.service.apps.inputs import UnparsedDocument

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"


def ok(data: bytes, kind: bytes = b"text/html; charset=utf-8") -> bytes:
    return OK % (kind, len(data), data)


def redirect(to: str) -> bytes:
    return (
        b"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % to.encode()
    )


@asynccontextmanager
async def server(answers: Mapping[str, bytes | None], seen: list[str]) -> AsyncIterator[int]:
    """A server on 127.0.0.1 that answers by path; None never answers. Yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        seen.append(f"{head.lower().partition('host: ')[2].partition(chr(13))[0]} {path}")
        answer = answers[path]
        if answer is None:
            await asyncio.sleep(3600)
        else:
            writer.write(answer)
            writer.close()

    tasks: set[asyncio.Task[None]] = set()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    listening = await asyncio.start_server(start, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def names(addresses: Mapping[str, str]) -> Callable[[str, int], object]:
    async def resolve(host: str, port: int) -> list[str]:
        return [addresses[host]] if host in addresses else []

    return resolve


LOCAL = {"docs.test": "127.0.0.1", "a.docs.test": "127.0.0.1", "other.test": "127.0.0.1"}


def fetched(
    path: str,
    answers: Mapping[str, bytes | None],
    *,
    host: str = "docs.test",
    rules: FetchRules | None = None,
    seen: list[str] | None = None,
) -> UnparsedDocument:
    """Fetch a path from a local server that the name `host` stands for."""
    given = rules or FetchRules(("docs.test",), allow_private=True)

    async def run() -> UnparsedDocument:
        async with (
            server(answers, [] if seen is None else seen) as port,
            Fetcher(given, names(LOCAL)) as fetcher,  # type: ignore[arg-type]
        ):
            url = f"http://{host}:{port}{path}"
            return await fetcher.fetch(UnparsedDocument(url, None, url, "inputs.files[0]"), fetcher.budget())

    return asyncio.run(run())


def test_a_document_is_fetched_from_an_allowed_host() -> None:
    seen: list[str] = []
    found = fetched("/a?b=1#c", {"/a?b=1": ok(b"<p>Hello</p>")}, seen=seen)
    assert (found.data, found.suffix) == (b"<p>Hello</p>", ".html")
    assert found.name.startswith("http://docs.test:")
    assert seen[0].startswith("docs.test:")


def test_the_name_says_the_format_before_the_type_does() -> None:
    assert fetched("/a.md", {"/a.md": ok(b"# x", b"text/html")}).suffix == ""


@pytest.mark.parametrize(
    ("hosts", "host", "is_allowed"),
    [
        (("docs.test",), "docs.test", True),
        (("docs.test",), "DOCS.test.", True),
        (("docs.test",), "a.docs.test", False),
        (("*.docs.test",), "a.docs.test", True),
        (("*.docs.test",), "docs.test", False),
        (("*.docs.test",), "evildocs.test", False),
        (("*",), "anything", True),
        ((), "docs.test", False),
    ],
)
def test_hosts_are_allowed_by_name(hosts: tuple[str, ...], host: str, is_allowed: bool) -> None:
    assert FetchRules(hosts).allows(host) is is_allowed


@pytest.mark.parametrize("host", ["http://a", "a/b", "a:1", "", "*.", "a b", "x*"])
def test_a_rule_that_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        FetchRules((host,))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://docs.test/a",
        "file:///etc/passwd",
        "docs.test/a",
        "http://",
        "http://docs.test:99999/",
        "http://docs.test:x/",
        "http://[::1/",
        "http://me:secret@docs.test/",
        "http://docs.test/\r\nX: y",
        "http://docs.test@other.test/",
        "http://other.test/",
        "http://unknown.docs.test/",
    ],
)
def test_a_url_that_is_not_allowed_is_refused_before_any_request(url: str) -> None:
    async def run() -> None:
        rules = FetchRules(("docs.test", "*.docs.test"), allow_private=True)
        async with Fetcher(rules, names(LOCAL)) as fetcher:  # type: ignore[arg-type]
            await fetcher.fetch(UnparsedDocument("a", None, url, "x"), fetcher.budget())

    with pytest.raises(DocumentError):
        asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["http://docs.test:1/" + "a" * 70_000, "http://" + "\u00fc" * 70 + ".test:1/"]
)
def test_a_url_that_cannot_be_asked_is_an_error_of_the_document(url: str) -> None:
    async def resolved(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> None:
        async with Fetcher(FetchRules(("*",), allow_private=True), resolved) as fetcher:
            await fetcher.fetch(UnparsedDocument("a", None, url, "x"), fetcher.budget())

    with pytest.raises(DocumentError, match=r"InvalidURL|UnicodeError"):
        asyncio.run(run())


def test_a_host_beyond_ascii_is_asked_by_its_ascii_name() -> None:
    async def resolved(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> list[str]:
        seen: list[str] = []
        rules = FetchRules(("b\u00fccher.test",), allow_private=True)
        async with server({"/a": ok(b"x")}, seen) as port, Fetcher(rules, resolved) as fetcher:
            await fetcher.fetch(
                UnparsedDocument("a", None, f"http://b\u00fccher.test:{port}/a", "x"), fetcher.budget()
            )
        return seen

    (seen,) = asyncio.run(run())
    assert seen.startswith("xn--bcher-kva.test:")


def test_cookies_of_a_document_are_not_sent_for_the_next() -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(ok(b"x").replace(b"Connection", b"Set-Cookie: who=first; Path=/\r\nConnection"))
        writer.close()

    async def run() -> None:
        rules = FetchRules(("*.test",), allow_private=True)
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, Fetcher(rules, names(LOCAL)) as fetcher:  # type: ignore[arg-type]
            for host in ("docs.test", "other.test"):
                await fetcher.fetch(
                    UnparsedDocument("a", None, f"http://{host}:{port}/a", "x"), fetcher.budget()
                )

    asyncio.run(run())
    assert len(heads) == 2
    assert not any("cookie" in head for head in heads)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1"),
        *("::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::"),
        *("::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "fec0::1"),
    ],
)
def test_private_addresses_are_not_asked(address: str) -> None:
    async def run() -> None:
        async with Fetcher(FetchRules(("*",)), names({"x.test": address})) as fetcher:  # type: ignore[arg-type]
            await fetcher.fetch(UnparsedDocument("a", None, "http://x.test/", "x"), fetcher.budget())

    with pytest.raises(DocumentError, match="has a private address"):
        asyncio.run(run())


def test_redirects_are_followed_within_the_rules() -> None:
    found = fetched("/a", {"/a": redirect("/b"), "/b": ok(b"there")})
    assert found.data == b"there"
    with pytest.raises(DocumentError, match=r"the host other\.test is not allowed"):
        fetched("/a", {"/a": redirect("http://other.test/b")})
    with pytest.raises(DocumentError, match="no http or https URL"):
        fetched("/a", {"/a": redirect("file:///etc/passwd")})
    with pytest.raises(DocumentError, match="more than 5 redirects"):
        fetched("/a", {"/a": redirect("/a")})


@pytest.mark.parametrize(
    "location", ["http://[", "http://[::1", "//[x", "http://a]b/", "http://docs.test:x/"]
)
def test_a_redirect_to_no_url_is_an_error_of_the_document(location: str) -> None:
    with pytest.raises(DocumentError, match=r"is no URL|InvalidURL|RemoteProtocolError"):
        fetched("/a", {"/a": redirect(location)})


def test_no_more_is_read_than_allowed() -> None:
    rules = FetchRules(("docs.test",), allow_private=True, max_bytes=10)
    assert fetched("/a", {"/a": ok(b"x" * 10)}, rules=rules).data == b"x" * 10
    endless = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 11
    for answer in (ok(b"x" * 11), endless):
        with pytest.raises(DocumentError, match="more than the 10 bytes allowed"):
            fetched("/a", {"/a": answer}, rules=rules)


def test_other_answers_are_errors() -> None:
    zipped = ok(b"x").replace(b"Connection", b"Content-Encoding: gzip\r\nConnection")
    for answer, message in (
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n", "status 304"),
        (b"HTTP/1.1 300 Choose\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "status 300"),
        (zipped, "compressed"),
        (b"nonsense\r\n\r\n", "ProtocolError"),
        (b"", "ProtocolError"),
    ):
        with pytest.raises(DocumentError, match=message):
            fetched("/a", {"/a": answer})


def test_a_server_that_does_not_answer_costs_its_time_alone() -> None:
    rules = FetchRules(("docs.test",), allow_private=True, timeout_s=0.2)
    with pytest.raises(DocumentError, match=r"took longer than 0\.2 s"):
        fetched("/a", {"/a": None}, rules=rules)
