"""One door before emulated servers: mixed traffic gets the answers that a single server gives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
from support.emulated import MODEL, emulating, fleet_of
from support.services import served

from stretto import Input, Template
from stretto import programs as P
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool

CHAT = "/v1/chat/completions"
NUM_TOKENS = 12
PATIENCE_S = 120


@P.SemanticFunction(max_tokens=NUM_TOKENS)
def say(text: P.SemanticVariable) -> None:
    """{{input:text}}{{output:answer}}"""


def reply_app() -> Template:
    call = LLMCall(prompt="{text}", text=Input("text", "text"), max_tokens=NUM_TOKENS)
    return Template("reply", call, {"reply": call["text"]})


@contextmanager
def door(urls: list[str]) -> Iterator[str]:
    config = ServiceConfig(port=0)
    pool = WorkerPool(RouterConfig(worker=tuple(WorkerConfig(url=url, num_slots=2) for url in urls)), config)
    apps = {"reply": deploy_app("reply", reply_app())}
    with served([transforms_engine()], config, apps, pool=pool) as (service, url):
        yield url

        async def check() -> None:
            pool.front.router_state.check_invariants()
            assert not pool.front.router_state.view.num_clients

        service.runtime.run_on_loop(check)


def ask(http: httpx.Client, text: str) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": NUM_TOKENS}
    answer = http.post(CHAT, json={**body, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def query(http: httpx.Client, text: str) -> str:
    answer = http.post("/v1/apps/reply/queries", json={"inputs": {"text": text}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["outputs"]["reply"])


def test_chats_apps_and_programs_at_once_get_the_answers_of_one_server() -> None:
    texts = [f"Question {number}: where is the inn? " * (1 + number % 7) for number in range(36)]
    with emulating(fleet_of(2)) as urls, httpx.Client(base_url=urls[0], timeout=PATIENCE_S) as direct:
        expected = [ask(direct, text) for text in texts]
        with (
            door(urls) as url,
            httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
            ThreadPoolExecutor(36) as threads,
        ):

            def one(number: int) -> str:
                text = texts[number]
                if number % 3 == 2:
                    with P.Client(url):
                        return str(say(text).get())
                return ask(http, text) if number % 3 else query(http, text)

            found = list(threads.map(one, range(len(texts))))
    assert [text.strip() for text in found] == [text.strip() for text in expected]


def test_a_program_whose_calls_depend_on_each_other() -> None:
    with emulating(fleet_of(2)) as urls, httpx.Client(base_url=urls[0], timeout=PATIENCE_S) as direct:
        first = ask(direct, "Where is the inn?")
        second = ask(direct, first.strip())
        with door(urls) as url, P.Client(url):
            assert str(say(say("Where is the inn?")).get()) == second.strip()
