"""Plain traffic, apps and programs at one service wait in one queue for the workers, under one account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from support.gated_worker import MODEL, PATIENCE_S, GatedWorker
from support.services import served

from stretto import Input, Template
from stretto import programs as P
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.router.aliases import AliasConfig
from stretto.router.config import RouterConfig
from stretto.router.messages import WaitingPicture
from stretto.router.worker_config import WorkerConfig
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import Limits, ServiceConfig, TenantConfig
from stretto.service.pool.door import places_of_model, with_model
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
QUERY = "/v1/apps/reply/queries"


def reply_app() -> Template:
    """An app that asks the LLM once."""
    call = LLMCall(prompt="{text}", text=Input("text", "text"))
    return Template("reply", call, {"reply": call["text"]})


@P.SemanticFunction
def tell(topic: P.SemanticVariable) -> None:
    """{{input:topic}} {{output:story}}"""


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


TENANTS = ServiceConfig(
    port=0,
    tenant=(
        TenantConfig(name="one", keys=("a",)),
        TenantConfig(name="two", keys=("b",)),
        TenantConfig(name="three", keys=("c",), limits=Limits(tokens_per_minute=100, output_tokens=80)),
    ),
)


@dataclass
class Door:
    """A service before gated workers, and what a test does with it."""

    service: Service
    workers: list[GatedWorker]
    http: httpx.Client
    threads: ThreadPoolExecutor

    @property
    def url(self) -> str:
        return str(self.http.base_url)

    def post(self, path: str, body: dict[str, Any], key: str = "") -> Future[httpx.Response]:
        """Send a request on a thread."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.threads.submit(lambda: self.http.post(path, json=body, headers=headers))

    def waiting(self) -> list[WaitingPicture]:
        """Return what waits for the workers; the state is checked."""
        pool = self.service.pool
        assert pool is not None

        async def look() -> list[WaitingPicture]:
            pool.front.router_state.check_invariants()
            return pool.front.router_state.view.waiting(100)

        return self.service.runtime.run_on_loop(look)

    def wait_for_waiting(self, num: int) -> None:
        until(lambda: len(self.waiting()) == num)


def until(condition: Any) -> None:
    end_s = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < end_s, "it did not come about"
        sleep(0.005)


@contextmanager
def door(
    num_workers: int = 1,
    num_slots: int = 1,
    config: ServiceConfig | None = None,
    kv_tokens: int | None = None,
    **settings: Any,
) -> Iterator[Door]:
    """Run a service before workers that run one request at a time."""
    config = config or ServiceConfig(port=0)
    workers = [GatedWorker() for _ in range(num_workers)]
    with ThreadPoolExecutor(32) as threads:
        for worker in workers:
            worker.__enter__()
        try:
            worker_configs = tuple(
                WorkerConfig(url=one.url, num_slots=num_slots, kv_tokens=kv_tokens) for one in workers
            )
            pool = WorkerPool(RouterConfig(worker=worker_configs, **settings), config)
            apps = {"reply": deploy_app("reply", reply_app())}
            with (
                served([transforms_engine()], config, apps, pool=pool) as (service, url),
                httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
            ):
                yield Door(service, workers, http, threads)
                for worker in workers:
                    worker.is_open = True
        finally:
            for worker in workers:
                worker.kill()


def query(text: str, **more: Any) -> dict[str, Any]:
    return {"inputs": {"text": text}, **more}


def test_a_chat_an_app_and_a_program_wait_in_one_queue() -> None:
    with door() as at:
        (worker,) = at.workers
        first = at.post(CHAT, chat("first"))
        worker.wait_until_asked(1)
        plain = at.post(CHAT, chat("a chat"))
        of_app = at.post(QUERY, query("an app"))

        def told() -> str:
            with P.Client(at.url):
                return str(tell("a program").get())

        program = at.threads.submit(told)
        at.wait_for_waiting(3)
        assert len(worker.asked) == 1
        assert {one.model for one in at.waiting()} == {MODEL}
        assert len({one.program for one in at.waiting()}) == 3
        worker.is_open = True
        assert first.result().json()["choices"][0]["message"]["content"] == "to first"
        assert plain.result().json()["choices"][0]["message"]["content"] == "to a chat"
        assert of_app.result().json()["outputs"]["reply"] == "to an app"
        assert program.result().strip().startswith("to")
        assert len(worker.asked) == 4
        assert at.waiting() == []
        until(lambda: not at.service.num_open)


def test_a_short_chat_goes_before_a_long_app_that_came_first() -> None:
    with door() as at:
        (worker,) = at.workers
        first = at.post(CHAT, chat("first"))
        worker.wait_until_asked(1)
        long = at.post(QUERY, query("word " * 3000 + "long"))
        at.wait_for_waiting(1)
        short = at.post(CHAT, chat("short", max_tokens=1))
        at.wait_for_waiting(2)
        worker.release()
        worker.wait_until_asked(2)
        assert worker.prompts[1] == "short"
        worker.is_open = True
        assert {one.result().status_code for one in (first, long, short)} == {200}


def test_offline_work_waits_behind_all_doors() -> None:
    with door() as at:
        (worker,) = at.workers
        first = at.post(CHAT, chat("first"))
        worker.wait_until_asked(1)
        offline = at.post(QUERY, query("offline", objective="offline"))
        at.wait_for_waiting(1)
        plain = at.post(CHAT, chat("word " * 3000 + "chat"))
        urgent = at.post(QUERY, query("word " * 3000 + "urgent", objective="latency"))
        at.wait_for_waiting(3)
        worker.release(3)
        worker.wait_until_asked(4)
        assert [prompt[-7:].split()[-1] for prompt in worker.prompts] == [
            "first",
            "urgent",
            "chat",
            "offline",
        ]
        worker.is_open = True
        assert {one.result().status_code for one in (first, offline, plain, urgent)} == {200}


def test_a_query_whose_deadline_passes_waits_no_more() -> None:
    with door() as at:
        (worker,) = at.workers
        first = at.post(CHAT, chat("first"))
        worker.wait_until_asked(1)
        late = at.http.post(QUERY, json=query("late", deadline_s=0.5))
        assert (late.status_code, at.waiting()) == (408, [])
        worker.release()
        assert first.result().status_code == 200
        assert worker.prompts == ["first"]


def test_the_limits_of_waiting_are_for_plain_traffic() -> None:
    """An app may ask for more at once than plain clients may, and takes no place from them."""
    with door(max_waiting=1, max_wait_s=0.3) as at:
        (worker,) = at.workers
        first = at.post(CHAT, chat("first"))
        worker.wait_until_asked(1)
        of_apps = [at.post(QUERY, query(f"{number}")) for number in range(8)]
        at.wait_for_waiting(8)
        plain = at.post(CHAT, chat("plain"))
        at.wait_for_waiting(9)
        full = at.http.post(CHAT, json=chat("one too many"))
        assert (full.status_code, int(full.headers["retry-after"]) >= 1) == (429, True)
        assert plain.result().status_code == 503
        assert len(at.waiting()) == 8
        worker.is_open = True
        assert {one.result().status_code for one in (first, *of_apps)} == {200}


def test_an_app_waits_while_the_workers_ask_for_a_pause() -> None:
    with door() as at:
        (worker,) = at.workers
        worker.status, worker.is_open = 429, True
        asked = at.post(QUERY, query("hi"))
        assert at.service.pool is not None
        (known,) = at.service.pool.front.router_state.view.workers()
        until(lambda: known.rests_until_s > 0)
        worker.status = 200
        assert asked.result().json()["outputs"] == {"reply": "to hi"}


def test_what_workers_answer_passes_unread() -> None:
    with door(num_slots=8) as at:
        (worker,) = at.workers
        worker.is_open = True
        whole = at.http.post(CHAT, json=chat("hi", logprobs=True, anything={"at": "all"}))
        assert whole.json()["choices"][0]["message"]["content"] == "to hi"
        assert whole.headers["x-stretto-worker"] == "0"
        assert worker.asked[-1].body["anything"] == {"at": "all"}
        large = at.http.post(CHAT, json=chat("word " * 60_000 + "end"))
        assert large.json()["choices"][0]["message"]["content"].endswith("word end")
        streamed = at.http.post(CHAT, json=chat("hi", stream=True)).text
        assert streamed.count("data: ") == 5
        assert streamed.endswith("data: [DONE]\n\n")
        text = at.http.post(COMPLETIONS, json={"model": MODEL, "prompt": [1, 2, 3]})
        assert text.json()["choices"][0]["text"] == "to [1, 2, 3]"
        vectors = at.http.post(EMBEDDINGS, json={"model": MODEL, "input": "a"})
        assert vectors.json()["data"][0]["embedding"] == [1.0]
        for path in ("/v1/responses", "/v1/messages", "/score"):
            assert at.http.post(path, json={"model": MODEL, "input": "a"}).status_code == 200
            assert worker.asked[-1].path == path
        found = at.http.get("/v1/responses/resp_1?include=x").json()
        assert found["path"] == "/v1/responses/resp_1?include=x"
        assert at.http.post("/v1/load_lora_adapter", json={}).status_code == 404
        assert at.http.post(CHAT, content=b"{").status_code == 400


def test_the_engines_name_stands_for_the_workers_model_and_tools_are_the_workers_own() -> None:
    with door(num_slots=8) as at:
        (worker,) = at.workers
        worker.is_open = True
        tool = {"type": "function", "function": {"name": "count", "parameters": {"x": 1.50}}}
        body = chat("hi", tools=[tool], temperature=0.10, logprobs=True)
        for model in ({"model": MODEL}, {"model": "llm"}, {"model": ""}, {"model": None}, {}):
            sent = {**{name: one for name, one in body.items() if name != "model"}, **model}
            assert at.http.post(CHAT, json=sent).status_code == 200
            assert worker.asked[-1].body == body
        long = {**chat("word " * 30_000), "model": "llm"}
        assert at.http.post(CHAT, json=long).status_code == 200
        assert worker.asked[-1].body == {**long, "model": MODEL}
        assert at.http.post("/v1/responses", json={"model": "llm", "input": "a"}).status_code == 200
        assert worker.asked[-1].body["model"] == MODEL


def test_the_engine_keeps_its_model_when_the_first_worker_comes_back_with_another_one() -> None:
    with door(num_workers=2, num_slots=9, health_interval_s=0.05) as at:
        for worker in at.workers:
            worker.is_open = True
        assert at.http.post(CHAT, json=chat("x", model="llm")).status_code == 200
        at.workers[0].model = "another"
        until(lambda: "another" in str(at.http.get("/v1/models").json()))
        for number in range(4):
            assert at.http.post(CHAT, json=chat(f"y{number}", model="llm")).status_code == 200
        assert {asked.body["model"] for worker in at.workers for asked in worker.asked} == {MODEL}
        at.workers[1].model = "another"
        until(lambda: MODEL not in [one["id"] for one in at.http.get("/v1/models").json()["data"]])
        assert at.http.post(CHAT, json=chat("z", model="llm")).status_code == 200
        models = [asked.body["model"] for worker in at.workers for asked in worker.asked]
        assert models.count("another") == 1


def test_models_of_workers_engines_and_apps_are_listed_and_answer() -> None:
    with door(num_slots=8) as at:
        at.workers[0].is_open = True
        names = [one["id"] for one in at.http.get("/v1/models").json()["data"]]
        assert {"llm", "app:reply", MODEL} <= set(names)
        assert at.http.get(f"/v1/models/{MODEL}").json()["id"] == MODEL
        assert at.http.get("/v1/models/nothing").status_code == 404
        for name in ("llm", "app:reply", MODEL, ""):
            answer = at.http.post(CHAT, json={**chat("hi"), "model": name})
            assert answer.json()["choices"][0]["message"]["content"] == "to hi", answer.text
        wrong = at.http.post(CHAT, json={**chat("hi"), "model": "app:repyl"})
        assert wrong.status_code == 404
        assert "app:reply" in wrong.json()["error"]["message"]
        text = at.http.post(CHAT, json={**chat("hi", stream=True), "model": "llm"}).text
        pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert (
            "".join(one["choices"][0]["delta"].get("content", "") for one in pieces if one["choices"])
            == "to hi"
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("path", [CHAT, QUERY])
def test_a_client_that_leaves_ends_its_request(path: str, is_waiting: bool, stream: bool) -> None:
    with door() as at:
        (worker,) = at.workers
        if is_waiting:
            first = at.post(CHAT, chat("first"))
            worker.wait_until_asked(1)
        body = chat("leaves", stream=stream) if path == CHAT else query("leaves", stream=stream)
        with httpx.Client(base_url=at.url) as client:
            left = at.threads.submit(
                lambda: client.post(path, json=body, timeout=httpx.Timeout(PATIENCE_S, read=0.5))
            )
            if is_waiting:
                at.wait_for_waiting(1)
            else:
                worker.wait_until_asked(1)
            with pytest.raises(httpx.ReadTimeout):
                left.result()
        if is_waiting:
            at.wait_for_waiting(0)
            worker.release()
            assert first.result().status_code == 200
        else:
            worker.wait_until_left(1)
        assert at.service.pool is not None
        until(lambda: not at.service.num_open)
        assert worker.prompts == (["first"] if is_waiting else ["leaves"])


@pytest.mark.parametrize("path", [CHAT, QUERY])
@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_dies_before_the_first_byte_costs_nothing(path: str, stream: bool) -> None:
    with door(2) as at:
        body = chat("hi", stream=stream) if path == CHAT else query("hi", stream=stream)
        asked = at.post(path, body)
        until(lambda: any(one.asked for one in at.workers))
        dying, other = sorted(at.workers, key=lambda one: -len(one.asked))
        other.is_open = True
        dying.kill()
        answer = asked.result()
        assert (answer.status_code, other.prompts) == (200, ["hi"])
        assert "to hi" in answer.text or ('"to "' in answer.text and '"hi"' in answer.text)


def test_errors_of_the_last_worker_have_types_at_each_door() -> None:
    with door(max_wait_s=0.2) as at:
        (worker,) = at.workers
        worker.is_open, worker.status = True, 400
        assert at.http.post(CHAT, json=chat("hi")).status_code == 400
        refused = at.http.post(QUERY, json=query("hi"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "bad_reply")
        worker.status = 500
        assert at.http.post(CHAT, json=chat("hi")).status_code == 500
        failed = at.http.post(QUERY, json=query("hi"))
        assert (failed.status_code, failed.json()["error"]["step"]) == (502, "llmcall")
        worker.kill()
        assert at.http.post(CHAT, json=chat("hi")).status_code in (502, 503)
        began_s = monotonic()
        lost = at.http.post(QUERY, json=query("hi"))
        assert (lost.status_code, lost.json()["error"]["type"]) == (502, "server_error")
        assert monotonic() - began_s < PATIENCE_S / 4  # some max_wait_s, and no more


def test_a_stream_that_is_cut_is_an_error_for_a_chat_and_goes_on_for_an_app() -> None:
    with door(num_slots=8) as at:
        (worker,) = at.workers
        worker.is_open = worker.cuts = True
        alone = {"connection": "close"}
        cut = at.http.post(CHAT, json=chat("hi", stream=True), headers=alone).text
        assert '"error"' in cut
        assert "[DONE]" not in cut
        asked = at.post(QUERY, query("hi", stream=True))
        worker.wait_until_asked(2)
        worker.cuts = False
        assert '"reply": "to hi"' in asked.result().text.replace('":"', '": "')


def test_an_app_leaves_a_worker_that_breaks_off_all_its_answers_for_a_busy_one() -> None:
    with door(num_workers=2, num_slots=8) as at:
        failing, busy = at.workers
        held = [at.post(CHAT, chat(f"held {number}")) for number in range(6)]
        until(lambda: len(failing.asked) + len(busy.asked) == len(held))
        failing.errs = failing.is_open = True
        until(lambda: sum(one.done() for one in held) == len(failing.asked))  # so that it looks best
        answer = at.post(QUERY, query("hi"))
        until(lambda: answer.done() or "hi" in busy.prompts[-1])
        busy.is_open = True
        assert answer.result().json()["outputs"] == {"reply": "to hi"}, answer.result().text
        assert [worker.prompts.count("hi") for worker in at.workers] == [1, 1]
        busy.errs = True
        lost = at.http.post(QUERY, json=query("lost"))
        assert (lost.status_code, lost.json()["error"]["code"]) == (502, "engine_unavailable")
        assert sum(worker.prompts.count("lost") for worker in at.workers) == 3


@pytest.mark.parametrize("refusal", [404, 401])
@pytest.mark.parametrize("is_inside", [True, False], ids=["in a stream", "as a status"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_app_leaves_a_worker_that_refuses_whoever_asks(
    refusal: int, is_inside: bool, stream: bool
) -> None:
    """The first worker breaks off its answer, the second one refuses, as if it had another model now."""
    with door(num_workers=3, num_slots=8) as at:
        cutting, refusing, busy = at.workers
        held = [at.post(CHAT, chat(f"held {number}")) for number in range(9)]
        until(lambda: sum(len(worker.asked) for worker in at.workers) == len(held))
        for worker in (cutting, refusing):
            worker.is_open = True
        until(lambda: sum(one.done() for one in held) == len(cutting.asked) + len(refusing.asked))
        cutting.errs = True
        refusing.errs, refusing.error_code = is_inside, refusal
        refusing.status = 200 if is_inside else refusal
        answer = at.post(QUERY, query("hi", stream=stream))
        until(lambda: answer.done() or "hi" in busy.prompts)
        busy.is_open = True
        assert '"reply":"to hi"' in answer.result().text.replace(" ", "").replace("tohi", "to hi")
        assert all(worker.prompts.count("hi") <= 1 for worker in at.workers)


def test_what_all_workers_refuse_fails_after_each_has_refused_it_once() -> None:
    with door(num_workers=3) as at:
        for worker in at.workers:
            worker.is_open, worker.status = True, 404
        lost = at.http.post(QUERY, json=query("lost"))
        assert lost.status_code == 502
        assert [worker.prompts.count("lost") for worker in at.workers] == [1, 1, 1]


def test_tenants_share_the_requests_that_may_wait() -> None:
    with door(num_slots=1, max_waiting=4, config=TENANTS) as at:
        greedy = [at.post(CHAT, chat(f"one {number}"), "a") for number in range(5)]
        at.wait_for_waiting(4)
        assert at.post(CHAT, chat("one too many"), "a").result().status_code == 429
        others = []
        for number in range(2):
            others.append(at.post(CHAT, chat(f"two {number}"), "b"))
            until(lambda number=number: sum(one.done() for one in greedy) == number + 1)
        assert at.post(CHAT, chat("two too many"), "b").result().status_code == 429
        at.workers[0].is_open = True
        assert sorted(one.result().status_code for one in greedy) == [200, 200, 200, 429, 429]
        assert [one.result().status_code for one in others] == [200, 200]


def test_keys_and_limits_hold_for_plain_traffic() -> None:
    with door(num_slots=8, config=TENANTS) as at:
        (worker,) = at.workers
        worker.is_open = True
        assert at.post(CHAT, chat("hi")).result().status_code == 401
        assert at.post("/v1/responses", chat("hi")).result().status_code == 401
        assert at.post(CHAT, chat("hi"), "a").result().status_code == 200
        assert "authorization" not in worker.asked[-1].headers
        assert at.post(CHAT, chat("hi", max_tokens=60), "c").result().status_code == 200
        over = at.post(CHAT, chat("hi", max_tokens=60), "c").result()
        assert over.status_code == 429
        assert int(over.headers["retry-after"]) >= 1
        long = at.post(CHAT, chat("hi", max_tokens=81), "c").result()
        assert (long.status_code, long.json()["error"]["code"]) == (422, "over_limit")
        assert at.post(CHAT, chat("hi"), "c").result().status_code == 429  # may be any length


def test_what_a_key_has_begun_goes_on_when_it_is_taken_out() -> None:
    with door(config=TENANTS) as at:
        (worker,) = at.workers
        streamed = at.post(CHAT, chat("first", stream=True), "a")
        until(lambda: "first" in worker.prompts)
        waits = at.post(CHAT, chat("second"), "a")
        at.wait_for_waiting(1)
        left = replace(TENANTS, tenant=TENANTS.tenant[1:])

        async def take_out() -> None:
            at.service.app.tenants.replace(left)

        at.service.runtime.run_on_loop(take_out)
        assert at.post(CHAT, chat("third"), "a").result().status_code == 401
        worker.is_open = True
        assert streamed.result().text.rstrip().endswith("data: [DONE]")
        assert waits.result().status_code == 200
        assert at.post(CHAT, chat("fourth"), "a").result().status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "%s", "max_tokens": 5000, "temperature": NaN}',
        '{"model": "%s", "max_tokens": 5000.0}',
        '{"model": "%s", "max_tokens": "5000"}',
        '{"model": "%s", "max_tokens": 1, "max_tokens": 5000}',
        '{"model": "%s", "max_new_tokens": 5000}',
        '{"model": "%s", "sampling_params": {"max_new_tokens": 5000}}',
        '{"model": "%s", "sampling_params": [{"max_new_tokens": 5000}]}',
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1//chat/completions", "/v1/completions/", "/generate"])
def test_a_limit_holds_in_whatever_form_it_is_written(path: str, body: str) -> None:
    with door(num_slots=8, config=TENANTS) as at:
        headers = {"authorization": "Bearer c", "content-type": "application/json"}
        answer = at.http.post(path, content=body % MODEL, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "over_limit")
        assert not at.workers[0].asked


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (COMPLETIONS, {"prompt": ["a", "b", "c"], "max_tokens": 50}),
        (COMPLETIONS, {"prompt": [[1], [2], [3]], "max_tokens": 50}),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 50, "n": "3"}),
        ("/v1//chat/completions", {}),
        (CHAT + "/", {}),
    ],
)
def test_all_answers_of_a_request_are_spent(path: str, more: dict[str, Any]) -> None:
    with door(num_slots=8, config=TENANTS) as at:
        (worker,) = at.workers
        worker.is_open = True
        assert at.post(CHAT, chat("hi", max_tokens=10), "c").result().status_code == 200
        assert at.post(path, {"model": MODEL, **more}, "c").result().status_code == 429


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        (b'{"model": "llm", "messages": [], "x": NaN}', b'{"model": "%b", "messages": [], "x": NaN}'),
        (b'{ "messages": [],"model":""}', b'{ "messages": [],"model":"%b"}'),
        (b'{ "messages": []}', b'{"model":"%b", "messages": []}'),
        (b"{ }", b'{"model":"%b" }'),
    ],
)
def test_no_byte_changes_but_the_name_of_the_engine(sent: bytes, passed_on: bytes) -> None:
    places = places_of_model(sent)
    assert places is not None
    assert with_model(sent, places, MODEL) == passed_on % MODEL.encode()
    assert places_of_model('{"x": "é"}'.encode("latin-1")) is None


def test_the_engine_is_named_in_a_body_that_is_no_strict_json() -> None:
    with door(num_slots=8) as at:
        (worker,) = at.workers
        worker.is_open = True
        sent = '{"model": "llm", "messages": [{"role": "user", "content": "hi"}], "x": NaN}'
        asked = at.http.post(CHAT, content=sent, headers={"content-type": "application/json"})
        assert asked.status_code == 200
        assert worker.asked[-1].body["model"] == MODEL


@pytest.mark.parametrize("name", ["x-api-key", "api-key"])
def test_keys_of_clients_of_other_apis_are_the_services_too(name: str) -> None:
    with door(num_slots=8, config=TENANTS) as at:
        (worker,) = at.workers
        worker.is_open = True
        for key, status in (("a", 200), ("z", 401)):
            answer = at.http.post("/v1/messages", json=chat("hi", max_tokens=5), headers={name: key})
            assert answer.status_code == status
        assert name not in worker.asked[-1].headers


def test_an_alias_is_a_model_of_the_door() -> None:
    alias = AliasConfig(name="gpt", models={MODEL: 1.0})
    with door(num_slots=8, alias=(alias,)) as at:
        (worker,) = at.workers
        worker.is_open = True
        listed = {one["id"]: one for one in at.http.get("/v1/models").json()["data"]}
        assert listed["gpt"]["root"] == MODEL
        assert at.http.get("/v1/models/gpt").json() == listed["gpt"]
        answer = at.http.post(CHAT, json={**chat("hi"), "model": "gpt"})
        assert (answer.status_code, worker.asked[-1].body["model"]) == (200, MODEL)


def test_a_tenant_gets_no_list_of_what_all_have_stored() -> None:
    with door(num_slots=8, config=TENANTS) as at:
        known = ("/v1/files", "/v1//batches", "/v1/conversations/", "/v1/assistants", "/v1/threads/")
        others = ("/v1/audio/voices", "/v1/what_is_to_come", "/v1/responses/input_tokens", "/rerank")
        for path in (*known, *others):
            for method in ("GET", "HEAD", "DELETE"):
                answer = at.http.request(method, path, headers={"authorization": "Bearer a"})
                assert answer.status_code == 403, (method, path)
        assert all(not worker.asked for worker in at.workers)
    with door(num_slots=8) as at:
        for path in ("/v1/files", "/v1/assistants", "/v1/audio/voices"):
            assert at.http.get(path).status_code != 403


def test_a_tenant_has_so_many_requests_at_the_workers_and_no_more() -> None:
    limits = Limits(sessions=2, tokens_per_minute=100_000)
    config = ServiceConfig(
        port=0,
        tenant=(
            TenantConfig(name="one", keys=("a",), limits=limits),
            TenantConfig(name="two", keys=("b",), limits=limits),
        ),
    )
    with door(num_slots=2, config=config) as at:
        (worker,) = at.workers
        running = [at.post(path, chat(str(path)), "a") for path in (CHAT, "/v1/responses")]
        worker.wait_until_asked(2)
        for path in (CHAT, "/v1/responses", "/v1/files/one"):
            over = at.post(path, chat("more"), "a").result()
            assert (over.status_code, over.json()["error"]["code"]) == (429, "over_limit"), path
            assert int(over.headers["retry-after"]) >= 1
        for _ in range(2):
            with httpx.Client(base_url=at.url) as leaving, pytest.raises(httpx.ReadTimeout):
                leaving.post(CHAT, json=chat("hi"), headers={"authorization": "Bearer b"}, timeout=0.2)
        worker.is_open = True
        assert {one.result().status_code for one in running} == {200}
        for key in "abab":  # what was answered, refused, or left by its client counts no more
            assert at.post(CHAT, chat("now"), key).result().status_code == 200


def test_tenants_have_shares_across_the_doors() -> None:
    """The tenant whose app has had much waits for the chat of another, though that is longer."""
    with door(config=TENANTS) as at:
        (worker,) = at.workers
        held = at.post(CHAT, chat("first"), "b")
        worker.wait_until_asked(1)
        burst = [at.post(QUERY, query("word " * 30_000 + f"{number}"), "a") for number in range(8)]
        at.wait_for_waiting(8)
        other = at.post(CHAT, chat("word " * 32_000 + "of the other"), "b")
        at.wait_for_waiting(9)
        worker.release(3)
        worker.wait_until_asked(4)
        assert any("of the other" in prompt for prompt in worker.prompts)
        worker.is_open = True
        assert {one.result().status_code for one in (held, *burst, other)} == {200}


def test_an_app_and_a_chat_of_one_session_are_one_program() -> None:
    with door() as at:
        (worker,) = at.workers
        headers = {"x-session-id": "s"}
        first = at.post(CHAT, chat("first"))
        worker.wait_until_asked(1)
        asked = [
            at.threads.submit(
                lambda name=name: at.http.post(CHAT, json={**chat("hi"), "model": name}, headers=headers)  # type: ignore[misc]
            )
            for name in (MODEL, "llm", "app:reply")
        ]
        at.wait_for_waiting(3)
        assert len({one.program for one in at.waiting()}) == 1
        worker.is_open = True
        assert {one.result().status_code for one in (first, *asked)} == {200}


def test_programs_of_plain_traffic_and_of_apps_share_the_room() -> None:
    """The agent that calls an app is held while the memory is taken by one that calls a worker's model."""

    def asked_as(at: Door, program: str, model: str) -> Future[httpx.Response]:
        body = {**chat(f"{program} " * 5000), "model": model}
        return at.threads.submit(
            lambda: at.http.post(CHAT, json=body, headers={"x-stretto-program": program})
        )

    with door(num_slots=8, kv_tokens=4000) as at:
        (worker,) = at.workers
        first = asked_as(at, "p", MODEL)
        worker.wait_until_asked(1)
        other = asked_as(at, "q", "app:reply")
        at.wait_for_waiting(1)
        assert "KV memory" in at.waiting()[0].why
        worker.is_open = True
        assert {one.result().status_code for one in (first, other)} == {200}


@pytest.mark.parametrize("order", [(CHAT, QUERY), (QUERY, CHAT)])
def test_an_app_and_a_chat_find_what_the_other_left_in_a_cache(order: tuple[str, str]) -> None:
    with door(4, num_slots=8) as at:
        for worker in at.workers:
            worker.is_open = True
        for number in range(4):
            beginning = f"{number} " * 4000
            for path in order:
                text = f"{beginning}{path}"
                body = chat(text) if path == CHAT else query(text)
                assert at.http.post(path, json=body).status_code == 200
            assert sorted(sum(one.startswith(beginning) for one in w.prompts) for w in at.workers)[-1] == 2
