"""The client `openai`, unmodified, at `stretto serve` in a process of its own, with the model that ships."""

from __future__ import annotations

import asyncio
import enum
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import stretto
from benchmarks.common.mini_model import MINI
from stretto.engines.llms import llm_engine
from stretto.graph.one_call import CallGraphs, PromptMessage, inputs_of_call
from stretto.runtime.runtime import Runtime

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

ROOT = Path(stretto.__file__).parent.parent
BOOK = ROOT / "examples" / "documents" / "treasure-island-opening.txt"
QUESTION = "Where did the captain live?"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
CITIES = {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": CITIES, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cache = str(tmp_path_factory.mktemp("cache"))
    document = tmp_path_factory.mktemp("documents") / BOOK.name
    document.write_text(BOOK.read_text("utf-8")[:3000], "utf-8")
    command = [sys.executable, "-m", "stretto.cli.main", "serve", "--port", "0", "--app", "advanced"]
    server = subprocess.Popen(
        [*command, "--llm", str(MINI), "--docs", str(document)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache},
    )
    try:
        assert server.stderr is not None
        lines: list[str] = []
        while (found := re.search(r"http://\S+", lines[-1] if lines else "")) is None:
            lines.append(server.stderr.readline())
            assert lines[-1], "".join(lines)
        yield f"{found.group()}/v1"
    finally:
        server.kill()
        server.communicate()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as found:
        yield found


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime([llm_engine(str(MINI))]) as found:
        yield found


def direct(runtime: Runtime, max_tokens: int) -> str:
    """Return the runtime's own answer to the question."""
    messages = (PromptMessage("user", QUESTION),)
    graph = CallGraphs().of("llm", messages, {"max_tokens": max_tokens})
    return str(runtime.run_sync(graph, inputs_of_call(messages))["answer"])


def test_an_answer_is_the_runtimes_whole_and_streamed(client: Any, runtime: Runtime) -> None:
    whole = client.chat.completions.create(model="llm", max_completion_tokens=12, **ASKED)
    text = whole.choices[0].message.content
    assert text == direct(runtime, 12)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 12)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="llm", max_tokens=12, **options, **ASKED))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == text
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_many_clients_at_once_get_the_same(url: str, runtime: Runtime) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:

            async def whole() -> str:
                found = await client.chat.completions.create(model="llm", max_tokens=8, **ASKED)
                return str(found.choices[0].message.content)

            async def streamed() -> str:
                found = await client.chat.completions.create(model="llm", max_tokens=8, stream=True, **ASKED)
                return "".join([one.choices[0].delta.content or "" async for one in found])

            return await asyncio.gather(*(whole() for _ in range(8)), *(streamed() for _ in range(8)))

    assert set(asyncio.run(ask())) == {direct(runtime, 8)}


def test_seeds_decide_and_choices_differ(client: Any) -> None:
    asked = {**ASKED, "temperature": 1.5, "seed": 3, "n": 3, "max_tokens": 8}
    first, second = (client.chat.completions.create(model="llm", **asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3


def test_a_stop_string_ends_the_answer(client: Any, runtime: Runtime) -> None:
    stop = direct(runtime, 12).split()[2]
    found = client.chat.completions.create(model="llm", max_tokens=12, stop=[stop], **ASKED).choices[0]
    assert (found.finish_reason, stop in found.message.content) == ("stop", False)


def test_a_completion_and_its_stream(client: Any) -> None:
    asked = {"model": "llm", "prompt": ["The captain", "The inn"], "max_tokens": 6, "temperature": 0}
    whole = [choice.text for choice in client.completions.create(**asked).choices]
    texts = ["", ""]
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == whole


def test_structured_output_is_parsed(client: Any) -> None:
    pytest.importorskip("llguidance")

    class Litres(int, enum.Enum):
        one = 1
        two = 2

    class Paint(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        colour: Literal["red", "blue"]
        litres: Litres

    found = client.chat.completions.parse(model="llm", response_format=Paint, max_tokens=64, **ASKED)
    assert isinstance(found.choices[0].message.parsed, Paint)


def test_a_tool_is_called_and_answered(client: Any) -> None:
    pytest.importorskip("llguidance")
    asked = {**ASKED, "model": "llm", "tools": [WEATHER], "max_tokens": 128}
    message = client.chat.completions.create(tool_choice="required", **asked).choices[0].message
    calls = [call.function for call in message.tool_calls]
    assert calls
    assert {call.name for call in calls} == {"weather"}
    assert {call.arguments for call in calls} <= {'{"city": "Oslo"}', '{"city": "Rome"}'}
    with client.chat.completions.stream(tool_choice="required", **asked) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.arguments for call in calls]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    asked |= {"messages": [*ASKED["messages"], message, *results], "max_tokens": 8}
    assert client.chat.completions.create(tool_choice="none", **asked).choices[0].message.content


def test_vectors_come_from_a_model_that_starts_when_it_is_needed(client: Any) -> None:
    found = client.embeddings.create(model="embedding", input=["a ship", "a boat", "arithmetic"])
    ship, boat, other = (one.embedding for one in found.data)

    def product(one: list[float], two: list[float]) -> float:
        return sum(a * b for a, b in zip(one, two, strict=True))

    assert len(ship) == 384
    assert product(ship, boat) > product(ship, other)
    assert found.usage.prompt_tokens == 3 * 2 + 5
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="embedding", input="word " * 300)
    assert caught.value.code == "context_length_exceeded"


def test_an_app_answers_from_the_documents_of_the_service(client: Any) -> None:
    messages = ASKED["messages"]
    message = client.chat.completions.create(model="app:advanced", messages=messages).choices[0].message
    assert message.content
    assert message.annotations[0].url_citation.url.endswith(BOOK.name)
    chunks = list(client.chat.completions.create(model="app:advanced", messages=messages, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == message.content
    assert [model.id for model in client.models.list()] == ["llm", "embedding", "reranking", "app:advanced"]


def test_errors_are_those_that_the_client_knows(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="llm", messages=[{"role": "user", "content": "word " * 9000}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", **ASKED)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="llm", logprobs=True, **ASKED)
    assert refused.value.param == "logprobs"


def test_the_programs_of_the_page_run(url: str) -> None:
    pytest.importorskip("llguidance")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "openai.md").read_text("utf-8"), re.DOTALL)
    program = "\n".join(blocks).replace("http://127.0.0.1:8700/v1", url)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert "treasure-island" in ended.stdout
