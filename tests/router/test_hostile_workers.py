"""Workers whose numbers, words, keys and lists are not to be relied on."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from support.routing import WHOLE, routing, run, until

from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.model.errors import ConfigError
from stretto.router import believable
from stretto.router.answers import UsageReader
from stretto.router.config import RouterConfig
from stretto.router.config_file import read_router_config
from stretto.router.messages import Check, Refuse, RoutedRequest, RouterAction, Send, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.wire.errors import read_retry_after

LIE = 999_999_999
KEY = "sk-secret-47-11"


def _router_state(
    models: dict[str, dict[str, object]] | None = None, num: int = 1, **settings: Any
) -> RouterState:
    placement = settings.pop("placement", None) or LeastLoaded()
    router_state = RouterState(RouterConfig(**settings), placement)
    for index in range(num):
        worker = router_state.membership.add(WorkerConfig(url=f"http://w{index}")).id
        router_state.membership.check_passed(worker, models or {"m": {"id": "m"}}, 100_000, 0.0)
    return router_state


def _sent(actions: list[RouterAction]) -> list[int]:
    return [action.worker for action in actions if isinstance(action, Send)]


# --- counts


@pytest.mark.parametrize("max_tokens", [None, 10])
@pytest.mark.parametrize("num_lies", [1, 20])
def test_false_counts_of_one_model_leave_others_many_requests_at_once(
    max_tokens: int | None, num_lies: int
) -> None:
    models: dict[str, dict[str, object]] = {"m": {"id": "m"}, "other": {"id": "other"}}
    router_state = _router_state(models)
    for _ in range(num_lies):
        ticket, _ = router_state.arrive(RoutedRequest(model="m", num_tokens=10, max_tokens=max_tokens), 0.0)
        router_state.answered(ticket, 200, WorkerUsage(LIE, LIE, LIE), 1.0)
        for _ in range(3):
            ticket, _ = router_state.arrive(RoutedRequest(model="other", num_tokens=10), 0.0)
            router_state.answered(ticket, 200, WorkerUsage(10, 100, 0), 1.0)
    for model in ("m", "other"):
        sent = [
            _sent(router_state.arrive(RoutedRequest(model=model, num_tokens=10), 2.0)[1]) for _ in range(50)
        ]
        if model == "other" or num_lies == 1:
            assert sum(map(len, sent)) == 50
    router_state.check_invariants()


@pytest.mark.parametrize(
    ("asked", "reported", "believed"),
    [
        (
            RoutedRequest(max_tokens=10),
            WorkerUsage(5, LIE, LIE, is_older_api=True),
            WorkerUsage(5, 10, 5, True),
        ),
        (RoutedRequest(max_tokens=10, num_answers=3), WorkerUsage(5, 31), WorkerUsage(5, 30)),
        (RoutedRequest(), WorkerUsage(LIE, LIE), WorkerUsage(100, 100)),
        (RoutedRequest(), WorkerUsage(3, 4, 90), WorkerUsage(3, 4, 3)),
        (RoutedRequest(max_tokens=2**70), WorkerUsage(None, LIE, LIE), WorkerUsage(None, 100, 100)),
    ],
)
def test_counts_are_at_most_what_was_asked_for_and_what_the_model_can_hold(
    asked: RoutedRequest, reported: WorkerUsage, believed: WorkerUsage
) -> None:
    assert believable.usage_of(reported, asked, 100) == believed


@pytest.mark.parametrize("count", ["-5", "1.5", "1e9", "NaN", '"7"', "1" * 30, "true", "null", "7a"])
def test_what_is_no_count_is_not_read(count: str) -> None:
    reader = UsageReader()
    reader.feed(f'{{"usage": {{"prompt_tokens": 9, "completion_tokens": {count}}}}}'.encode())
    assert (reader.usage().num_prompt, reader.usage().num_output) == (9, None)


@pytest.mark.parametrize("limit", [-1, 0, True, 1.5, float("nan"), "9", 10**30, [], {}, None])
def test_a_length_of_a_model_that_cannot_be_true_sets_no_limit(limit: object) -> None:
    assert believable.model_tokens({"max_model_len": limit}) is None
    assert believable.model_tokens(limit) is None
    assert believable.model_tokens({"max_model_len": 4096}) == 4096


@pytest.mark.parametrize(("tokens", "taken"), [(0, None), (-1, None), (10**30, None), (10**6, 10**6)])
def test_a_kv_memory_that_cannot_be_true_sets_no_limit(tokens: int, taken: int | None) -> None:
    assert believable.kv_tokens(tokens) == taken


# --- status 429


@pytest.mark.parametrize(
    ("header", "rest_s"),
    [
        *(("3", 3.0), ("0", 1.0), ("-4", 1.0), ("nan", 1.0), ("inf", 1.0), ("1e9", 60.0), ("soon", 1.0)),
        ("Thu, 01 Jan 1970 00:00:09 GMT", 9.0),
        ("Thu, 01 Jan 2970 00:00:09 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 1.0),
    ],
)
def test_a_worker_rests_for_its_retry_after_within_limits(header: str, rest_s: float) -> None:
    assert believable.rest_s(read_retry_after(header, 0.0)) == rest_s


def test_a_request_that_is_refused_with_429_goes_elsewhere_and_the_worker_rests() -> None:
    router_state = _router_state(num=2, placement=RoundRobin())
    ticket, actions = router_state.arrive(RoutedRequest(model="m"), 0.0)
    assert _sent(actions) == [0]
    actions = router_state.refused(ticket, 429, 0.0, retry_after_s=5.0)
    assert _sent(actions) == [1]
    assert Check(0, 5.0) in actions
    assert [_sent(router_state.arrive(RoutedRequest(model="m"), 1.0)[1]) for _ in range(3)] == [[1]] * 3
    assert {_sent(router_state.arrive(RoutedRequest(model="m"), 5.0)[1])[0] for _ in range(4)} == {0, 1}
    assert all(worker.state == "serving" for worker in router_state.view.workers())
    router_state.check_invariants()


def test_while_all_rest_requests_are_refused_with_the_soonest_end() -> None:
    router_state = _router_state(num=2, placement=RoundRobin())
    ticket, _ = router_state.arrive(RoutedRequest(model="m"), 0.0)
    router_state.refused(ticket, 429, 0.0, retry_after_s=9.0)
    (refusal, *_) = router_state.refused(ticket, 429, 0.0, retry_after_s=4.0)
    assert isinstance(refusal, Refuse)
    assert refusal.retry_after_s == 4.0
    _, actions = router_state.arrive(RoutedRequest(model="m"), 1.0)
    assert isinstance(actions[-1], Refuse)
    assert (actions[-1].status, actions[-1].retry_after_s) == (429, 3.0)
    assert _sent(router_state.arrive(RoutedRequest(model="m"), 4.0)[1]) == [1]
    assert router_state.view.num_waiting == 0


def test_what_waits_is_served_at_the_end_of_a_rest() -> None:
    router_state = RouterState(RouterConfig(), LeastLoaded())
    worker = router_state.membership.add(WorkerConfig(url="http://w", num_slots=1)).id
    router_state.membership.check_passed(worker, {"m": {}}, None, 0.0)
    first, second = (router_state.arrive(RoutedRequest(model="m"), 0.0)[0] for _ in range(2))
    actions = router_state.answered(first, 429, WorkerUsage(), 1.0, retry_after_s=2.0)
    assert (_sent(actions), Check(worker, 3.0) in actions) == ([], True)
    assert _sent(router_state.membership.check_passed(worker, {"m": {}}, None, 2.0)) == []
    assert _sent(router_state.membership.check_passed(worker, {"m": {}}, None, 3.0)) == [worker]
    assert router_state.answered(second, 200, WorkerUsage(), 3.5) == []


def test_429_reaches_a_client_only_if_no_worker_is_left() -> None:
    async def main() -> None:
        limited, more = Raw(429, b"retry-after: 20\r\n"), Raw(429, b"retry-after: 7\r\n")
        await limited.open()
        await more.open()
        async with routing("well", urls=(limited.url, more.url), placement="round_robin") as at:
            assert {(await at.ask()).status_code for _ in range(6)} == {200}
            at.router.front.remove(0, asyncio.get_running_loop().time())
            reply = await at.ask()
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
        limited.close()
        more.close()

    run(main())


# --- words


@pytest.mark.parametrize("reason", [b"O\x1b[31mK", b"\x00", b"x" * 30_000, b"\xff\x9b", b"a\tb"])
def test_words_behind_a_status_are_passed_on_only_if_few_and_printable(reason: bytes) -> None:
    async def main() -> None:
        server = Raw(200, b"", reason)
        await server.open()
        async with routing(urls=(server.url,)) as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"GET /v1/files HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.close()
        server.close()

    run(main())


# --- keys and lists of models


class Raw:
    """A server whose answers to requests are given; `/health` and its models are well."""

    def __init__(
        self,
        status: int = 200,
        headers: bytes = b"",
        reason: bytes = b"X",
        *,
        key: str = "",
        models: Any = None,
    ) -> None:
        self.status, self.headers, self.reason, self.key = status, headers, reason, key
        self.models: Any = {"data": [{"id": "m"}]} if models is None else models
        self.models_status = 200
        self.lacks_version = False
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            first, *lines = head.decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            await reader.readexactly(int(headers.get("content-length", 0)))
            path = first.split()[1]
            self.asked.append((path, headers))
            status, body, more, reason = self.status, WHOLE, self.headers, self.reason
            is_probe = path.partition("?")[0].endswith(("/health", "/models", "/metrics"))
            if is_probe:
                status, body = self.models_status, json.dumps(self.models).encode()
                more, reason = b"", b"X"
            if self.lacks_version and "/v1/" in path:
                status = 404
            if self.key and headers.get("authorization") != f"Bearer {self.key}" and "/health" not in path:
                status, body = 401, b"{}"
            writer.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
                % (status, reason, more, len(body))
                + body
            )


def _workers(*configs: WorkerConfig) -> RunningRouter:
    return RunningRouter(RouterConfig(worker=configs, port=0, health_interval_s=0.05))


def test_a_worker_that_wants_a_key_gets_it_with_probes_and_requests(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        server = Raw(key=KEY)
        await server.open()
        configs = WorkerConfig(url=server.url, api_key_env="ROUTER_TEST_KEY", headers={"X-Team": KEY})
        said: list[str] = []
        async with RunningRouter(RouterConfig(worker=(configs,), port=0), None, said.append) as router:
            (worker,) = router.front.router_state.view.workers()
            assert (worker.state, list(worker.models)) == ("serving", ["m"])
            async with _client(router) as client:
                body = {"model": "m", "prompt": "a"}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
                for name in ("authorization", "x-api-key"):
                    own = {name: "own"}
                    assert (await client.post("/v1/completions", json=body, headers=own)).status_code == 401
                shown = [
                    (await client.get(path)).text for path in ("/router/workers", "/metrics", "/v1/models")
                ]
        assert all(headers["x-team"] == KEY for _, headers in server.asked)
        assert [headers.get("authorization") for _, headers in server.asked[-2:]] == ["own", None]
        assert not any(KEY in text for text in (*shown, *said, caplog.text, repr(configs)))
        server.close()

    run(main())


@pytest.mark.parametrize(
    ("status", "models", "reason"),
    [
        (401, {}, "its list of models has status 401; give its key as api_key or api_key_env"),
        (404, {}, "its list of models has status 404; if it lists none, give their names as models"),
        (200, {"data": []}, "it lists no models"),
        (200, {"data": [{"id": ""}]}, "its list of models cannot be read"),
        (200, [1], "its list of models cannot be read"),
    ],
)
def test_a_worker_serves_when_its_models_are_known(status: int, models: Any, reason: str) -> None:
    async def main() -> None:
        known, unknown = Raw(), Raw(404, models=models)
        unknown.models_status = status
        await known.open()
        await unknown.open()
        async with _workers(WorkerConfig(url=known.url), WorkerConfig(url=unknown.url)) as router:
            async with _client(router) as client:
                listed = (await client.get("/router/workers")).json()
                assert [one["state"] for one in listed] == ["serving", "starting"]
                assert listed[1]["reason"] == reason
                for _ in range(10):
                    reply = await client.post("/v1/completions", json={"model": "m", "prompt": "a"})
                    assert reply.status_code == 200
            unknown.models_status, unknown.models = 200, {"data": [{"id": "n"}]}
            await until(lambda: router.front.router_state.view.workers()[1].state == "serving")
        known.close()
        unknown.close()

    run(main())


def test_models_may_be_named_for_a_server_that_lists_none() -> None:
    async def main() -> None:
        server = Raw()
        server.models_status = 404
        await server.open()
        async with _workers(WorkerConfig(url=server.url, models=("a", "b"))) as router:
            assert list(router.front.router_state.view.workers()[0].models) == ["a", "b"]
        server.close()

    run(main())


@pytest.mark.parametrize(
    ("path", "prefix", "query"),
    [
        *(("", "/v1", ""), ("/v1", "/v1", ""), ("/v1/", "/v1", ""), ("/v1/chat/completions", "/v1", "")),
        ("/below/v1/", "/below/v1", ""),
        ("/openai/v1?api-version=preview", "/openai/v1", "api-version=preview"),
        ("/v1beta/openai/", "/v1beta/openai", ""),
        ("/openai/deployments/d?api-version=1", "/openai/deployments/d", "api-version=1"),
    ],
)
def test_a_url_of_a_worker_may_have_any_form_that_an_engine_takes(path: str, prefix: str, query: str) -> None:
    async def main() -> None:
        server = Raw()
        await server.open()
        async with _workers(WorkerConfig(url=server.url + path)) as router, _client(router) as client:
            assert router.front.router_state.view.workers()[0].state == "serving"
            reply = await client.post("/v1/chat/completions?x=1", json={"model": "m", "messages": []})
            assert reply.status_code == 200
        mark = f"?{query}" if query else ""
        assert f"{prefix}/models{mark}" in [path for path, _ in server.asked]
        joined = f"{query}&x=1" if query else "x=1"
        assert f"{prefix}/chat/completions?{joined}" in [path for path, _ in server.asked]
        server.close()

    run(main())


@pytest.mark.parametrize("models", [(), ("m",)])
@pytest.mark.parametrize("path", ["/api", "/some/path/", "/openai?api-version=1"])
def test_a_worker_may_have_its_api_without_a_version(path: str, models: tuple[str, ...]) -> None:
    async def main() -> None:
        server = Raw()
        server.lacks_version = True
        await server.open()
        config = WorkerConfig(url=server.url + path, models=models)
        async with _workers(config) as router, _client(router) as client:
            for _ in range(2):
                reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": []})
                assert reply.status_code == 200
        server.close()

    run(main())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"api_key": f"{KEY}\n"}, "must be a text of printable letters"),
        ({"api_key": KEY, "api_key_env": "X"}, "both given"),
        ({"api_key_env": "ROUTER_NO_SUCH_KEY"}, "'ROUTER_NO_SUCH_KEY'.* empty or not set"),
        ({"headers": {"a b": KEY}}, "no name of a header"),
        ({"headers": {"a": f"{KEY}\r\nb: c"}}, "the header a must be a text"),
        ({"headers": {"Host": KEY}}, "router's own"),
        ({"headers": {"Authorization": KEY}, "api_key": KEY}, "given twice"),
        ({"url": f"http://user:{KEY}@w"}, "without a user"),
        ({"url": f"http://w/v1?key={KEY}"}, "api_key or headers"),
    ],
)
def test_wrong_keys_are_refused_and_never_shown(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        WorkerConfig(**{"url": "http://w", **settings})
    assert KEY not in str(refused.value)


def test_two_forms_of_one_url_are_one_worker() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        RouterConfig(worker=(WorkerConfig(url="http://w"), WorkerConfig(url="http://w/v1/")))


def test_a_file_may_have_keys_and_limits(tmp_path: Any) -> None:
    path = tmp_path / "router.toml"
    path.write_text(
        "[router]\nmax_held_bytes = 200_000_000\nmax_body_s = 5\n"
        f'[[router.worker]]\nurl = "http://w/v1"\napi_key = "{KEY}"\nheaders = {{"x-team" = "a"}}\n'
        'models = ["m"]\n'
    )
    config = read_router_config(path)
    assert (config.max_held_bytes, config.max_body_s) == (200_000_000, 5.0)
    assert dict(config.worker[0].own_headers()) == {
        b"x-team": b"a",
        b"authorization": f"Bearer {KEY}".encode(),
    }


def _client(router: RunningRouter) -> Any:
    return httpx.AsyncClient(base_url=router.url, timeout=60.0)
