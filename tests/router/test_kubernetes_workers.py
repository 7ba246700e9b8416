"""Workers at endpoints of Kubernetes, by its official client, before a stand-in for its API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("kubernetes", reason="the extra kubernetes is not installed")
from support.kubernetes_api import FakeApi, slice_of
from support.routing import EVENTS, STREAM, StubServer, run, until

from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.discovery.sources import worker_sources
from stretto.router.found_workers import KubernetesConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig

ENTRY = WorkerConfig(
    url="http://vllm", num_slots=9, kubernetes=KubernetesConfig(selector="app=vllm", namespace="prod")
)


@asynccontextmanager
async def routed(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *modes: str
) -> AsyncIterator[tuple[RunningRouter, list[StubServer]]]:
    """Run a router before what an API tells, and servers."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path))
    servers = [StubServer(mode) for mode in modes]
    for server in servers:
        await server.open()
    api.put(slice_of("vllm-0", servers[0].port, "127.0.0.1", unready=["127.0.0.9"]))
    async with RunningRouter(RouterConfig(worker=(ENTRY,), port=0)) as router:
        await until(lambda: serving(router, servers[0]))
        yield router, servers
    for server in servers:
        server.kill()


def states(router: RunningRouter) -> dict[str, str]:
    """Return the states of a router's workers."""
    return {one.config.url: one.state for one in router.front.router_state.view.workers()}


def serving(router: RunningRouter, *servers: StubServer) -> bool:
    """Return whether these are the workers, and all serve."""
    return states(router) == {one.url: "serving" for one in servers}


def test_endpoints_that_come_and_go_are_followed_and_streams_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with FakeApi() as api:
            async with (
                routed(api, tmp_path, monkeypatch, "waits", "well") as (router, (one, other)),
                httpx.AsyncClient(base_url=router.url, timeout=60) as client,
            ):
                asked = {"model": "m", "prompt": "Hello", "stream": True}
                async with client.stream("POST", "/v1/completions", json=asked) as answer:
                    parts = answer.aiter_bytes()
                    assert await anext(parts) == EVENTS[0]
                    api.put(slice_of("vllm-1", other.port, "127.0.0.1"))
                    await until(lambda: serving(router, one, other))
                    api.put(slice_of("vllm-0", one.port, unready=["127.0.0.1"]))
                    await until(lambda: states(router) == {one.url: "draining", other.url: "serving"})
                    one.go_on.set()
                    assert b"".join([part async for part in parts]) == STREAM[len(EVENTS[0]) :]
                await until(lambda: serving(router, other))
                (listed,) = (await client.get("/admin/workers")).json()
                assert (listed["source"], listed["num_slots"]) == ("kubernetes app=vllm (http://vllm)", 9)
                api.bookmark()
                api.delete("vllm-1")
                await until(lambda: not states(router))
            assert {query["labelSelector"] for query in api.asked} == {"app=vllm"}
            assert [query.get("watch") for query in api.asked[:2]] == [None, "true"]
            assert api.asked[1]["allowWatchBookmarks"] == "true"

    run(main())


def test_workers_stay_while_the_api_is_away_and_what_has_changed_counts_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with FakeApi() as api:
            async with routed(api, tmp_path, monkeypatch, "well", "well") as (router, (one, other)):
                api.close()
                await until(lambda: "its workers stay" in caplog.text)
                assert serving(router, one)
                api.put(slice_of("vllm-1", other.port, "127.0.0.1"), quietly=True)
                api.delete("vllm-0", quietly=True)
                api.open()
                await until(lambda: serving(router, other))
                await until(lambda: "the API answers again" in caplog.text)

    run(main())


@pytest.mark.parametrize("at_once", [True, False])
def test_after_410_gone_endpoints_are_listed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    async def main() -> None:
        with FakeApi() as api:
            api.says_gone_at_once, api.watch_s = at_once, 0.05
            async with routed(api, tmp_path, monkeypatch, "well", "well") as (router, (one, other)):
                num_lists = len([query for query in api.asked if "watch" not in query])
                api.put(slice_of("vllm-1", other.port, "127.0.0.1"), quietly=True)
                api.forget()
                await until(lambda: serving(router, one, other))
                assert len([query for query in api.asked if "watch" not in query]) > num_lists

    run(main())


def test_an_api_that_refuses_is_told_of_and_an_error_in_a_watch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with FakeApi() as api:
            async with routed(api, tmp_path, monkeypatch, "well") as (router, (one,)):
                await until(lambda: any("watch" in query for query in api.asked))
                api.status = 403
                api.say({"type": "ERROR", "object": {"code": 500, "message": "etcd is busy"}})
                await until(lambda: "etcd is busy" in caplog.text)
                num = len(api.asked)
                await until(lambda: len(api.asked) > num)
                assert serving(router, one)
                api.status = 200
                await until(lambda: "the API answers again" in caplog.text)
                api.close()
                api.status = 403
                api.open()
                await until(lambda: "must be allowed" in caplog.text)

    run(main())


def test_settings_that_say_no_api_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for content in (None, "no: config", json.dumps({"current-context": "x"})):
        file = tmp_path / "kubeconfig"
        if content is not None:
            file.write_text(content)
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(ConfigError, match="nothing says where its API is"):
            worker_sources(RouterConfig(worker=(ENTRY,)))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match="nothing says where its API is"):  # no service account here
        worker_sources(RouterConfig(worker=(ENTRY,)))
