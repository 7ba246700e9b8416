"""Programs of several kinds as clients would run them: a session is a list of calls, which share one list of
messages that grows. Of each kind there are several sessions at a time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.prefix.texts import Texts

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
NUM_SESSIONS = 5
"""Sessions of each kind."""
Fields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromptCall:
    """A call of a session.

    Attributes:
        session: name of the session.
        fields: body of the request.
        answer: body of the answer.
    """

    session: str
    at_s: float
    path: str
    fields: Fields
    answer: Mapping[str, Any]


@dataclass(slots=True)
class Harness:
    """What all sessions of a kind have, and the choices of one of them.

    Attributes:
        shared: choices of its kind.
        rng: choices of this session.
        noise: choices of a fault alone, so that the session has the same texts without it.
        number: number of the session.
    """

    texts: Texts
    shared: random.Random
    rng: random.Random
    noise: random.Random
    number: int
    system: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.system = self.shared.choice(self.texts.instructions)
        self.tools = deepcopy(self.shared.sample(self.texts.tools, 8))

    def task(self) -> str:
        """Return what a user asks for."""
        return f"Please look at this: {self.rng.choice(self.texts.passages)[:300]}"

    def passage(self) -> str:
        """Return what a tool returns, or a document."""
        return self.rng.choice(self.texts.passages)

    def answer(self) -> str:
        """Return what the model says."""
        words = self.rng.choice(self.texts.passages).split()
        return " ".join(self.rng.sample(words, min(len(words), self.rng.randint(12, 40))))


Build: TypeAlias = Callable[[Harness], Iterator[tuple[str, Fields, str | dict[str, Any]]]]
"""Yields the path, the body, and the answer (a text or a message) of each call of a session."""


def calls_of(build: Build, texts: Texts, seed: str, num_sessions: int = NUM_SESSIONS) -> list[PromptCall]:
    """Return the calls of the sessions of a kind, in the order of their times."""
    calls = []
    for number in range(num_sessions):
        rng = random.Random(f"{seed} session {number}")
        harness = Harness(texts, random.Random(seed), rng, random.Random(f"{seed} noise {number}"), number)
        at_s = rng.uniform(0, 20)
        for path, fields, answer in build(harness):
            body = _answer_body(path, answer)
            calls.append(PromptCall(f"{seed} {number}", at_s, path, deepcopy(fields), body))
            at_s += rng.uniform(2, 8)
    return sorted(calls, key=lambda call: call.at_s)


def _answer_body(path: str, answer: str | dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
    if path == TEXT:
        return {"id": "cmpl-1", "choices": [{"index": 0, "text": message["content"]}]}
    if path == MESSAGES:
        return {"id": "msg_1", "role": "assistant", "content": [{"type": "text", "text": message["content"]}]}
    if path == RESPONSES:
        part = {"type": "output_text", "text": message["content"]}
        return {"id": "resp_1", "output": [{"type": "message", "role": "assistant", "content": [part]}]}
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "message": message}]}


def agent(h: Harness, turns: int = 5) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
    """An agent with tools, by OpenAI's API of chats."""
    fields: Fields = {"model": "m", "tools": h.tools}
    fields["messages"] = [{"role": "system", "content": h.system}, {"role": "user", "content": h.task()}]
    for turn in range(turns):
        arguments = {"where": h.passage()[:60], "limit": h.rng.randint(1, 99), "turn": turn}
        name = h.rng.choice(h.tools)["function"]["name"]
        call: Fields = {"id": f"call_{h.number}{turn}", "type": "function"}
        call["function"] = {"name": name, "arguments": json.dumps(arguments)}
        said = {"role": "assistant", "content": h.answer(), "tool_calls": [call]}
        yield CHAT, fields, said
        fields["messages"] += [said, {"role": "tool", "tool_call_id": call["id"], "content": h.passage()}]


def claude(h: Harness, turns: int = 5) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
    """A coding agent by Anthropic's API, whose system prompt is a list."""
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in h.tools)
    ]
    fields: Fields = {"model": "m", "max_tokens": 1000, "tools": tools}
    fields["system"] = [
        {"type": "text", "text": "You work in a repository."},
        {"type": "text", "text": h.system},
    ]
    fields["messages"] = [{"role": "user", "content": h.task()}]
    for _ in range(turns):
        said = h.answer()
        yield MESSAGES, fields, said
        fields["messages"] += [
            {"role": "assistant", "content": [{"type": "text", "text": said}]},
            {"role": "user", "content": [{"type": "text", "text": h.passage()}]},
        ]


def responses(h: Harness, turns: int = 4) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
    """A chat by OpenAI's newer API."""
    fields: Fields = {
        "model": "m",
        "instructions": h.system,
        "input": [{"role": "user", "content": h.task()}],
    }
    for _ in range(turns):
        said = h.answer()
        yield RESPONSES, fields, said
        fields["input"] += [{"role": "assistant", "content": said}, {"role": "user", "content": h.task()}]


def chat(h: Harness, turns: int = 4) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
    """A chat that may begin with a greeting, as many do."""
    fields: Fields = {"model": "m", "messages": [{"role": "system", "content": h.system}]}
    for turn in range(turns):
        ask = "Hello!" if turn == 0 and h.rng.random() < 0.5 else h.task()
        fields["messages"].append({"role": "user", "content": ask})
        said = "Hello! How can I help you today?" if ask == "Hello!" else h.answer()
        yield CHAT, fields, said
        fields["messages"].append({"role": "assistant", "content": said})


def rag(h: Harness, calls: int = 4) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
    """Questions with documents, which now and then are those of an earlier question."""
    few = h.shared.sample(h.texts.passages, 12)
    for _ in range(calls):
        found = "\n\n".join(h.rng.sample(few, 3))
        ask = f"Documents:\n{found}\n\nQuestion: {h.task()}\nAnswer:"
        messages = [{"role": "system", "content": h.system}, {"role": "user", "content": ask}]
        yield CHAT, {"model": "m", "messages": messages}, h.answer()


def react(h: Harness, turns: int = 4) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
    """An agent whose prompt is one text that grows, with examples before the question."""
    prompt = f"{h.system}\nQuestion: {h.task()}\n"
    for turn in range(1, turns + 1):
        prompt += f"Thought {turn}:"
        said = f" {h.answer()}"
        yield TEXT, {"model": "m", "prompt": prompt}, said
        prompt += f"{said}\nObservation {turn}: {h.passage()}\n"


def changed(build: Build, change: Callable[[Harness, Fields, int], object]) -> Build:
    """Return a kind whose every request is changed on its way: `change` gets a copy of its body, and its
    number in its session.
    """

    def made(h: Harness) -> Iterator[tuple[str, Fields, str | dict[str, Any]]]:
        for turn, (path, fields, answer) in enumerate(build(h)):
            sent = deepcopy(fields)
            change(h, sent, turn)
            yield path, sent, answer

    return made
