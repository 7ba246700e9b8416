"""The programs of `checks/door_mixture.py`: what each kind runs, on a client that is as others have it.

A program is given the URL of a door, a model, how many of its kind there are, within how many seconds they
come, a seed, and how many of OpenAI's APIs agents use. Its last line is a list with the answer and the
seconds of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REPLIES = (
    {"when": "How is the weather", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
    {"when": "rain in", "content": "It rains."},
)
HEAD = """
import asyncio, json, random, sys, time
url, model = sys.argv[1] + "/v1", sys.argv[2]
number, within_s, seed = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
draw = random.Random(f"{seed}, {len(sys.argv)}")
limits = {"max_retries": 0, "timeout": 600}

async def one_of(run, which, begin_s):
    await asyncio.sleep(begin_s)
    sent_s = time.monotonic()
    found = await run(which)
    return [found, time.monotonic() - sent_s]

async def run_all(run):
    begins_s = sorted(draw.uniform(0, within_s) for _ in range(number))
    runs = (one_of(run, which, begin_s) for which, begin_s in enumerate(begins_s))
    print(json.dumps(await asyncio.gather(*runs)))
"""
_CHATS = """
from openai import AsyncOpenAI

async def main():
    async with AsyncOpenAI(base_url=url, api_key="none", **limits) as client:
        async def talk(which):
            messages = []
            for turn in range(3):
                messages.append({"role": "user", "content": f"Chat {which}, turn {turn}: go on. " * 20})
                asked = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 40}
                pieces = await client.chat.completions.create(stream=True, **asked)
                said = "".join([one.choices[0].delta.content or "" async for one in pieces if one.choices])
                messages.append({"role": "assistant", "content": said})
            return [one["content"] for one in messages]

        await run_all(talk)

asyncio.run(main())
"""
_RETRIEVAL = """
from typing import TypedDict
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

llm = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_tokens=48, **limits)
words = "ship inn squire island".split()
pages = [f"Page {number} tells of {word}. " * 150 for number, word in enumerate(words)]

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

async def ask(which):
    found = await graph.ainvoke({"question": f"What of the {words[which % 3]}, {which}?"})
    return found["answer"]

asyncio.run(run_all(ask))
"""
_AGENTS = """
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from agents import function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="none", **limits)
kinds = (OpenAIChatCompletionsModel, OpenAIResponsesModel)[: int(sys.argv[6])]

def weather(city: str) -> str:
    '''The weather in a city.'''
    return "rain in " + city

async def run(which):
    settings = ModelSettings(temperature=0, max_tokens=64)
    tools, instructions = [function_tool(weather)], f"You are agent {which}. " * 100
    about = {"name": "a", "instructions": instructions, "model_settings": settings, "tools": tools}
    agent = Agent(model=kinds[which % len(kinds)](model, client), **about)
    found = await Runner.run(agent, "How is the weather in Oslo?")
    return [found.final_output, len(found.new_items)]

asyncio.run(run_all(run))
"""
_BATCH = """
from stretto import Input, Runtime, Template
from stretto.components import LLMCall
from stretto.engines import llm_engine

call = LLMCall(prompt="{text}", text=Input("text", "text"), max_tokens=96)
app = Template("batch", call, {"answer": call["text"]})
within_s = 0.0

async def main():
    async with Runtime([llm_engine(sys.argv[1], api="chat", model=model)]) as runtime:
        async def line(which):
            found = await runtime.run(app, {"text": f"Line {which} of a batch."}, objective="offline")
            return found["answer"]

        await run_all(line)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Kind:
    """A kind of program.

    Attributes:
        client: name of the client in whose environment it runs; "" is this one's.
        weight: how many of them there are where there is one agent.
    """

    client: str
    program: str
    weight: int


KINDS: Mapping[str, Kind] = {
    "chats": Kind("openai", _CHATS, 3),
    "retrieval": Kind("langgraph", _RETRIEVAL, 2),
    "agents": Kind("openai-agents", _AGENTS, 1),
    "batch": Kind("", _BATCH, 10),
}
"""Kinds of programs by name."""
