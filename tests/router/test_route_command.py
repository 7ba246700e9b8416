"""The command `stretto route`."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made by cryptography")
from support.certificates import Authority
from support.collector import collecting
from support.routing import EVENTS, WHOLE, StubServer, run, until

from stretto.cli.route import RouteOptions, route
from stretto.model.errors import ConfigError, UserError


@asynccontextmanager
async def command(server: StubServer, *more: str) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """Run the command before a server; yields its process, and a client of it."""
    await server.open()
    line = (sys.executable, "-m", "stretto.cli.main", "route", "--worker", server.url, "--port", "0", *more)
    process = await asyncio.create_subprocess_exec(*line, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    said = (await process.stderr.readline()).decode()
    assert said.endswith("1 worker, placement stretto\n")
    async with httpx.AsyncClient(base_url=said.split()[0], timeout=60) as client:
        yield process, client
    server.kill()


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    async def main() -> None:
        with collecting() as collector:
            options = ("--record", str(tmp_path / "log"), "--otel", collector.url)
            await serve_and_interrupt(*options)
        assert b"invoke_workflow" in b"".join(collector.bodies)

    async def serve_and_interrupt(*options: str) -> None:
        async with command(StubServer(), *options) as (process, client):
            reply = await client.post("/v1/completions", json={"prompt": "Hello"})
            assert reply.content == WHOLE
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
            assert '"status":200' in (tmp_path / "log").read_text()

    run(main())


def test_a_hangup_reads_certificates_anew(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("first")
    believes = authority.believing()

    async def main() -> None:
        server = StubServer("waits")
        server.tls = authority.asking(*authority.sign("worker"))
        await server.open()
        of_worker = authority.sign("router")
        line = (sys.executable, "-m", "stretto.cli.main", "route", "--worker", server.url, "--port", "0")
        files = ("--tls-certificate", certificate, "--tls-key", key, "--worker-ca", str(authority.file))
        shown = ("--worker-certificate", of_worker[0], "--worker-key", of_worker[1])
        process = await asyncio.create_subprocess_exec(*line, *files, *shown, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        url = (await process.stderr.readline()).decode().split()[0]
        async with httpx.AsyncClient(base_url=url, timeout=60, verify=believes) as client:
            asked = {"prompt": "Hello", "stream": True}
            async with client.stream("POST", "/v1/completions", json=asked) as reply:
                parts = reply.aiter_bytes()
                assert await anext(parts) == EVENTS[0]
                process.send_signal(signal.SIGHUP)
                assert b"certificates were read anew" in await process.stderr.readline()
                server.go_on.set()
                assert b"".join([part async for part in parts]).endswith(b"[DONE]\n\n")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
        server.kill()

    run(main())


def test_a_second_interrupt_ends_what_the_first_one_lets_go_on() -> None:
    async def main() -> None:
        server = StubServer("waits")
        async with command(server) as (process, client):
            asked = {"prompt": "Hello", "stream": True}
            async with client.stream("POST", "/v1/completions", json=asked) as reply:
                parts = reply.aiter_bytes()
                assert await anext(parts) == EVENTS[0]
                process.send_signal(signal.SIGTERM)
                assert process.stderr is not None
                assert b"finishes 1 request" in await process.stderr.readline()
                process.send_signal(signal.SIGINT)
                with pytest.raises(httpx.RemoteProtocolError):
                    await anext(parts)
            assert await process.wait() == 128 + signal.SIGTERM
            await until(lambda: not server.transports)

    run(main())


def test_wrong_options_are_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the servers with --worker"):
        route(RouteOptions())
    with pytest.raises(ConfigError, match="there is no placement 'by_taste'"):
        route(RouteOptions(workers=("http://a",), placement="by_taste"))
    with pytest.raises(ConfigError, match="must be a URL"):
        route(RouteOptions(workers=("a:80",)))
    with pytest.raises(ConfigError, match="cannot be read"):
        route(RouteOptions(config=tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match="cannot be written"):
        route(RouteOptions(workers=("http://127.0.0.1:1",), port=0, record=tmp_path / "absent" / "log"))
