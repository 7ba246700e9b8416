"""Does one door serve a mixture of unmodified programs, and are their answers those of a single server?

    python -m checks.door_mixture [--workers N]

Chats of the client `openai`, retrieval by LangGraph, agents of the OpenAI Agents SDK with a tool, and offline
work of Stretto's library run at the same time against `stretto serve` before emulated servers, and then one
after the other against one such server alone. Emulated servers answer a prompt with the same text wherever it
runs, so that all answers must be equal. Prints the seconds of each program, and which answers differ. Exit
code 1 if one does, or if a program fails.

Clients run in the environments of `checks/openai_clients_check.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from checks.openai_clients_check import EXAMPLES, LIMIT_S, install, running

_MODEL = "llama-2-7b"
_REPLIES = (
    {"when": "How is the weather", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
    {"when": "rain in", "content": "It rains."},
)
_HEAD = """
import asyncio, json, sys
url, model = sys.argv[1] + "/v1", sys.argv[2]
"""
_CHATS = """
from openai import AsyncOpenAI

async def talk(client, number):
    messages = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Chat {number}, turn {turn}: go on."})
        asked = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 40}
        pieces = await client.chat.completions.create(stream=True, **asked)
        said = "".join([one.choices[0].delta.content or "" async for one in pieces if one.choices])
        messages.append({"role": "assistant", "content": said})
    return [one["content"] for one in messages]

async def main():
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        print(json.dumps(await asyncio.gather(*(talk(client, number) for number in range(24)))))

asyncio.run(main())
"""
_RETRIEVAL = """
from typing import TypedDict
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

settings = {"temperature": 0, "max_tokens": 48, "max_retries": 0, "timeout": 600}
llm = ChatOpenAI(base_url=url, api_key="none", model=model, **settings)
words = "ship inn squire island".split()
pages = [f"Page {number} tells of {word}. " * 30 for number, word in enumerate(words)]

class State(TypedDict):
    question: str
    context: str
    answer: str

async def generate(state):
    asked = "Context: " + state["context"] + "\\nQuestion: " + state["question"]
    return {"answer": (await llm.ainvoke(asked)).content}

def retrieve(state):
    asked = state["question"].split()
    return {"context": "".join(page for page in pages if any(word in page for word in asked))}

graph = StateGraph(State).add_node(retrieve).add_node(generate)
graph = graph.add_edge(START, "retrieve").add_edge("retrieve", "generate").add_edge("generate", END).compile()

async def main():
    asked = [f"What of the {word}, {number}?" for number in range(6) for word in ("ship", "inn", "squire")]
    print(json.dumps([one["answer"] for one in await graph.abatch([{"question": one} for one in asked])]))

asyncio.run(main())
"""
_AGENTS = """
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from agents import function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)

def weather(city: str) -> str:
    '''The weather in a city.'''
    return "rain in " + city

async def run(kind, number):
    settings = ModelSettings(temperature=0, max_tokens=64)
    tools, instructions = [function_tool(weather)], f"You are agent {number}."
    about = {"name": "a", "instructions": instructions, "model_settings": settings, "tools": tools}
    agent = Agent(model=kind(model, client), **about)
    found = await Runner.run(agent, "How is the weather in Oslo?")
    return [found.final_output, len(found.new_items)]

async def main():
    kinds = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
    print(json.dumps(await asyncio.gather(*(run(kind, number) for number in range(8) for kind in kinds))))

asyncio.run(main())
"""
_BATCH = """
from stretto import Input, Runtime, Template
from stretto.components import LLMCall
from stretto.engines import llm_engine

call = LLMCall(prompt="{text}", text=Input("text", "text"), max_tokens=32)
app = Template("batch", call, {"answer": call["text"]})

async def main():
    async with Runtime([llm_engine(sys.argv[1], api="chat", model=model)]) as runtime:
        asked = [{"text": f"Line {number} of a batch."} for number in range(40)]
        found = await asyncio.gather(*(runtime.run(app, one, objective="offline") for one in asked))
    print(json.dumps([one["answer"] for one in found]))

asyncio.run(main())
"""
_PROGRAMS: Mapping[str, tuple[str, str]] = {
    "chats": ("openai", _CHATS),
    "retrieval": ("langgraph", _RETRIEVAL),
    "agents": ("openai-agents", _AGENTS),
    "batch": ("", _BATCH),
}
"""Programs by name, each with the client whose environment it runs in; "" is this one's."""


def run(name: str, url: str, work: Path) -> tuple[object, float]:
    """Run a program against a server; return its answers and seconds. Raises SystemExit if it fails."""
    client, program = _PROGRAMS[name]
    python = str(install(client, EXAMPLES[client].packages)) if client else sys.executable
    path = work / f"program_{name}.py"
    path.write_text(_HEAD + program, "utf-8")
    variables = {one: value for one, value in os.environ.items() if not one.startswith("PYTHON")}
    if not client:
        variables["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    begin_s = time.monotonic()
    command = [python, str(path), url, _MODEL]
    ended = subprocess.run(
        command, cwd=work, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{name} has failed:\n{ended.stderr}")
    return json.loads(ended.stdout.splitlines()[-1]), time.monotonic() - begin_s


def main() -> int:
    """Run the mixture at the door, then each program at one server alone; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=3, help="number of emulated servers behind the door")
    given = parser.parse_args()
    num_apart = 0
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stretto-mixture-")))
        (work / "replies.json").write_text(json.dumps(_REPLIES), "utf-8")
        settings = ("--loading-s", "0", "--port", "0", "--replies", str(work / "replies.json"))
        emulate = ("emulate", "--model", _MODEL, *settings)
        urls = [stack.enter_context(running(*emulate)) for _ in range(given.workers)]
        workers = [word for url in urls for word in ("--worker", url)]
        door = stack.enter_context(running("serve", "--port", "0", *workers))
        with ThreadPoolExecutor(len(_PROGRAMS)) as threads:
            together = dict(
                zip(_PROGRAMS, threads.map(lambda name: run(name, door, work), _PROGRAMS), strict=True)
            )
        alone = stack.enter_context(running(*emulate))
        for name, (answers, seconds) in together.items():
            expected, alone_s = run(name, alone, work)
            assert isinstance(answers, list)
            assert isinstance(expected, list)
            apart = sum(one != other for one, other in zip(answers, expected, strict=True))
            num_apart += apart
            times = f"{seconds:.1f} s together, {alone_s:.1f} s alone"
            print(f"{name}: {len(answers)} answers, {apart} apart; {times}", flush=True)
    return min(1, num_apart)


if __name__ == "__main__":
    sys.exit(main())
