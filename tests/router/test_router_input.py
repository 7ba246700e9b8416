"""Bad input: a 4xx that names it, or a typed error before the start; the router goes on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from support.emulated import MODEL, fleet_of
from support.routing import WHOLE, routing, run

from stretto.emulate.serve import EmulatedServers
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.config_file import read_router_config
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{broken", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"model": 3}', "must be a text"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": ["a", ' + b"[" * 900 + b"]" * 900 + b"]}", "nested too deeply"),
    ],
)
def test_a_broken_body_is_refused_by_the_router(body: bytes, named: str) -> None:
    async def main() -> None:
        async with routing("well") as at:
            reply = await at.client.post("/v1/completions", content=body)
            assert reply.status_code == 400
            assert named in reply.json()["error"]["message"]
            assert not at.servers[0].asked
            assert (await at.ask()).content == WHOLE

    run(main())


def test_what_the_router_refuses_itself_is_counted() -> None:
    async def main() -> None:
        async with routing("well", max_body_bytes=1000) as at:
            for path, body, status in (
                ("/v1/completions", b"{broken", 400),
                ("/nowhere", b"{}", 404),
                ("/v1/completions", b"x" * 1001, 413),
            ):
                assert (await at.client.post(path, content=body)).status_code == status
                assert await at.total("stretto_refused_total", status=str(status)) == 1

    run(main())


def test_strange_prompts_are_the_workers_to_refuse() -> None:
    async def main() -> None:
        async with routing("well") as at:
            prompt: object
            for prompt in (None, 3, [], [[]], [1, "a"], [[1], "b"], [-1], [2**70], {"a": [{}]}, [None]):
                assert (await at.ask(prompt=prompt, max_tokens="x")).content == WHOLE
            for messages in (None, 3, [None], [{"content": None}], [{"content": [{"text": 3}], "x": {}}]):
                body = {"messages": messages, "tools": 3}
                assert (await at.client.post("/v1/chat/completions", json=body)).content == WHOLE

    run(main())


def test_a_body_of_100_mb_is_refused_with_413() -> None:
    async def main() -> None:
        async with routing("well") as at:
            for announced in (True, False):
                reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
                size = b"Content-Length: 100000000" if announced else b"Transfer-Encoding: chunked"
                writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + size + b"\r\n\r\n")
                for _ in range(100):
                    part = b"x" * 1_000_000
                    writer.write(part if announced else b"f4240\r\n" + part + b"\r\n")
                    await writer.drain()
                assert b"413 Content Too Large" in await reader.readline()
                writer.close()
            assert (await at.ask()).content == WHOLE

    run(main())


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_http_is_refused_with_400(data: bytes) -> None:
    async def main() -> None:
        async with routing("well") as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(data)
            assert b"400 Bad Request" in await reader.readline()
            writer.close()

    run(main())


def test_a_huge_head_is_refused_with_431() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reply = await at.client.post("/v1/completions", json={}, headers={"x": "y" * 70_000})
            assert reply.status_code == 431

    run(main())


def test_unknown_models_and_long_prompts_are_refused_by_the_worker() -> None:
    async def main() -> None:
        async with EmulatedServers(fleet_of(2, max_context_tokens=100)) as servers:
            await servers.ready()
            async with routing(urls=tuple(servers.urls)) as at:
                asked = {"model": MODEL, "prompt": "word " * 30, "max_tokens": 3}
                good = await at.client.post("/v1/completions", json=asked)
                assert good.json()["usage"]["completion_tokens"] == 3
                unknown = await at.client.post("/v1/completions", json={**asked, "model": "gpt-9"})
                assert (unknown.status_code, "gpt-9" in unknown.text) == (404, True)
                long = await at.client.post("/v1/completions", json={**asked, "prompt": "word " * 3000})
                assert (long.status_code, "maximum context length is 100" in long.text) == (400, True)
                assert at.router_state.view.worker(0).kv_tokens > 10_000
                assert all(worker.state == "serving" for worker in at.router_state.view.workers())

    run(main())


def test_the_workers_can_only_be_changed_as_they_are() -> None:
    async def main() -> None:
        async with routing("well") as at:
            url = at.servers[0].url
            for body, named in (
                ({"url": url}, "is there already"),
                ({"url": "ftp://x"}, "must be a URL"),
                ({"url": 3}, "url must be a text, got 3"),
                ({"url": url, "colour": 1}, "unknown key 'colour'"),
                ({"url": "http://x", "num_slots": "many"}, "num_slots must be a whole number, got 'many'"),
                ([], "must be an object"),
                ({}, "'url' is missing"),
                ({"url": "http://x", "dns": {}}, "unknown key 'dns'"),
                ({"url": "http://x", "tls": {}}, "only of use with a URL that begins with https"),
            ):
                reply = await at.client.post("/router/workers", json=body)
                assert (reply.status_code, named in reply.text) == (400, True), reply.text
            for path in ("/router/workers/7", "/router/workers/x", "/router/workers/-1"):
                assert (await at.client.delete(path)).status_code == 400
            assert (await at.client.post("/router/workers/0/dance")).status_code == 404
            (listed,) = (await at.client.get("/router/workers")).json()
            assert (listed["url"], listed["state"], listed["models"]) == (url, "serving", ["m"])

    run(main())


def test_a_web_page_cannot_change_the_workers() -> None:
    async def main() -> None:
        async with routing("well") as at:
            page = {"origin": "https://example.com", "content-type": "text/plain"}
            for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/0"), ("POST", "/0/drain")):
                reply = await at.client.request(method, f"/router/workers{path}", headers=page)
                assert (reply.status_code, "header Origin" in reply.text) == (403, True)
            assert at.router_state.view.worker(0).state == "serving"

    run(main())


def test_a_worker_that_speaks_no_http_is_an_error_at_the_start() -> None:
    class Talker(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert hasattr(transport, "write")
            transport.write(b"SSH-2.0-stub\r\n")

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Talker, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConfigError, match="does not speak HTTP"):
            async with RunningRouter(RouterConfig(worker=(WorkerConfig(url=url),), port=0)):
                pass
        server.close()

    run(main())


def test_a_port_in_use_is_an_error_at_the_start() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used: it is in use"):
                async with RunningRouter(RouterConfig(port=port)):
                    pass

    run(main())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"placement": "by_taste"}, "there is no placement 'by_taste'; there are .*least_loaded"),
        ({"port": 70000}, "must be from 0 to 65535"),
        ({"max_wait_s": float("inf")}, "max_wait_s is inf"),
        ({"max_waiting": -1}, "max_waiting is -1"),
        ({"worker": (WorkerConfig(url="http://a"), WorkerConfig(url="http://a/"))}, "given twice"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RouterConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "http://", "http://a b", "http://u@a", "http://a:99999"),
        *("http://a..b", f"http://{'a' * 64}", "http://.", "http://a/\0"),
    ],
)
def test_wrong_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be a URL"):
        WorkerConfig(url=url)


@pytest.mark.parametrize("url", ["http://a.example.", "http://[::1]:9", "http://127.0.0.1:1/v2", "https://a"])
def test_addresses_of_all_kinds_are_taken(url: str) -> None:
    assert WorkerConfig(url=url).url == url


def test_a_file_has_all_settings(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text(
        '[router]\nplacement = "round_robin"\nmax_wait_s = 5\n'
        '[[router.worker]]\nurl = "http://a:1"\nnum_slots = 4\nprofile = {per_unit_s = 2e-4}\n'
    )
    config = read_router_config(path)
    assert (config.placement, config.max_wait_s, config.worker[0].num_slots) == ("round_robin", 5.0, 4)
    assert config.worker[0].profile.per_unit_s == 2e-4
    for text, named in (("[router]\ncolour = 1\n", "unknown key 'colour'"), ("[machine]\n", "no table")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=named):
            read_router_config(path)
