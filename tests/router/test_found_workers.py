"""Workers that come and go with a watched file, addresses of a name, and endpoints of Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.kubernetes_api import slice_of
from support.routing import EVENTS, STREAM, WHOLE, Routing, StubServer, routing, run, until

from stretto.model.errors import BadReply, EngineFailure, EngineUnavailable
from stretto.router.config import RouterConfig
from stretto.router.discovery.dns import DnsNames, addresses_of
from stretto.router.discovery.endpoints import Endpoints
from stretto.router.discovery.keeper import WorkerKeeper
from stretto.router.discovery.kubernetes import KubernetesEndpoints, OutOfDate
from stretto.router.discovery.source import Located, WorkerSource
from stretto.router.discovery.watched_file import WatchedFile
from stretto.router.found_workers import DnsConfig, KubernetesConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig


@asynccontextmanager
async def stubs(*hosts: str, mode: str = "well") -> AsyncIterator[list[StubServer]]:
    """Run servers at addresses of this machine, all at one port."""
    servers: list[StubServer] = []
    for host in hosts:
        server = StubServer(mode)
        server.host, server.port = host, servers[0].port if servers else 0
        await server.open()
        servers.append(server)
    yield servers
    for server in servers:
        server.kill()


@asynccontextmanager
async def router_of(config: RouterConfig, *servers: StubServer) -> AsyncIterator[Routing]:
    """Run a router, and a client of it."""
    async with (
        RunningRouter(config) as router,
        httpx.AsyncClient(base_url=router.url, timeout=60) as client,
    ):
        yield Routing(router, list(servers), client)


def states(at: Routing) -> dict[str, str]:
    """Return the states of a router's workers."""
    return {one.config.url: one.state for one in at.router_state.view.workers()}


def serving(at: Routing, *servers: StubServer) -> bool:
    """Return whether these are the workers, and all serve."""
    return states(at) == {one.url: "serving" for one in servers}


@asynccontextmanager
async def streaming(at: Routing, server: StubServer) -> AsyncIterator[AsyncIterator[bytes]]:
    """Hold a stream open that a server answers; yields its further parts."""
    body = {"model": "m", "prompt": "Hello", "stream": True}
    async with at.client.stream("POST", "/v1/completions", json=body) as answer:
        parts = answer.aiter_bytes()
        assert await anext(parts) == EVENTS[0]
        assert server.asked
        yield parts


def tables_of(*servers: StubServer) -> str:
    """Return the text of a file with workers."""
    return "".join(f'[[router.worker]]\nurl = "{one.url}"\n' for one in servers)


def test_workers_of_a_file_come_and_go_with_it_and_streams_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "workers.toml"

    async def main() -> None:
        async with stubs("127.0.0.1", "127.0.0.2", mode="waits") as (one, other):
            file.write_text(tables_of(one))
            async with router_of(RouterConfig(workers_file=str(file), port=0)) as at:
                await until(lambda: serving(at, one))
                async with streaming(at, one) as parts:
                    file.write_text(tables_of(other) + "num_slots = 3\n")
                    await until(lambda: states(at) == {one.url: "draining", other.url: "serving"})
                    file.write_text("[[router")
                    await until(lambda: "the workers stay as they were" in caplog.text)
                    assert states(at) == {one.url: "draining", other.url: "serving"}
                    one.go_on.set()
                    assert b"".join([part async for part in parts]) == STREAM[len(EVENTS[0]) :]
                await until(lambda: serving(at, other))
                (listed,) = (await at.client.get("/admin/workers")).json()
                assert (listed["source"], listed["num_slots"]) == (f"file {file}", 3)
                file.write_text(tables_of(other) + "num_slots = 8\n")
                await until(lambda: at.router_state.view.worker(listed["id"]).num_slots == 8)
                file.unlink()
                await until(lambda: caplog.text.count("the workers stay as they were") == 2)
                assert serving(at, other)

    run(main())


def test_a_file_that_is_empty_while_it_is_written_drains_nobody(tmp_path: Path) -> None:
    file = tmp_path / "workers.toml"
    before, after = ('[[router.worker]]\nurl = "http://a:1"\n', '[[router.worker]]\nurl = "http://b:1"\n')
    told: list[list[str]] = []
    texts = iter(["", after, after, after])  # what a look after each telling finds

    def want(workers: Sequence[WorkerConfig]) -> None:
        told.append([one.url for one in workers])
        if (text := next(texts, None)) is None:
            raise asyncio.CancelledError
        if text != file.read_text():
            file.write_text(text)

    async def main() -> None:
        file.write_text(before)
        with pytest.raises(asyncio.CancelledError):
            await WatchedFile(file, look_s=0).follow(want)
        assert told == [["http://a:1"]] * 3 + [["http://b:1"]] * 2

    run(main())


def test_a_worker_of_the_settings_and_one_that_the_admin_removed_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "workers.toml"

    async def main() -> None:
        async with stubs("127.0.0.1", "127.0.0.2") as (one, other):
            file.write_text(tables_of(one, other))
            config = RouterConfig(worker=(WorkerConfig(url=one.url),), workers_file=str(file), port=0)
            async with router_of(config) as at:
                await until(lambda: serving(at, one, other))
                file.write_text(tables_of())
                await until(lambda: serving(at, one))
                file.write_text(tables_of(other))
                await until(lambda: serving(at, one, other))
                number = next(one.id for one in at.router_state.view.workers() if one.config.url == other.url)
                await at.client.delete(f"/admin/workers/{number}")
                file.write_text(tables_of(other, one))
                await until(lambda: "is there already" in caplog.text)
                assert serving(at, one)

    run(main())


class Names:
    """Addresses of names, which a test changes."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = list(hosts)
        self.fails = False
        self.num_asked = 0

    async def __call__(self, host: str) -> Sequence[str]:
        assert host == "vllm.internal"
        self.num_asked += 1
        if self.fails:
            raise socket.gaierror(-2, "Name or service not known")
        return self.hosts


@asynccontextmanager
async def kept(at: Routing, source: WorkerSource) -> AsyncIterator[WorkerKeeper]:
    """Keep the workers of a router to those of a source."""
    keeper = WorkerKeeper(at.router.changes, [source])
    yield keeper
    await keeper.close()


def test_each_address_of_a_name_is_a_worker_and_workers_stay_while_nobody_knows_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        hosts, names = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), Names("127.0.0.1", "127.0.0.2")
        async with stubs(*hosts) as servers, routing() as at:
            entry = WorkerConfig(url=f"http://vllm.internal:{servers[0].port}", dns=DnsConfig(every_s=0.01))
            assert entry.dns is not None
            async with kept(at, DnsNames(entry.dns, Located(entry, None), names)):
                await until(lambda: serving(at, *servers[:2]))
                names.fails = True
                asked = names.num_asked
                await until(lambda: names.num_asked > asked + 3)
                assert serving(at, *servers[:2])
                assert caplog.text.count("its workers stay") == 1
                names.fails, names.hosts = False, ["127.0.0.2", "127.0.0.3"]
                await until(lambda: serving(at, *servers[1:]))
                assert caplog.text.count("can be looked up again") == 1

    run(main())


def test_a_name_of_this_machine_is_looked_up() -> None:
    async def main() -> None:
        assert "127.0.0.1" in await addresses_of("localhost")
        async with stubs("127.0.0.1") as (one,):
            entry = WorkerConfig(url=f"http://localhost:{one.port}", dns=DnsConfig())
            async with router_of(RouterConfig(worker=(entry,), port=0)) as at:
                await until(lambda: states(at).get(one.url) == "serving")
                reply = await at.client.post("/v1/completions", json={"prompt": "Hello"})
                assert reply.content == WHOLE

    run(main())


def test_a_source_that_fails_leaves_its_workers(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name = "broken"

        async def follow(self, want: Any) -> None:
            want([WorkerConfig(url="http://127.0.0.1:9")])
            raise ZeroDivisionError

    async def main() -> None:
        async with routing("well") as at, kept(at, Broken()):
            await until(lambda: "is followed no more" in caplog.text)
            assert len(at.router_state.view.workers()) == 2

    run(main())


# --- endpoints of Kubernetes, without its client


def event_of(kind: str, slice_: dict[str, Any], version: int = 5) -> dict[str, Any]:
    """Return a change of a slice."""
    slice_["metadata"]["resourceVersion"] = str(version)
    return {"type": kind, "object": slice_}


def test_ready_endpoints_are_those_of_all_slices_each_once() -> None:
    endpoints = Endpoints()
    terminating = slice_of("b", 8001, "10.0.0.4")
    terminating["endpoints"][0]["conditions"] = {"ready": True, "terminating": True}
    silent = {
        "metadata": {"name": "c"},
        "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.9"]}],
        "ports": None,
    }
    first = slice_of("a", 8000, "10.0.0.1", "10.0.0.2", unready=["10.0.0.3"])
    endpoints.listed({"metadata": {"resourceVersion": "4"}, "items": [terminating, silent, first]})
    assert list(endpoints.ready()) == [("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.1", None)]
    assert endpoints.changed(event_of("MODIFIED", slice_of("a", 8000, "10.0.0.1")))
    assert not endpoints.changed(event_of("MODIFIED", slice_of("a", 8000, "10.0.0.1"), 7))
    assert (endpoints.version, endpoints.changed(event_of("DELETED", {"metadata": {"name": "zz"}}))) == (
        "7",
        False,
    )
    assert not endpoints.changed(event_of("BOOKMARK", {"metadata": {}}, 9))
    assert endpoints.changed(event_of("DELETED", slice_of("c", None), 10))
    assert list(endpoints.ready()) == [("10.0.0.1", 8000)]
    assert endpoints.version == "10"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"items": None, "metadata": {"resourceVersion": "1"}},
        {"items": [{}], "metadata": {"resourceVersion": "1"}},
        {"items": [{"metadata": {"name": "a"}, "endpoints": [{}]}], "metadata": {"resourceVersion": "1"}},
        {
            "items": [{"metadata": {"name": "a"}, "ports": [{"port": "x"}]}],
            "metadata": {"resourceVersion": "1"},
        },
        {"items": [], "metadata": None},
    ],
)
def test_an_answer_that_is_no_list_of_slices_changes_nothing(answer: dict[str, Any]) -> None:
    endpoints = Endpoints()
    endpoints.listed({"metadata": {"resourceVersion": "1"}, "items": [slice_of("a", 8000, "10.0.0.1")]})
    with pytest.raises(BadReply):
        endpoints.listed(answer)
    for event in (answer, {"type": "ADDED", "object": answer}, {"type": "ADDED", "object": 3}):
        with pytest.raises(BadReply):
            endpoints.changed(event)
    assert (list(endpoints.ready()), endpoints.version) == ([("10.0.0.1", 8000)], "1")


class ScriptedApi:
    """An API that answers what a test has written, and then that the test is over."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.over = threading.Event()

    def _next(self) -> Any:
        if not self.answers:
            self.over.set()
            raise EngineUnavailable("the test is over")
        answer = self.answers.pop(0)
        if isinstance(answer, EngineFailure):
            raise answer
        return answer

    def list_slices(self) -> Mapping[str, Any]:
        self.asked.append("list")
        answer: Mapping[str, Any] = self._next()
        return answer

    @contextmanager
    def watch_slices(self, version: str) -> Iterator[Iterator[Mapping[str, Any]]]:
        self.asked.append(f"watch {version}")
        yield iter(self._next())

    def stop(self) -> None:
        pass


class Waits(threading.Event):
    """An event that notes waits in place of waiting; it is set when an API's script is over."""

    def __init__(self, api: ScriptedApi) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._api = api

    def is_set(self) -> bool:
        return self._api.over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


def list_of(version: int, *slices: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that lists slices."""
    return {"metadata": {"resourceVersion": str(version)}, "items": list(slices)}


def watched(*answers: Any) -> tuple[list[list[str]], ScriptedApi, list[float]]:
    """Watch a scripted API to its end; return the hosts that were told, the API, and the pauses."""
    api = ScriptedApi(*answers)
    entry = WorkerConfig(url="http://vllm:8000", kubernetes=KubernetesConfig(selector="app=vllm"))
    assert entry.kubernetes is not None
    told: list[list[str]] = []
    ended = Waits(api)
    source = KubernetesEndpoints(entry.kubernetes, Located(entry, None), api)
    source.watch(lambda found: told.append([one.url.split("/")[2].split(":")[0] for one in found]), ended)
    return told, api, ended.waits


def test_changes_are_told_and_a_watch_that_ends_goes_on_from_its_last_version() -> None:
    one, two = slice_of("a", 1, "h1"), slice_of("b", 1, "h2")
    told, api, waits = watched(
        list_of(4, one),
        [event_of("ADDED", two, 5), event_of("BOOKMARK", {"metadata": {}}, 6)],
        [event_of("MODIFIED", slice_of("a", 1, "h1", "h3"), 7)],
        [],
    )
    assert told == [["h1"], ["h1", "h2"], ["h1", "h3", "h2"]]
    assert api.asked == ["list", "watch 4", "watch 6", "watch 7", "watch 7"]
    assert waits == [1.0], "a watch that ends without a change is not begun anew at once"


def test_a_version_that_is_gone_is_listed_anew_in_one_step() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    told, api, waits = watched(
        list_of(4, slice_of("a", 1, "h1")),
        [gone],
        list_of(9, slice_of("a", 1, "h1"), slice_of("b", 1, "h2")),
        OutOfDate("gone"),
        list_of(12, slice_of("b", 1, "h2")),
    )
    assert told == [["h1"], ["h1", "h2"], ["h2"]]
    assert api.asked == ["list", "watch 4", "list", "watch 9", "list", "watch 12"]
    assert waits == [1.0, 1.0]


def test_while_the_api_is_away_nothing_is_told_and_it_is_asked_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = EngineUnavailable("connection refused")
    error = {"type": "ERROR", "object": {"code": 500, "message": "etcd"}}
    broken = {"type": "ADDED", "object": {}}
    told, _, waits = watched(
        *(list_of(4, slice_of("a", 1, "h1")), away, *[away] * 7),
        *(list_of(5, slice_of("a", 1, "h1")), [error], list_of(6, slice_of("a", 1, "h1")), [broken]),
        *(list_of(7, slice_of("a", 1, "h2")), []),
    )
    assert told == [["h1"], ["h1"], ["h1"], ["h2"]]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 1.0, 1.0, 1.0]
    assert caplog.text.count("connection refused") == 1
    assert caplog.text.count("the API answers again") == 3


def test_an_api_that_lists_slices_and_refuses_a_watch_is_asked_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed, refused = list_of(4, slice_of("a", 1, "h1")), EngineUnavailable("watch must be allowed")
    told, _, waits = watched(*[listed, refused] * 4, listed, [])
    assert told == [["h1"]] * 5
    assert waits == [1.0, 2.0, 4.0, 8.0, 1.0]
    assert caplog.text.count("watch must be allowed") == 1
    assert caplog.text.count("the API answers again") == 1


def test_what_a_thread_of_a_source_did_not_expect_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedApi):
        def list_slices(self) -> Mapping[str, Any]:
            raise ZeroDivisionError

    async def main() -> None:
        entry = WorkerConfig(url="http://vllm", kubernetes=KubernetesConfig(selector="app=vllm"))
        assert entry.kubernetes is not None
        source = KubernetesEndpoints(entry.kubernetes, Located(entry, None), Broken())
        async with routing("well") as at, kept(at, source):
            await until(lambda: "is followed no more" in caplog.text)

    run(main())


def test_an_endpoint_that_is_no_address_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bad = slice_of("a", 1, "no host/x", "h1")
    told, _, _ = watched(list_of(4, bad), [event_of("MODIFIED", slice_of("a", 1, "no host/x", "h2"), 5)])
    assert told == [["h1"], ["h2"]]
    assert caplog.text.count("is left out") == 1
    assert [one.levelno for one in caplog.records if "left out" in one.getMessage()] == [logging.WARNING]


def test_the_thread_of_a_source_ends_with_it() -> None:
    class Blocking(ScriptedApi):
        @contextmanager
        def watch_slices(self, version: str) -> Iterator[Iterator[Mapping[str, Any]]]:
            self.over.wait(60)
            raise EngineUnavailable("stopped")
            yield iter(())

        def stop(self) -> None:
            self.over.set()

    async def main() -> None:
        async with stubs("127.0.0.1") as (one,), routing() as at:
            api = Blocking(list_of(4, slice_of("a", one.port, "127.0.0.1")))
            entry = WorkerConfig(url="http://vllm", kubernetes=KubernetesConfig(selector="app=vllm"))
            assert entry.kubernetes is not None
            async with kept(at, KubernetesEndpoints(entry.kubernetes, Located(entry, None), api)):
                await until(lambda: serving(at, one))
            assert api.over.is_set()
            await until(lambda: not any(one.name == "kubernetes" for one in threading.enumerate()))
            await asyncio.sleep(0)
            assert serving(at, one), "its workers stay"

    run(main())
