"""Two running routers before the same servers, which tell each other what they send there."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from support.routing import PATIENCE_S, StubServer, run, until

from stretto.model.errors import ConfigError
from stretto.router.announcing.wire import TOPIC
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig

PROMPT = "The harbour lies in the north, and its lanterns burn all night. " * 40


def config_of(servers: list[StubServer], folder: Path, name: str, others: str) -> RouterConfig:
    return RouterConfig(
        worker=tuple(WorkerConfig(url=server.url) for server in servers),
        port=0,
        announce=f"ipc://{folder}/{name}",
        peer=tuple(f"ipc://{folder}/{other}" for other in others),
    )


@asynccontextmanager
async def two_routers(
    folder: Path, *modes: str
) -> AsyncIterator[tuple[list[RunningRouter], list[StubServer]]]:
    """Run two routers before stub servers, and wait until each has heard of the other."""
    async with AsyncExitStack() as stack:
        servers = [StubServer(mode) for mode in modes]
        for server in servers:
            await server.open()
            stack.callback(server.kill)
        routers = [
            await stack.enter_async_context(RunningRouter(config_of(servers, folder, name, other)))
            for name, other in ("ab", "ba")
        ]
        await until(lambda: all(one.peers is not None and one.peers.num_peers == 1 for one in routers))
        yield routers, servers


def loads(router: RunningRouter) -> list[int]:
    """Return how many requests run at each worker, as a router counts them."""
    state = router.front.router_state
    views = [state._loads.table.get(worker.id) for worker in state.view.workers()]
    return [-1 if view is None else view.num_running for view in views]


def has_heard(router: RunningRouter, num: int) -> bool:
    return heard_of(router) >= num


def heard_of(router: RunningRouter) -> int:
    """Return how many records of others a router has applied."""
    assert router.peers is not None
    return router.peers.num_heard


async def ask(router: RunningRouter, *, stream: bool = False, prompt: str = PROMPT) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, verify=False) as client:
        body = json.dumps({"model": "m", "prompt": prompt, "stream": stream, "max_tokens": 5})
        return await client.post(
            "/v1/completions", content=body, headers={"content-type": "application/json"}
        )


def test_prompts_go_where_the_other_router_has_sent_their_beginning(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_routers(tmp_path, "well", "well", "well") as (routers, _):
            for number in range(6):
                prompt = f"{number} {PROMPT}"
                one, other = routers if number % 2 else reversed(routers)
                heard = heard_of(other)
                first = await ask(one, prompt=prompt)
                await until(partial(has_heard, other, heard + 2))
                heard = heard_of(one)
                again = await ask(other, prompt=prompt + "More of it. " * 50)
                await until(partial(has_heard, one, heard + 2))
                assert first.status_code == again.status_code == 200
                assert first.headers["x-stretto-worker"] == again.headers["x-stretto-worker"]
                assert "holds" in again.headers["x-stretto-reason"]
            await until(lambda: all(loads(one) == [0, 0, 0] for one in routers))

    run(main())


def test_what_runs_at_one_router_counts_at_the_other_until_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_routers(tmp_path, "waits", "waits") as (routers, servers):
            asked = [asyncio.create_task(ask(routers[0], prompt=str(number))) for number in range(2)]
            await until(lambda: loads(routers[1]) == [1, 1])
            for server in servers:
                server.go_on.set()
            assert [(await one).status_code for one in asked] == [200, 200]
            await until(lambda: loads(routers[1]) == [0, 0])

    run(main())


def test_a_router_that_ends_takes_its_loads_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_routers(tmp_path, "waits", "well") as (routers, servers):
            async with AsyncExitStack() as third:
                config = config_of(servers, tmp_path, "c", "ab")
                late = await third.enter_async_context(RunningRouter(config))
                assert late.peers is not None
                await until(lambda: late.peers is not None and late.peers.num_peers == 2)
                asked = asyncio.create_task(ask(routers[0]))
                await until(lambda: sum(loads(late)) == 1)
            servers[0].go_on.set()
            assert (await asked).status_code == 200

    run(main())


def test_metrics_and_the_log_tell_which_routers_are_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.router.peers.peers.SILENT_S", 600.0)  # on a busy machine too

    def told(verb: str) -> list[str]:
        return [one.message for one in caplog.records if f"another router is {verb}:" in one.message]

    async def heard_by(router: RunningRouter) -> list[str]:
        async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, verify=False) as client:
            lines = (await client.get("/metrics")).text.splitlines()
        return [line for line in lines if line.startswith("stretto_peers_heard")]

    async def main() -> None:
        server = StubServer("well")
        await server.open()
        try:
            async with RunningRouter(config_of([server], tmp_path, "a", "b")) as router:
                link = router.peers
                assert link is not None
                assert await heard_by(router) == ["stretto_peers_heard 0.0"]
                async with RunningRouter(config_of([server], tmp_path, "b", "a")) as other:
                    await until(lambda: link.num_peers == 1)
                    assert await heard_by(router) == ["stretto_peers_heard 1.0"]
                    assert other.peers is not None
                    process = other.peers._peers.announcer.origin
                await until(lambda: link.num_peers == 0)
                assert await heard_by(router) == ["stretto_peers_heard 0.0"]
            config = RouterConfig(worker=(WorkerConfig(url=server.url),), port=0)
            async with RunningRouter(config) as without:
                assert await heard_by(without) == []
        finally:
            server.kill()
        assert f"this router announces at ipc://{tmp_path}/b: process {process!r}" in caplog.text
        (heard,) = [line for line in told("heard") if process in line]
        assert heard.endswith("routers that are heard now: 1, addresses in peer: 1")
        (forgotten,) = told("forgotten")
        assert process in forgotten
        assert forgotten.endswith("routers that are heard now: 0, addresses in peer: 1")

    with caplog.at_level(logging.INFO, "stretto.router.peer_link"):
        run(main())


def test_what_is_no_message_is_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import zmq

    async def main() -> None:
        hostile = zmq.Context().socket(zmq.PUB)
        hostile.linger = 0
        hostile.bind(f"ipc://{tmp_path}/b")
        server = StubServer("well")
        await server.open()
        try:
            async with RunningRouter(config_of([server], tmp_path, "a", "b")) as router:
                for _ in range(2):
                    while "is ignored" not in caplog.text:
                        for frames in ([TOPIC, b"\xc1"], [b"stretto-peers-99", b""], [TOPIC], [TOPIC] * 3):
                            hostile.send_multipart(frames)
                        await asyncio.sleep(0.005)
                assert (await ask(router)).status_code == 200
                assert sum("is ignored" in one.message for one in caplog.records) == 1
        finally:
            server.kill()
            hostile.close()

    with caplog.at_level(logging.WARNING):
        run(main())


def test_routers_hear_each_other_at_ipv6_addresses() -> None:
    async def main() -> None:
        async with RunningRouter(RouterConfig(port=0, announce="tcp://[::1]:*")) as router:
            assert router.peers is not None
            told = router.peers.address
            assert told.startswith("tcp://[::1]:")
            config = RouterConfig(port=0, announce="tcp://[::1]:*", peer=("tcp://localhost:9", told))
            async with RunningRouter(config) as other:
                assert other.peers is not None
                await until(lambda: other.peers is not None and other.peers.num_peers == 1)

    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    run(main())


def test_an_address_that_cannot_be_used_is_an_error() -> None:
    async def main() -> None:
        async with RunningRouter(RouterConfig(port=0, announce="tcp://127.0.0.1:*")) as router:
            assert router.peers is not None
            for address in (router.peers.address, "tcp://256.0.0.1:7400"):
                with pytest.raises(ConfigError, match="cannot be used to talk to other routers"):
                    async with RunningRouter(RouterConfig(port=0, announce=address)):
                        pass

    run(main())
