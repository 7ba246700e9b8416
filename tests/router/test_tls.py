"""TLS to clients and to workers, over real handshakes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made by cryptography")
from support.certificates import Authority
from support.routing import EVENTS, STREAM, WHOLE, Routing, StubServer, routing, run, until

from stretto.http.tls import ClientTls, ServerTls
from stretto.model.errors import ConfigError
from stretto.operate.certificates import Certificates
from stretto.router.config import RouterConfig
from stretto.router.config_file import read_router_config
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_link import WorkerLink


def shown(pair: tuple[str, str]) -> ServerTls:
    """Return the settings of a server that shows a certificate."""
    certificate, key = pair
    return ServerTls(certificate=certificate, key=key)


async def certificate_of(port: int, believes: ssl.SSLContext) -> str:
    """Return the common name of the certificate that a server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=believes)
    found: Any = writer.get_extra_info("peercert")
    writer.close()
    ((_, name),) = next(one for one in found["subject"] if one[0][0] == "commonName")
    return str(name)


def renew(files: tuple[str, str], by: tuple[str, str]) -> None:
    """Put other files in the place of a certificate and its key, as a tool that renews them does."""
    for file, other in zip(files, by, strict=True):
        os.replace(other, file)


def test_clients_are_answered_in_tls_whole_and_as_streams(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        tls = shown(authority.sign("door"))
        async with routing("well", tls=tls, believes=authority.believing()) as at:
            assert at.router.url.startswith("https://127.0.0.1:")
            assert (await at.ask()).content == WHOLE
            assert (await at.ask(stream=True)).content == STREAM
            assert (await at.client.get("/router/workers")).status_code == 200  # it is local
            assert (await at.client.put("/v1/completions", content=b"{}")).status_code == 405

    run(main())


def test_a_body_that_is_too_large_is_refused_in_tls_and_the_refusal_is_read(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        tls, believes = shown(authority.sign("door")), authority.believing()
        async with routing("well", believes=believes, tls=tls, max_body_bytes=1000) as at:
            assert (await at.ask(prompt="x" * 5000)).status_code == 413
            assert (await at.ask()).content == WHOLE

    run(main())


def test_a_client_that_speaks_no_tls_or_believes_another_authority_gets_no_answer(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")

    async def main() -> None:
        tls = shown(authority.sign("door"))
        async with routing("well", tls=tls, believes=other.believing()) as at:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await at.ask()
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert not (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            assert not at.servers[0].asked

    run(main())


def test_a_client_that_leaves_amid_a_stream_ends_it_at_the_worker(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        tls = shown(authority.sign("door"))
        async with routing("waits", tls=tls, believes=authority.believing()) as at:
            body = {"model": "m", "prompt": "Hello", "stream": True}
            async with at.client.stream("POST", "/v1/completions", json=body) as answer:
                assert await anext(answer.aiter_bytes()) == EVENTS[0]
            await until(lambda: at.servers[0].num_left == 1)

    run(main())


def test_a_renewed_certificate_is_shown_to_new_clients_and_streams_go_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("first")

    async def main() -> None:
        believes = authority.believing()
        async with routing("waits", tls=shown(files), believes=believes) as at:
            body = {"model": "m", "prompt": "Hello", "stream": True}
            async with at.client.stream("POST", "/v1/completions", json=body) as answer:
                parts = answer.aiter_bytes()
                assert await anext(parts) == EVENTS[0]
                assert await certificate_of(at.router.port, believes) == "first"
                renew(files, authority.sign("second"))
                at.router.front.watch.certificates.look()
                assert await certificate_of(at.router.port, believes) == "second"
                at.servers[0].go_on.set()
                assert b"".join([part async for part in parts]) == STREAM[len(EVENTS[0]) :]

    run(main())


def test_a_certificate_is_followed_while_the_router_runs(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("first")

    async def main() -> None:
        believes = authority.believing()
        async with routing("well", tls=shown(files), believes=believes) as at:
            renew(files, authority.sign("second"))
            async with asyncio.timeout(60):
                while await certificate_of(at.router.port, believes) != "second":
                    await asyncio.sleep(0.05)

    run(main())


def test_a_wrong_certificate_changes_nothing_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("first")

    async def main() -> None:
        believes = authority.believing()
        async with routing("well", tls=shown(files), believes=believes) as at:
            os.replace(authority.sign("second")[0], files[0])  # its key has not come yet
            for _ in range(3):
                at.router.front.watch.certificates.look()
            (line,) = [one.getMessage() for one in caplog.records if "stay as they were" in one.getMessage()]
            assert "does not fit" in line
            assert await certificate_of(at.router.port, believes) == "first"
            os.replace(tmp_path / "second.key", files[1])
            at.router.front.watch.certificates.look()
            assert await certificate_of(at.router.port, believes) == "second"

    run(main())


def test_a_certificate_that_goes_while_it_is_read_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(tls: ServerTls) -> float:
        raise FileNotFoundError(tls.certificate)

    authority, certificates = Authority(tmp_path), Certificates()
    files = authority.sign("first")
    certificates.of_server(shown(files))
    renew(files, authority.sign("second"))
    monkeypatch.setattr("stretto.operate.certificates._expiry_s", gone)
    certificates.look()
    assert caplog.text.count("stay as they were") == 1


def test_a_worker_without_tls_reads_no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(tls: ClientTls) -> ssl.SSLContext:
        raise AssertionError(tls)

    monkeypatch.setattr("stretto.http.tls.client_context", read)
    link = WorkerLink(WorkerConfig(url="http://127.0.0.1:8000"), 1.0, Certificates())
    assert not link.connections.address.is_tls


def test_certificates_that_expire_are_named_in_metrics_and_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("soon", days=5)

    async def main() -> None:
        async with routing("well", tls=shown(files), believes=authority.believing()) as at:
            name, certificates = (
                "stretto_certificate_expires_timestamp_seconds",
                at.router.front.watch.certificates,
            )
            expires_s = await at.total(name, file=files[0])
            assert 4.9 * 86_400 < expires_s - certificates.clock() < 5 * 86_400
            assert [one.levelno for one in caplog.records if files[0] in one.getMessage()] == [
                logging.WARNING
            ]
            for days, num_lines in ((4.5, 1), (2.5, 2), (0.5, 3), (0.4, 3), (-0.1, 4), (-1, 4)):
                certificates.clock = lambda at_s=expires_s - days * 86_400: at_s  # type: ignore[misc]
                certificates.look()
                lines = [one for one in caplog.records if files[0] in one.getMessage()]
                assert len(lines) == num_lines, days
            assert lines[-1].levelno == logging.ERROR
            assert "has expired" in lines[-1].getMessage()

    run(main())


def test_an_expired_certificate_is_refused_by_clients_and_renewed_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("old", days=-1)

    async def main() -> None:
        believes = authority.believing()
        async with routing("well", tls=shown(files), believes=believes) as at:
            with pytest.raises(httpx.ConnectError, match="expired"):
                await at.ask()
            renew(files, authority.sign("new"))
            at.router.front.watch.certificates.look()
            assert (await at.ask()).content == WHOLE

    run(main())


def workers_tls(authority: Authority, pair: tuple[str, str] | None = None, **more: Any) -> ClientTls:
    """Return what a router believes and shows."""
    certificate, key = pair or (None, None)
    return ClientTls(ca=str(authority.file), certificate=certificate, key=key, **more)


def test_workers_are_asked_in_tls_with_a_certificate_of_the_router(tmp_path: Path) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    asks = clients.asking(*authority.sign("worker"))
    ours = workers_tls(authority, clients.sign("router"))
    assert ours.certificate is not None
    certificate = ours.certificate

    async def main() -> None:
        async with routing("well", stub_tls=asks, worker_tls=ours) as at:
            assert (await at.ask()).content == WHOLE
            assert (await at.ask(stream=True)).content == STREAM
            assert await at.total("stretto_certificate_expires_timestamp_seconds", file=certificate) > 0

    run(main())


@pytest.mark.parametrize("shows", [False, True])
def test_a_worker_that_refuses_the_routers_certificate_is_left_with_the_reason(
    tmp_path: Path, *, shows: bool
) -> None:
    """TLS 1.3 tells a client of that only after its handshake."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    asks = authority.asking(*authority.sign("worker"))
    ours = workers_tls(authority, other.sign("router") if shows else None)

    async def main() -> None:
        async with routing("well", stub_tls=asks, worker_tls=ours) as at:
            (worker,) = at.router_state.view.workers()
            assert worker.state == "starting"
            assert "certificate" in worker.reason or "unknown ca" in worker.reason.lower(), worker.reason

    run(main())


@pytest.mark.parametrize(
    ("days", "names", "why"),
    [(-1.0, (), "certificate has expired"), (90.0, ("elsewhere",), "not valid for '127.0.0.1'")],
)
def test_a_worker_whose_certificate_is_wrong_is_left_with_the_reason(
    tmp_path: Path, days: float, names: tuple[str, ...], why: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("worker", days=days, names=names)
    stub = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    stub.load_cert_chain(certificate, key)

    async def main() -> None:
        async with routing("well", stub_tls=stub, worker_tls=workers_tls(authority)) as at:
            (worker,) = at.router_state.view.workers()
            assert why in worker.reason
        if names:
            named = workers_tls(authority, server_name=names[0])
            async with routing("well", stub_tls=stub, worker_tls=named) as at:
                assert (await at.ask()).content == WHOLE

    run(main())


def test_a_workers_own_settings_go_before_the_routers(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")

    async def main() -> None:
        server = StubServer()
        server.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.tls.load_cert_chain(*authority.sign("worker"))
        await server.open()
        config = RouterConfig(
            worker=(WorkerConfig(url=server.url, tls=workers_tls(authority)),),
            worker_tls=workers_tls(other),
            port=0,
        )
        async with RunningRouter(config) as router, httpx.AsyncClient(base_url=router.url) as client:
            at = Routing(router, [server], client)
            assert (await at.client.post("/v1/completions", json={"prompt": "Hello"})).content == WHOLE
        server.kill()

    run(main())


def test_a_renewed_certificate_of_the_router_is_shown_to_workers(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    asks = authority.asking(*authority.sign("worker"))
    files = other.sign("router")

    async def main() -> None:
        async with routing("well", stub_tls=asks, worker_tls=workers_tls(authority, files)) as at:
            (worker,) = at.router_state.view.workers()
            assert worker.state == "starting"
            renew(files, authority.sign("renewed"))
            at.router.front.watch.certificates.look()
            await until(lambda: worker.state == "serving")
            assert (await at.ask()).content == WHOLE

    run(main())


def test_files_that_cannot_be_used_are_refused_before_any_work(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("one")
    _, other_key = authority.sign("two")
    locked = authority.sign("locked", password=b"secret")
    empty = tmp_path / "empty.pem"
    empty.touch()
    for pair, why in (
        ((certificate, str(tmp_path / "no.key")), "no.key' cannot be read: No such file"),
        ((str(tmp_path), key), "cannot be read: Is a directory"),
        ((certificate, other_key), "does not fit"),
        ((key, certificate), "must be a certificate"),
        ((str(empty), key), "must be a certificate"),
        (locked, "has a password"),
    ):
        with pytest.raises(ConfigError, match="TLS") as refused:
            shown(pair)
        assert why in refused.value.message, refused.value.message
    for settings, why in (
        ({"certificate": certificate}, "give both"),
        ({"ca": str(empty)}, "has no certificates"),
        ({"ca": str(tmp_path / "no.pem")}, "cannot be read"),
        ({"ca": "a\0b"}, "cannot be read: embedded null byte"),
        ({"server_name": ""}, "server_name is ''"),
        ({"server_name": ".x"}, "server_name is '.x'"),
        ({"server_name": "a\0b"}, "must be the name of a host"),
        ({"certificate": certificate, "key": other_key}, "does not fit"),
    ):
        with pytest.raises(ConfigError, match=why):
            ClientTls(**settings)
    with pytest.raises(ConfigError, match="only of use with a URL that begins with https"):
        WorkerConfig(url="http://127.0.0.1:1", tls=ClientTls())


def test_a_file_of_settings_has_all_of_tls_and_names_the_line_of_what_is_wrong(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("one")
    file = tmp_path / "router.toml"
    text = f"""
[router]
tls = {{ certificate = "{certificate}", key = "{key}" }}
worker_tls = {{ ca = "{authority.file}" }}

[[router.worker]]
url = "https://127.0.0.1:1"
tls = {{ ca = "{authority.file}", certificate = "{certificate}", key = "{key}", server_name = "w" }}
"""
    file.write_text(text)
    config = read_router_config(file)
    assert config.tls == ServerTls(certificate=certificate, key=key)
    assert config.worker[0].tls == ClientTls(
        ca=str(authority.file), certificate=certificate, key=key, server_name="w"
    )
    file.write_text(text.replace(f'key = "{key}" }}\n', 'key = "gone" }\n'))
    with pytest.raises(ConfigError, match=r"router\.toml:3: .*'gone' cannot be read"):
        read_router_config(file)


def test_a_silent_client_and_one_that_sends_garbage_hold_up_nobody(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        tls = shown(authority.sign("door"))
        async with routing("well", tls=tls, believes=authority.believing()) as at:
            silent = socket.create_connection(("127.0.0.1", at.router.port))
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", at.router.port)) as garbage:
                    garbage.sendall(os.urandom(500))
            assert (await at.ask()).content == WHOLE
            silent.close()

    run(main())
