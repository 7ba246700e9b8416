"""Servers that fail, over real HTTP: each kind of failure, placement and number of emulated servers.

A call ends at a living server, to which it goes as soon as its failure is known; a server that may be down
gets health checks alone. With no living server calls end in typed errors. `make fault-tests` runs all
placements, with the figures shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.emulated import emulating, fleet_of
from support.failing_servers import CallWatch
from support.hostile import show
from support.openai_stub import OpenAIStub, Reply

from stretto import Runtime
from stretto import programs as P  # noqa: N812
from stretto.emulate.fleet import check_fleet
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.batch.server.config import BatchServerConfig
from stretto.engines.batch.server.embedding import EmbeddingServer
from stretto.engines.executables import PROFILES
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import BadReply, BadServer, EngineFailure
from stretto.model.replica import Engine, Replica
from stretto.runtime import probing
from stretto.runtime.query import Query

RUNS_ALL = int(os.environ.get("STRETTO_FAULT_RUNS", "0")) > 0
NUM_CALLS = 8
SPEED = 4.0
PLACEMENTS = ("least_seconds", "parrot", "stretto")
FAULTS: Mapping[str, Mapping[str, object]] = {
    "dies": {"kind": "die"},
    "restarts": {"kind": "restart", "for_s": 60},
    "silent": {"kind": "hang"},
    "503": {"kind": "refuse"},
    "429": {"kind": "refuse", "status": 429},
    "500": {"kind": "refuse", "status": 500},
    "404": {"kind": "refuse", "status": 404},
    "slow": {"kind": "slow", "factor": 1000},
}
CALL = """
    graph call(%x: any)
      %kv = prefill([c"Tell me of this: ", %x]) : kv @llm
      %y  = decode(%kv) {max_tokens=60, ignore_eos=true} : text @llm
      return %y
"""
EMBED = """
    graph embedding(%texts: list[text])
      %vectors = embed(texts=each %texts) : list[vector] @embedding
      return %vectors
"""


def graph(text: str) -> ExecutionGraph:
    return compile_graph(parse_graph(text), {})


def llm(urls: Sequence[str], placement: str, **settings: Any) -> Deployment:
    """An LLM engine of servers that are declared by their URLs alone, as on the command line."""
    retries = {"max_retries": settings.pop("max_retries")} if "max_retries" in settings else {}
    configs = [
        OpenAIServerConfig(url, api="completions", timeout_s=1.5, backoff_s=0.05, **retries) for url in urls
    ]
    replicas = [Replica(OpenAIServer, one, runs_in="loop", profile=PROFILES["llm-server"]) for one in configs]
    return Deployment(Engine("llm", "llm", placement=placement, **settings), tuple(replicas))


async def first_word(query: Query) -> None:
    async for _ in query.stream("y"):
        return


async def is_well(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health", timeout=0.5)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def matrix() -> Sequence[tuple[str, str, int]]:
    if RUNS_ALL:
        return list(product(PLACEMENTS, FAULTS, (2, 4)))
    return [("least_seconds", "dies", 2), ("parrot", "429", 2), ("parrot", "404", 2), ("stretto", "dies", 2)]


@pytest.mark.parametrize(("placement", "failure", "num_servers"), matrix())
def test_calls_of_a_server_that_fails_end_at_another_one(
    placement: str, failure: str, num_servers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the calls come before the failure and half after it."""
    watch = CallWatch()
    text = CALL.replace("@llm", '@llm with {"timeout_s": 10.0, "retries": 1}') if failure == "slow" else CALL
    call = graph(text)

    async def main(urls: Sequence[str]) -> list[object]:
        async with Runtime([llm(urls, placement)], observers=[watch]) as runtime, asyncio.timeout(200):
            await runtime.run(call, {"x": "warm up"})
            early = [await runtime.submit(call, {"x": f"thing {n}"}) for n in range(NUM_CALLS)]
            await asyncio.gather(*map(first_word, early))
            async with httpx.AsyncClient() as client:
                await client.post(f"{urls[0]}/emulator/faults", json=FAULTS[failure])
            late = [await runtime.submit(call, {"x": f"thing {n}"}) for n in range(NUM_CALLS)]
            answers = await asyncio.gather(*early, *late)
            assert runtime.system.is_idle()
            runtime.system.check_invariants()
            return [answer["y"] for answer in answers]

    with emulating(fleet_of(num_servers, speed=SPEED)) as urls:
        answers = asyncio.run(main(urls))
    assert answers[:NUM_CALLS] == answers[NUM_CALLS:], "equal prompts get equal answers"
    assert all(len(str(answer).split()) > 1 for answer in answers)
    assert watch.num_at_suspects == 0, "only health checks"
    assert set(watch.num_failures.values()) <= {1}, "not where it has failed"
    assert watch.again_s == watch.known_s, "as soon as the failure is known"
    shown = {"placement": placement, "failure": failure, "servers": num_servers}
    show(capsys, "a server fails", **shown, failed=len(watch.known_s), longest=f"{watch.longest_s:.2f} s")


@pytest.mark.parametrize("failure", ["dies", "silent", "503", "429", "500", "404"] if RUNS_ALL else ["dies"])
@pytest.mark.parametrize("placement", PLACEMENTS if RUNS_ALL else ["least_seconds"])
def test_calls_end_in_a_typed_error_where_no_server_lives(placement: str, failure: str) -> None:
    call = graph(CALL)

    async def main(urls: Sequence[str]) -> list[object]:
        async with Runtime([llm(urls, placement, recover_s=1.0)]) as runtime, asyncio.timeout(200):
            early = [await runtime.submit(call, {"x": f"thing {n}"}) for n in range(2)]
            await asyncio.gather(*map(first_word, early))
            async with httpx.AsyncClient() as client:
                await client.post(f"{urls[0]}/emulator/faults", json=FAULTS[failure])
                while await is_well(client, urls[0]):
                    await asyncio.sleep(0.01)
            late = [await runtime.submit(call, {"x": f"more {n}"}) for n in range(2)]
            ends = await asyncio.gather(*early, *late, return_exceptions=True)
            assert runtime.system.is_idle()
            return [end for end in ends if isinstance(end, BaseException)]

    with emulating(fleet_of(1, speed=SPEED)) as urls:
        errors = asyncio.run(main(urls))
    assert len(errors) >= 2
    assert all(isinstance(error, EngineFailure) for error in errors), errors


@pytest.mark.parametrize("placement", PLACEMENTS if RUNS_ALL else ["stretto"])
def test_a_server_that_comes_back_with_another_model_answers_again(placement: str) -> None:
    """Calls go on at the server that lives; when that one dies, they go to the other model."""
    call = graph(CALL)

    @asynccontextmanager
    async def serving(name: str, port: int = 0) -> AsyncIterator[OpenAIStub]:
        def answer(request: Mapping[str, Any]) -> Reply:
            if request["model"] != name:
                return Reply(status=404)
            return Reply((f"{name} ", "says ", "so."), delta_s=0.05)

        card = json.dumps({"data": [{"id": name}]})
        async with OpenAIStub(answer, pages={"GET /v1/models": lambda _: card}, port=port) as stub:
            yield stub

    async def main() -> list[object]:
        async with serving("old") as living:
            async with serving("old") as dying:
                urls = [dying.url, living.url]
                runtime = Runtime([llm(urls, placement)])
                await runtime.__aenter__()
                before = await asyncio.gather(*(runtime.run(call, {"x": f"{n}"}) for n in range(4)))
            during = await asyncio.gather(*(runtime.run(call, {"x": f"{n}"}) for n in range(4)))
            back = serving("new", int(urls[0].rsplit(":", 1)[1]))
            stub = await back.__aenter__()
        until_s = time.monotonic() + 100
        found: list[object] = []
        while not stub.requests and time.monotonic() < until_s:
            found = [(await runtime.run(call, {"x": "later"}))["y"]]
        await runtime.__aexit__(None, None, None)
        await back.__aexit__(None, None, None)
        assert {one["y"] for one in (*before, *during)} == {"old says so."}
        return found

    assert asyncio.run(asyncio.wait_for(main(), 200)) == ["new says so."]


REFUSALS = (
    (Reply(status=429, headers={"Retry-After": "3600"}), 1),
    (Reply(status=429, headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}), 1),
    (Reply(status=503, headers={"Retry-After": "3600"}), 1),
    (Reply(status=500), 30),
    (Reply(("so",), "cut"), 30),
    (Reply(status=401), 30),
    (Reply(status=404), 30),
    (Reply(raw=b"data: {so\n\n", headers={"Content-Type": "text/event-stream"}), 30),
    (Reply(raw=b"Welcome", headers={"Content-Type": "text/html"}), 30),
    (Reply(raw=b"{so", headers={"Content-Type": "application/json"}), 30),
)
"""What a server answers instead of doing work, and how many of 30 calls may ask it at most."""


@pytest.mark.parametrize(
    ("placement", "refusal", "most"),
    [
        pytest.param(placement, *refusal, marks=[pytest.mark.long] * ((at + number) % len(PLACEMENTS) > 0))
        for number, placement in enumerate(PLACEMENTS)
        for at, refusal in enumerate(REFUSALS)
    ],
)
def test_a_server_that_is_well_but_does_no_work_costs_no_call(
    placement: str, refusal: Reply, most: int
) -> None:
    """It answers health checks. One that has asked to be left alone is not even asked for them."""
    call = graph(CALL)

    async def main() -> int:
        async with OpenAIStub(lambda _: refusal) as bad, OpenAIStub(lambda _: Reply(("so it is",))) as good:
            config = llm([bad.url, good.url], placement, max_attempts=2)
            async with Runtime([config]) as runtime, asyncio.timeout(100):
                for number in range(30):
                    answer = await runtime.run(call, {"x": f"thing {number}"})
                    assert answer["y"] == "so it is"
                    await asyncio.sleep(0.01)
            return len(bad.requests)

    assert asyncio.run(main()) <= most


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_call_fails_if_all_servers_answer_nobody_well_and_only_then(placement: str) -> None:
    """Each server is asked once, whatever `max_attempts` says, and the error says what the last one said."""
    call = graph(CALL)

    async def main() -> None:
        async with (
            OpenAIStub(lambda _: Reply(status=404)) as first,
            OpenAIStub(lambda _: Reply(status=403)) as second,
            OpenAIStub(lambda _: replies[-1]) as third,
        ):
            stubs = (first, second, third)
            async with (
                Runtime([llm([one.url for one in stubs], placement, max_attempts=1)]) as runtime,
                asyncio.timeout(100),
            ):
                assert (await runtime.run(call, {"x": "a"}))["y"] == "so it is"
                replies.append(Reply(status=404))
                for number in range(3):
                    before = [len(one.requests) for one in stubs]
                    with pytest.raises(BadServer):
                        await runtime.run(call, {"x": f"{number}"})
                    asked = [len(one.requests) - num for one, num in zip(stubs, before, strict=True)]
                    assert max(asked) <= 1, "not where it has failed"
                    assert sum(asked) >= 1
                assert runtime.system.is_idle()

    replies = [Reply(("so it is",))]
    asyncio.run(main())


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_request_that_a_server_refuses_is_not_tried_elsewhere(placement: str) -> None:
    call = graph(CALL)

    async def main() -> int:
        refusal = Reply(status=400)
        async with OpenAIStub(lambda _: refusal) as first, OpenAIStub(lambda _: refusal) as second:
            config = llm([first.url, second.url], placement)
            async with Runtime([config]) as runtime, asyncio.timeout(100):
                with pytest.raises(BadReply):
                    await runtime.run(call, {"x": "a"})
            return len(first.requests) + len(second.requests)

    assert asyncio.run(main()) <= 2


def test_the_only_server_is_asked_again_though_it_wanted_to_be_left_alone_for_years(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "MAX_REST_S", 0.2)
    call = graph(CALL)
    long = {"Retry-After": "1000000000"}

    async def main() -> None:
        replies = [Reply(("so it is",)), Reply(status=429, headers=long), Reply(status=503, headers=long)]
        async with (
            OpenAIStub(lambda _: replies.pop() if len(replies) > 1 else replies[0]) as stub,
            Runtime([llm([stub.url], "stretto", max_retries=0)]) as runtime,
            asyncio.timeout(50),
        ):
            assert (await runtime.run(call, {"x": "a"}))["y"] == "so it is"

    asyncio.run(main())


@P.SemanticFunction(max_tokens=400, ignore_eos=True)
def say(x: P.SemanticVariable) -> None:
    """Say thing {{x}}: {{output:y}}"""


def num_running(url: str) -> float:
    """Number of requests that an emulated server runs."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


@pytest.mark.parametrize("placement", PLACEMENTS if RUNS_ALL else ["least_seconds"])
def test_the_command_serve_goes_on_when_one_of_two_servers_dies(
    placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "engines.toml"
    with emulating(fleet_of(2, speed=SPEED)) as urls:
        replicas = "".join(
            f'[[replica]]\nengine = "llm"\nexecutable = "openai"\nconfig = {{ url = "{url}" }}\n'
            for url in urls
        )
        engine = f'[[engine]]\nname = "llm"\ncontract = "llm"\nplacement = "{placement}"\n'
        file.write_text(engine + replicas)
        command = [sys.executable, "-m", "stretto.cli.main", "serve", "--engines", str(file), "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                with P.Client(process.stderr.readline().split()[0]):
                    httpx.post(f"{urls[0]}/emulator/faults", json=FAULTS["slow"])  # its calls do not end
                    early = [say(number) for number in range(6)]
                    until_s = time.monotonic() + 100
                    while num_running(urls[0]) == 0:
                        assert time.monotonic() < until_s, "some calls go to each server"
                        time.sleep(0.01)
                    httpx.post(f"{urls[0]}/emulator/faults", json=FAULTS["dies"])
                    late = [say(number) for number in range(6)]
                    answers = [answer.get("latency", timeout_s=100) for answer in (*early, *late)]
            finally:
                process.kill()
    assert answers[:6] == answers[6:]


@pytest.mark.parametrize("failure", ["dies", "503", "429", "404"] if RUNS_ALL else ["429", "404"])
def test_batches_of_a_server_that_fails_end_at_another_one(failure: str) -> None:
    embed = graph(EMBED)
    servers = tuple(WantedServer(kind="embedding", devices=(number,), port=0) for number in range(2))
    fleet = check_fleet(WantedFleet(("RTX-3090", "RTX-3090"), servers))

    async def main(urls: Sequence[str]) -> None:
        replicas = [Replica(EmbeddingServer, BatchServerConfig(url), runs_in="thread") for url in urls]
        engine = Deployment(Engine("embedding", max_attempts=2), tuple(replicas))
        async with Runtime([engine]) as runtime, asyncio.timeout(200), httpx.AsyncClient() as client:
            await runtime.run(embed, {"texts": ["warm", "up"]})
            await client.post(f"{urls[0]}/emulator/faults", json=FAULTS[failure])
            queries = [await runtime.submit(embed, {"texts": [f"text {n}", "b"]}) for n in range(20)]
            assert all(len(answer["vectors"]) == 2 for answer in await asyncio.gather(*queries))
            assert runtime.system.is_idle()

    with emulating(fleet) as urls:
        asyncio.run(main(urls))
