"""One engine with unlike replicas: two stock servers, one of which is down for a while, and two in-process
models, one of which is slow. Nobody who asks notices."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.openai_stub import OpenAIStub, Reply
from support.runtime_engines import ServerEngine, graph
from support.virtual_loop import in_virtual_time

from benchmarks.common.mini_model import MINI
from benchmarks.common.vllm_server import NOT_INSTALLED, find_vllm, serving
from stretto import Runtime
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, EngineUnavailable, EngineUnreachable
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Done, LLMEvent, LLMTask, Piece, Started
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import InstanceReady, InstanceSuspected, LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

pytest_plugins = ("support.llm_fixtures",)

COMPLETE = graph(
    """
    graph complete(%text: text)
      %kv     = prefill([c"Say: ", %text]) : kv @llm
      %answer = decode(%kv) {max_tokens=12} : text @llm
      return %answer
    """
)
TEXTS = [f"river {number}" for number in range(40)]
PROFILE = Profile(per_unit_s=0.0001, per_output_s=0.005)


class Slowed(TransformerLLM):
    """An engine that takes longer for each step than it needs."""

    def step(self) -> list[LLMEvent]:
        time.sleep(0.03)
        return super().step()


class Traffic(Observer):
    """An observer that notes which instance got which request and when, and which ones were suspected."""

    def __init__(self) -> None:
        self.admitted: list[tuple[float, int]] = []
        self.answered: dict[int, int] = {}
        self.suspected_s: dict[int, float] = {}
        self.ready_s: dict[int, float] = {}

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case InstanceSuspected(_, instance):
                self.suspected_s.setdefault(instance, now_s)
            case InstanceReady(_, instance):
                self.ready_s[instance] = now_s
            case LLMReport(_, instance, Done(value=str())):
                self.answered[instance] = self.answered.get(instance, 0) + 1

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit) and action.task.decode is not None:
            self.admitted.append((now_s, action.instance))

    def num_given(self, instance: int, start_s: float, end_s: float) -> int:
        """Return the number of requests that an instance got within a span of time."""
        return sum(start_s < at_s < end_s and instance == to for at_s, to in self.admitted)


def in_process(executable: Callable[[Any], Any], folder: Path, profile: Profile = PROFILE) -> Replica:
    return Replica(executable, TransformerConfig(folder), runs_in="thread", profile=profile)


def server(url: str) -> Replica:
    config = OpenAIServerConfig(url, api="completions", tokenizer="none", max_retries=0, warms_prefixes=False)
    return Replica(OpenAIServer, config, runs_in="loop", profile=PROFILE)


def deployment(*replicas: Replica, max_running: int = 4) -> Deployment:
    return Deployment(Engine("llm", "llm", max_running=max_running, timeout_s=60.0), replicas)


async def ask(runtime: Runtime, texts: list[str]) -> list[str]:
    outputs = await asyncio.gather(*(runtime.run(COMPLETE, {"text": text}) for text in texts))
    return [output["answer"] for output in outputs]


@pytest.fixture(scope="module")
def answers(tiny_checkpoint: Path) -> dict[str, str]:
    """Return the answers of the model, by text."""

    async def main() -> list[str]:
        async with Runtime([deployment(in_process(TransformerLLM, tiny_checkpoint))]) as runtime:
            return await ask(runtime, TEXTS)

    return dict(zip(TEXTS, asyncio.run(main()), strict=True))


@asynccontextmanager
async def stub(answers: Mapping[str, str], port: int = 0) -> AsyncIterator[OpenAIStub]:
    """Return a server that answers as the model does."""

    def answer(request: Mapping[str, Any]) -> Reply:
        text = request["prompt"].removeprefix("Say: ")
        return Reply(tuple(re.findall(r"\s*\S+", answers[text])))

    async with OpenAIStub(answer, port=port) as running:
        yield running


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not is_so():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("max_running", [4, 1])
def test_one_of_four_unlike_replicas_is_down_for_a_while(
    tiny_checkpoint: Path, answers: dict[str, str], max_running: int
) -> None:
    port = free_port()
    seen = Traffic()

    async def main() -> None:
        async with stub(answers) as living:
            replicas = (
                server(living.url),
                server(f"http://127.0.0.1:{port}"),
                in_process(TransformerLLM, tiny_checkpoint),
                in_process(Slowed, tiny_checkpoint, Profile(per_unit_s=0.0001, per_output_s=0.04)),
            )
            dead = 1
            engine = deployment(*replicas, max_running=max_running)
            async with asyncio.timeout(100), Runtime([engine], observers=[seen]) as runtime:
                assert await ask(runtime, TEXTS) == list(answers.values())
                down_s = seen.suspected_s[dead]
                num_fed = seen.num_given(dead, down_s, float("inf"))
                assert dead not in seen.answered
                assert seen.num_given(dead, 0.0, down_s) <= max_running
                assert num_fed <= 6, "one at a time, and ever later"
                async with stub(answers, port) as back:
                    await until(lambda: seen.ready_s[dead] > down_s)
                    assert back.requests == [], "it was asked for its models, not for an answer"
                    assert await ask(runtime, TEXTS) == list(answers.values())
                    assert len(back.requests) == seen.answered[dead] > 4
        assert sum(seen.answered.values()) == 2 * len(TEXTS)
        assert sorted(seen.answered) == [0, 1, 2, 3]
        assert seen.answered[2] >= seen.answered[3]

    asyncio.run(main())


@asynccontextmanager
async def relay(url: str, port: int) -> AsyncIterator[None]:
    """What comes to `port` goes to the server at `url`, and back."""
    host, to_port = url.removeprefix("http://").split(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(host, int(to_port))
        await asyncio.gather(pass_on(reader, to_writer), pass_on(to_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        yield


@pytest.mark.timeout(900)
def test_a_real_server_that_refuses_for_a_while_beside_one_that_does_not_and_models_in_process() -> None:
    """The engines may differ in the last bit, and so in their texts: every question has an answer."""
    try:
        vllm = find_vllm()
    except ConfigError as error:
        pytest.skip(str(error))
    if vllm is None:
        pytest.skip(NOT_INSTALLED)
    seen = Traffic()
    port, refusing = free_port(), 1

    async def main(url: str) -> None:
        engine = deployment(
            server(url),
            server(f"http://127.0.0.1:{port}"),
            in_process(TransformerLLM, MINI),
            in_process(Slowed, MINI, Profile(per_unit_s=0.0001, per_output_s=0.04)),
        )
        async with asyncio.timeout(300), Runtime([engine], observers=[seen]) as runtime:
            began_s = time.monotonic()
            assert len(await ask(runtime, TEXTS)) == len(TEXTS)
            assert refusing not in seen.answered
            assert seen.num_given(refusing, seen.suspected_s[refusing], float("inf")) <= 6
            await asyncio.sleep(max(0.0, began_s + 10.0 - time.monotonic()))
            async with relay(url, port):
                await until(lambda: seen.ready_s[refusing] > seen.suspected_s[refusing])
                assert len(await ask(runtime, TEXTS)) == len(TEXTS)

    with serving(vllm, MINI, dtype="float32", num_threads=1, say=lambda _: None) as url:
        asyncio.run(main(url))
    assert sorted(seen.answered) == [0, 1, 2, 3]
    assert sum(seen.answered.values()) == 2 * len(TEXTS)


def test_work_waits_for_the_only_server_until_it_is_back(answers: dict[str, str]) -> None:
    """The refusals of the server do not use up the attempts of waiting requests."""
    port = free_port()
    seen = Traffic()

    async def main() -> None:
        engine = deployment(server(f"http://127.0.0.1:{port}"))
        async with asyncio.timeout(100), Runtime([engine], observers=[seen]) as runtime:
            asked = asyncio.gather(*(ask(runtime, [text]) for text in TEXTS[:1]))
            await until(lambda: bool(seen.suspected_s))
            await asyncio.sleep(1.6)
            async with stub(answers, port):
                assert await asked == [[answers[text]] for text in TEXTS[:1]]

    asyncio.run(main())


class Refusing(ServerEngine):
    """A server that takes some seconds for an answer, and takes no connection before a time of the loop."""

    def __init__(self, config: tuple[float, float]) -> None:
        self._answer_s, self._until_s = config

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        await self.probe()
        emit(Started(task.id))
        await asyncio.sleep(self._answer_s)
        emit(Done(task.id, f"answer to {task.prompt[-1].text}"))

    async def probe(self) -> None:
        if asyncio.get_running_loop().time() < self._until_s:
            raise EngineUnreachable("connection refused")


@in_virtual_time
async def test_while_one_of_four_unlike_replicas_refuses_for_ten_seconds_all_forty_are_answered() -> None:
    """Questions come for 20 seconds, faster than the other three answer."""
    back_s, dead, seen = 10.0, 1, Traffic()
    configs = ((1.5, 0.0), (1.5, back_s), (1.5, 0.0), (4.0, 0.0))
    replicas = [
        Replica(Refusing, config, runs_in="loop", profile=Profile(base_s=config[0])) for config in configs
    ]
    async with Runtime([deployment(*replicas, max_running=1)], observers=[seen]) as runtime:

        async def ask_later(number: int) -> str:
            await asyncio.sleep(number * 0.5)
            answer: str = (await runtime.run(COMPLETE, {"text": TEXTS[number]}))["answer"]
            return answer

        answers = await asyncio.gather(*map(ask_later, range(40)))
    assert answers == [f"answer to {text}" for text in TEXTS]
    assert sum(seen.answered.values()) == 40
    assert seen.num_given(dead, -1.0, back_s) <= 9, "one at a time, after delays that double from 0.1 s"
    assert seen.suspected_s[dead] < back_s < seen.ready_s[dead]
    assert seen.answered[dead] >= 4


class NamedServer(ServerEngine):
    """A server of a model, by whose name all its words begin; they take a second each."""

    def __init__(self, model: str) -> None:
        self._model = model

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Started(task.id))
        words = [f"{self._model}{number} " for number in range(4)]
        for word in words:
            await asyncio.sleep(1)
            emit(Piece(task.id, word))
        emit(Done(task.id, "".join(words)))


@pytest.mark.parametrize("has_like", [True, False])
@in_virtual_time
async def test_what_was_shown_goes_on_at_the_same_model_or_fails_and_says_so(has_like: bool) -> None:
    replicas = [Replica(NamedServer, model, runs_in="loop") for model in ("a", "b", "a")[: 2 + has_like]]
    llm = Deployment(Engine("llm", "llm", placement="round_robin"), tuple(replicas))
    async with Runtime([llm]) as runtime:
        query = await runtime.submit(COMPLETE, {"text": "it"})
        other = await runtime.submit(COMPLETE, {"text": "it"})
        await asyncio.sleep(2.5)
        runtime.drain_instance("llm", 0, "suspend")
        if has_like:
            shown = [piece async for piece in query.stream("answer")]
            assert (await query)["answer"] == "".join(shown) == "a0 a1 a2 a3 "
        else:
            with pytest.raises(EngineUnavailable, match="was shown, and engine 'llm' has no replica of that"):
                await query
            assert asyncio.get_running_loop().time() == 2.5
        assert (await other)["answer"] == "b0 b1 b2 b3 "
