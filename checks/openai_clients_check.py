"""Do clients of OpenAI's API work at `stretto serve` as they are?

    python -m checks.openai_clients_check [--models default,workers] [CLIENT…]

Runs `stretto serve` with the default model, and with an emulated worker. For each client it makes an
environment in `.venv-clients/`, and runs a small program there: plain and streamed answers, responses,
structured output, tools, vectors, an app. Environments are kept and used again. Prints a line for each
program. Exit code 1 if one fails.

Needs pip, and the package index that pip is configured with. Uses the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
ENVIRONMENTS = CLONE / ".venv-clients"
LIMIT_S = 600.0
"""Longest time of a program."""
_BOOK = CLONE / "examples" / "documents" / "treasure-island-opening.txt"

_COMMON = """
import asyncio, sys
from typing import Literal
from pydantic import BaseModel

url, question = sys.argv[1] + "/v1", "Where did the captain live?"

class Paint(BaseModel):
    colour: Literal["red", "blue"]
    coats: Literal[1, 2]

def weather(city: Literal["Oslo", "Rome"]) -> str:
    '''The weather in a city.'''
    return "rain in " + city
"""
_OPENAI = """
from openai import AsyncOpenAI, OpenAI

client = OpenAI(base_url=url, api_key="none")
asked = {"model": "llm", "messages": [{"role": "user", "content": question}], "temperature": 0}
whole = client.chat.completions.create(max_tokens=12, **asked).choices[0].message.content
pieces = client.chat.completions.create(max_tokens=12, stream=True, **asked)
assert "".join(one.choices[0].delta.content or "" for one in pieces) == whole
assert client.chat.completions.parse(max_tokens=64, response_format=Paint, **asked).choices[0].message.parsed
assert len(client.embeddings.create(model="embedding", input="a").data[0].embedding) == 384
cited = client.chat.completions.create(model="app:naive", messages=asked["messages"])
assert cited.choices[0].message.annotations

def said(model, **more):
    events = list(client.responses.create(model=model, input=question, stream=True, **more))
    texts = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(texts) == events[-1].response.output_text
    return events[-1].response

settings = {"temperature": 0, "max_output_tokens": 12}
whole_response = client.responses.create(model="llm", input=question, **settings)
assert whole_response.output_text == said("llm", **settings).output_text
assert client.responses.parse(model="llm", input=question, text_format=Paint, temperature=0).output_parsed
assert client.responses.create(model="app:naive", input=question).output[0].content[0].annotations
assert said("app:naive").output[0].content[0].annotations
schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
function = {"name": "weather", "parameters": schema}
tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
call, *_ = client.chat.completions.create(max_tokens=64, **tools, **asked).choices[0].message.tool_calls
assert call.function.name == "weather"
tools = {"tools": [{"type": "function", **function}], "tool_choice": "required"}
item, *_ = client.responses.create(model="llm", input=question, temperature=0, **tools).output
assert item.name == "weather"

async def main():
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        found = await client.chat.completions.create(max_tokens=12, **asked)
        assert found.choices[0].message.content == whole
        streamed = await client.chat.completions.create(max_tokens=12, stream=True, **asked)
        assert "".join([one.choices[0].delta.content or "" async for one in streamed]) == whole
        found = await client.responses.create(model="llm", input=question, **settings)
        assert found.output_text == whole_response.output_text

asyncio.run(main())
"""
_LANGCHAIN = """
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

llm = ChatOpenAI(base_url=url, api_key="none", model="llm", temperature=0, max_tokens=128)
whole = llm.invoke(question).content
assert "".join(one.content for one in llm.stream(question)) == whole
for method in ("json_schema", "function_calling"):
    assert isinstance(llm.with_structured_output(Paint, method=method).invoke("Paint."), Paint)
weather = tool(weather)
call = llm.bind_tools([weather], tool_choice="any").invoke("The weather?")
(asked,) = call.tool_calls
assert llm.invoke([("user", "The weather?"), call, weather.invoke(asked)]).content
vectors = OpenAIEmbeddings(base_url=url, api_key="none", model="embedding", check_embedding_ctx_length=False)
assert len(vectors.embed_query("a")) == 384
assert OpenAI(base_url=url, api_key="none", model="llm", temperature=0, max_tokens=4).invoke("The inn")
assert ChatOpenAI(base_url=url, api_key="none", model="app:naive").invoke(question).content
newer = ChatOpenAI(base_url=url, api_key="none", model="llm", use_responses_api=True, temperature=0)
assert newer.invoke(question).text
"""
_LANGGRAPH = """
from typing import TypedDict
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent

llm = ChatOpenAI(base_url=url, api_key="none", model="llm", temperature=0, max_tokens=32)
vectors = OpenAIEmbeddings(base_url=url, api_key="none", model="embedding", check_embedding_ctx_length=False)
pages = ["The captain lived at the inn.", "The squire lived at the hall.", "The doctor rode home."]

class State(TypedDict):
    question: str
    context: str
    answer: str

def retrieve(state):
    found, wanted = vectors.embed_documents(pages), vectors.embed_query(state["question"])
    scores = [sum(a * b for a, b in zip(one, wanted)) for one in found]
    return {"context": pages[scores.index(max(scores))]}

def generate(state):
    asked = "Context: " + state["context"] + "\\nQuestion: " + state["question"]
    return {"answer": llm.invoke(asked).content}

graph = StateGraph(State).add_node(retrieve).add_node(generate)
graph = graph.add_edge(START, "retrieve").add_edge("retrieve", "generate").add_edge("generate", END).compile()
found = graph.invoke({"question": question})
assert found["context"] == pages[0] and found["answer"]
streamed = [part[0].content for part in graph.stream({"question": question}, stream_mode="messages")]
assert "".join(streamed) == found["answer"]
agent = create_react_agent(llm, [tool(weather)])
messages = agent.invoke({"messages": [("user", "How is the weather in Oslo?")]})["messages"]
assert messages[-1].type == "ai"
"""
_LLAMA_INDEX = """
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

settings = {"api_base": url, "api_key": "none", "model": "llm", "context_window": 4096, "temperature": 0}
llm = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=128, **settings)
messages = [ChatMessage(role="user", content=question)]
llm.chat(messages)  # with its prompt in the cache, a model in bfloat16 may take another of two near tokens
whole = llm.chat(messages).message.content
assert "".join(one.delta or "" for one in llm.stream_chat(messages)) == whole
assert OpenAILike(is_chat_model=False, max_tokens=8, **settings).complete("The inn").text
tools = [FunctionTool.from_defaults(weather)]
answer = llm.chat_with_tools(tools, user_msg="The weather?", tool_required=True)
call, *_ = llm.get_tool_calls_from_response(answer)
assert call.tool_name == "weather"
vectors = OpenAILikeEmbedding(model_name="embedding", api_base=url, api_key="none")
assert len(vectors.get_text_embedding("a")) == 384
"""
_PYDANTIC_AI = """
from pydantic_ai import Agent, NativeOutput, Tool
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

settings = {"temperature": 0, "max_tokens": 128}

async def at_first(run, definition):
    return definition if run.run_step == 1 else None

async def main():
    model = OpenAIChatModel("llm", provider=OpenAIProvider(base_url=url, api_key="none"))
    plain = Agent(model, model_settings=settings)
    whole = (await plain.run(question)).output
    async with plain.run_stream(question) as run:
        assert "".join([text async for text in run.stream_text(delta=True)]) == whole
    for output in (Paint, NativeOutput(Paint)):
        found = await Agent(model, output_type=output, model_settings=settings).run("Paint.")
        assert isinstance(found.output, Paint)
    assert (await Agent(model, tools=[weather], model_settings=settings).run("The weather?")).output
    # The client requires a call in each request, and a small model may call the same tool each time.
    once = Tool(weather, prepare=at_first)
    with_tools = Agent(model, output_type=Paint, tools=[once], model_settings=settings)
    assert isinstance((await with_tools.run("The weather?")).output, Paint)
    newer = OpenAIResponsesModel("llm", provider=OpenAIProvider(base_url=url, api_key="none"))
    found = await Agent(newer, output_type=NativeOutput(Paint), model_settings=settings).run("Paint.")
    assert isinstance(found.output, Paint)

asyncio.run(main())
"""
_AGENTS = """
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from agents import function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="none")

async def run(model, limit):
    settings = {"name": "a", "model": model, "model_settings": ModelSettings(temperature=0, max_tokens=limit)}
    whole = (await Runner.run(Agent(instructions="Be brief.", **settings), question)).final_output
    streamed = Runner.run_streamed(Agent(instructions="Be brief.", **settings), question)
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == whole
    assert isinstance((await Runner.run(Agent(output_type=Paint, **settings), "Paint.")).final_output, Paint)
    settings["model_settings"] = ModelSettings(temperature=0, max_tokens=limit, tool_choice="required")
    tools = {"tools": [function_tool(weather)], "tool_use_behavior": "stop_on_first_tool"}
    found = await Runner.run(Agent(**tools, **settings), "The weather?")
    assert found.final_output.startswith("rain in")
    found = await Runner.run(Agent(tools=[function_tool(weather)], **settings), "The weather?")
    assert found.final_output and len(found.new_items) >= 3

async def main():
    await run(OpenAIChatCompletionsModel("llm", client), 128)
    await run(OpenAIResponsesModel("llm", client), None)  # which takes an answer at its limit for an error

asyncio.run(main())
"""


@dataclass(frozen=True)
class ClientExample:
    """A client and a program that uses it.

    Attributes:
        packages: what pip installs.
    """

    packages: tuple[str, ...]
    program: str


EXAMPLES: Mapping[str, ClientExample] = {
    "openai": ClientExample(("openai",), _OPENAI),
    "langchain": ClientExample(("langchain-openai",), _LANGCHAIN),
    "langgraph": ClientExample(("langgraph", "langchain", "langchain-openai"), _LANGGRAPH),
    "llama-index": ClientExample(
        ("llama-index-llms-openai-like", "llama-index-embeddings-openai-like"), _LLAMA_INDEX
    ),
    "pydantic-ai": ClientExample(("pydantic-ai-slim[openai]",), _PYDANTIC_AI),
    "openai-agents": ClientExample(("openai-agents",), _AGENTS),
}


def install(name: str, packages: tuple[str, ...]) -> Path:
    """Make the environment of a client unless it is there; return its Python."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "installed").touch()
    return python


@contextmanager
def running(*command: str) -> Iterator[str]:
    """Context manager that runs a command of `stretto`; gives the URL that it prints."""
    server = subprocess.Popen(
        [sys.executable, "-m", "stretto", *command], cwd=CLONE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if found := re.search(r"http://[^\s,]+", line):
                yield found[0]
                break
        else:
            raise SystemExit(f"stretto {command[0]} has ended")
    finally:
        server.kill()
        server.communicate()


@contextmanager
def serving(models: str) -> Iterator[str]:
    """Context manager that runs `stretto serve` with the default model, or with an emulated worker; gives its
    URL.
    """
    command = ["serve", "--port", "0", "--app", "naive", "--docs", str(_BOOK)]
    with ExitStack() as stack:
        if models == "workers":
            emulated = ("emulate", "--model", "llama-2-7b", "--loading-s", "0", "--port", "0")
            command += ["--worker", stack.enter_context(running(*emulated))]
        yield stack.enter_context(running(*command))


def main() -> int:
    """Check the clients that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(EXAMPLES)}; default: all"
    )
    parser.add_argument("--models", default="default,workers", help="what serves; default: both")
    given = parser.parse_args()
    clients = given.clients or list(EXAMPLES)
    if unknown := [name for name in clients if name not in EXAMPLES]:
        parser.error(f"there is no client {unknown[0]!r}; there are {', '.join(EXAMPLES)}")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="stretto-clients-") as work:
        for models in given.models.split(","):
            with serving(models) as url:
                for name in clients:
                    num_failed += not _succeeds(name, models, url, Path(work), variables)
    return min(1, num_failed)


def _succeeds(name: str, models: str, url: str, work: Path, variables: Mapping[str, str]) -> bool:
    """Run the program of a client, and print what came of it; return whether it succeeds."""
    python = install(name, EXAMPLES[name].packages)
    path = work / "program.py"
    path.write_text(_COMMON + EXAMPLES[name].program, "utf-8")
    begin_s = time.monotonic()
    ended = subprocess.run(
        [str(python), str(path), url],
        cwd=work,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    result = "ok" if ended.returncode == 0 else f"FAILED\n{ended.stderr}"
    print(f"{name}, {models}: {result} ({time.monotonic() - begin_s:.0f} s)", flush=True)
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
