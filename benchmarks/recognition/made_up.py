"""Sessions with made-up texts: chats, agents with tools and sub-agents, compacted histories, forks, questions
with retrievals. They share what sessions of one harness share: system prompts (some with the time), first
tasks, first words of answers, and answers that are the same for all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.recognition.calls import CHAT, TEXT, TrueCall, chat_answer, text_answer
from benchmarks.recognition.words import Words, shared_text

_NUM_HARNESSES = 8
_GREETINGS = ("hi", "hello", "Hi, can you help me?", "test")
_GREETED = (
    "Hello! How can I help you today?",
    "Hi there! What can I do for you today, and how may I assist you?",
)
_STARTS = (
    "I'll help you with that. Let me start by looking at the structure of the project.",
    "Let me look at the files first to understand what we are working with here.",
    "",
)
_CONTINUED = (
    "This session is being continued from an earlier conversation that ran out of context. Summary:\n"
)
_SUMMARISE = "Write a summary of the conversation so far, with all that is needed to go on with the task."


class _Session:
    """One program that makes calls, and its clock."""

    def __init__(self, name: str, words: Words, harness: int, start_s: float) -> None:
        self.name = name
        self.words = words
        self.rng = words.rng
        self.harness = harness
        self.now_s = start_s
        self.calls: list[TrueCall] = []
        self.is_spaced = self.rng.random() < 0.5  # the client writes arguments of calls anew
        self.strips = self.rng.random() < 0.3

    def system(self, name: str = "main") -> dict[str, str]:
        """Return the system prompt of the harness, which may hold the time."""
        text = shared_text(f"{self.harness} {name}", 150, 600)
        at = f"\nThe time is {self.now_s:.0f}." if self.harness % 3 == 0 else ""
        return {"role": "system", "content": text + at}

    def ask(self, messages: list[dict[str, Any]], said: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Make a call, now and then twice; return the answer as a later prompt has it."""
        fields = {"model": "m", "messages": list(messages)}
        if self.rng.random() < 0.02:
            fails_s = self.now_s + self.rng.uniform(0.1, 2)
            self.calls.append(TrueCall(self.name, self.now_s, fails_s, CHAT, fields, None, kind))
            self.now_s = fails_s + 1
        end_s = self.now_s + self.rng.uniform(1, 15)
        self.calls.append(TrueCall(self.name, self.now_s, end_s, CHAT, fields, chat_answer(said), kind))
        self.now_s = end_s
        return self._as_sent_again(said)

    def _as_sent_again(self, said: Mapping[str, Any]) -> dict[str, Any]:
        again = json.loads(json.dumps(said))
        again.pop("reasoning_content", None)
        if isinstance(again.get("content"), str) and self.strips:
            again["content"] = again["content"].strip() or None
        for call in again.get("tool_calls", ()) if self.is_spaced else ():
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
        return dict(again)

    def wait(self, most_s: float) -> None:
        """Let time go by."""
        self.now_s += self.rng.uniform(0.1, most_s)

    def tool_call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call of a tool."""
        number = self.rng.randrange(10**9)
        text = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
        function = {"name": name, "arguments": text}
        return {"id": f"call_{number}", "type": "function", "function": function}

    def acts(self) -> dict[str, Any]:
        """Return an answer that calls a tool."""
        start = self.rng.choice(_STARTS) if self.rng.random() < 0.4 else self.words.text(5, 60)
        path = f"src/{self.rng.randrange(40)}.py"
        arguments = (
            {"path": path} if self.rng.random() < 0.5 else {"path": path, "text": self.words.text(20, 200)}
        )
        call = self.tool_call(self.rng.choice(("read", "grep", "write")), arguments)
        return {"role": "assistant", "content": start or None, "tool_calls": [call]}

    def says(self, least: int = 10, most: int = 300) -> dict[str, Any]:
        """Return an answer that is a text."""
        return {"role": "assistant", "content": f"\n{self.words.text(least, most)} "}

    def returns(self, said: Mapping[str, Any], text: str | None = None) -> list[dict[str, Any]]:
        """Return the results of the tools that an answer calls."""
        return [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": self.words.text(10, 400) if text is None else text,
            }
            for call in said["tool_calls"]
        ]

    def task(self) -> str:
        """Return a task: often one that other sessions of the harness have too."""
        if self.rng.random() < 0.3:
            return shared_text(f"task {self.harness} {self.rng.randrange(3)}", 30, 120)
        return self.words.text(20, 150)


def _chat(session: _Session) -> None:
    messages: list[dict[str, Any]] = [session.system()]
    is_greeting = session.rng.random() < 0.3
    for turn in range(session.rng.randint(1, 8)):
        is_first = is_greeting and turn == 0
        ask = session.rng.choice(_GREETINGS) if is_first else session.words.text(5, 80)
        said = {"role": "assistant", "content": session.rng.choice(_GREETED)} if is_first else session.says()
        messages.append({"role": "user", "content": ask})
        messages.append(session.ask(messages, said, "chat"))
        session.wait(60)


def _agent(session: _Session, turns: int | None = None, kind: str = "agent") -> list[dict[str, Any]]:
    messages = [session.system(), {"role": "user", "content": session.task()}]
    _work(session, messages, turns or session.rng.randint(3, 20), kind)
    return messages


def _work(session: _Session, messages: list[dict[str, Any]], turns: int, kind: str) -> None:
    for _ in range(turns):
        said = session.acts()
        messages += [session.ask(messages, said, kind), *session.returns(said)]
        session.wait(10)
    messages.append(session.ask(messages, session.says(), kind))


def _with_sub_agents(session: _Session) -> None:
    messages = _agent(session, session.rng.randint(1, 4))
    messages.append({"role": "user", "content": session.words.text(10, 60)})
    for _ in range(session.rng.randint(1, 3)):
        tasks = [session.words.text(12, 120) for _ in range(session.rng.randint(1, 4))]
        is_plan = session.rng.random() < 0.3
        calls = [session.tool_call("task", {"agent": "worker", "prompt": task}) for task in tasks]
        plan = "\n".join(f"{number + 1}. {' '.join(task.split())}" for number, task in enumerate(tasks))
        said = (
            {"role": "assistant", "content": f"My plan:\n{plan}"}
            if is_plan
            else {"role": "assistant", "content": session.words.text(5, 20), "tool_calls": calls}
        )
        messages.append(session.ask(messages, said, "agent"))
        start_s, results, ends_s = session.now_s, [], [session.now_s]
        for task in tasks:
            session.now_s = start_s + session.rng.uniform(0, 0.5)
            text = " ".join(task.split()) if is_plan else task
            results.append(_sub_agent(session, text))
            ends_s.append(session.now_s)
        session.now_s = max(ends_s)
        if is_plan:
            messages.append({"role": "user", "content": "\n\n".join(results)})
        else:
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
    messages.append(session.ask(messages, session.says(), "agent"))


def _sub_agent(session: _Session, task: str) -> str:
    wrapped = task if session.rng.random() < 0.7 else f"<task>\n{task}\n</task>\nBegin now."
    messages = [session.system("sub"), {"role": "user", "content": wrapped}]
    for _ in range(session.rng.randint(0, 4)):
        said = session.acts()
        messages += [session.ask(messages, said, "sub-agent"), *session.returns(said)]
        session.wait(5)
    said = session.says(30, 200)
    session.ask(messages, said, "sub-agent")
    return str(said["content"])


def _twin(session: _Session) -> None:
    """Let an agent have the task, first answers and first results of others, as with temperature 0."""
    number = session.rng.randrange(4)
    script = _Session("script", Words(random.Random(f"twin {session.harness} {number}")), 0, 0.0)
    messages = [session.system(), {"role": "user", "content": script.task()}]
    session.is_spaced = session.strips = False
    for _ in range(session.rng.randint(1, 3)):
        said = script.acts()
        messages += [session.ask(messages, said, "twin"), *script.returns(said)]
        session.wait(10)
    _work(session, messages, session.rng.randint(2, 10), "twin")


def _compacting(session: _Session) -> None:
    messages = _agent(session, session.rng.randint(4, 10))
    for _ in range(session.rng.randint(1, 3)):
        messages.append({"role": "user", "content": _SUMMARISE})
        said = session.ask(messages, session.says(80, 500), "agent")
        summary = str(said["content"]).strip()
        messages = [session.system(), {"role": "user", "content": f"{_CONTINUED}{summary}\nGo on."}]
        _work(session, messages, session.rng.randint(2, 8), "after compaction")


def _forking(session: _Session) -> None:
    messages = _agent(session, session.rng.randint(2, 6))
    for _ in range(session.rng.randint(1, 4)):
        asked = [*messages, {"role": "user", "content": session.words.text(5, 60)}]
        start_s = session.now_s
        branches = []
        for _ in range(session.rng.randint(2, 4)):
            session.now_s = start_s + session.rng.uniform(0, 20)
            branches.append([*asked, session.ask(asked, session.says(), "fork")])
        messages = session.rng.choice(branches)
        if session.rng.random() < 0.3:  # the user goes back and asks anew
            messages = messages[: session.rng.randrange(2, len(messages))]
            while messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
                messages = messages[:-1]
                if len(messages) < 3:
                    return
        session.wait(20)


def _rag(session: _Session) -> None:
    question = session.words.text(8, 25)
    rewrite = [session.system("rewrite"), {"role": "user", "content": question}]
    query = session.ask(rewrite, session.says(12, 30), "rag")
    documents = "\n\n".join(shared_text(f"doc {session.rng.randrange(200)}", 100, 200) for _ in range(4))
    text = f"{documents}\n\nQuestion: {str(query['content']).strip()}"
    answer = [session.system("answer"), {"role": "user", "content": text}]
    said = session.ask(answer, session.says(20, 120), "rag")
    check = f"Is this answer right?\n{str(said['content']).strip()}\n\nQuestion: {question}"
    session.ask([session.system("check"), {"role": "user", "content": check}], session.says(1, 4), "rag")


def _text(session: _Session) -> None:
    shared = str(session.system()["content"])
    prompt = f"{shared}\nQuestion: {session.task()}\n"
    for step in range(1, session.rng.randint(3, 9)):
        prompt += f"Thought {step}:"
        said = " " + session.words.text(10, 50)
        fields = {"model": "m", "prompt": prompt}
        end_s = session.now_s + session.rng.uniform(1, 8)
        call = TrueCall(session.name, session.now_s, end_s, TEXT, fields, text_answer(said), "text")
        session.calls.append(call)
        session.now_s = end_s
        session.wait(5)
        prompt += f"{said}\nObservation {step}: {session.words.text(10, 100)}\n"


_KINDS: tuple[tuple[float, Callable[[_Session], object]], ...] = (
    (0.28, _chat),
    (0.23, _agent),
    (0.04, _twin),
    (0.13, _with_sub_agents),
    (0.1, _compacting),
    (0.08, _forking),
    (0.07, _rag),
    (0.07, _text),
)


def made_up_calls(num_sessions: int, seed: int, rate_per_s: float = 1.0) -> list[list[TrueCall]]:
    """Return the calls of sessions, of which so many begin in a second."""
    rng = random.Random(seed)
    words = Words(rng)
    weights = [weight for weight, _ in _KINDS]
    sessions: list[list[TrueCall]] = []
    start_s = 0.0
    for number in range(num_sessions):
        start_s += rng.expovariate(rate_per_s)
        session = _Session(f"s{number}", words, rng.randrange(_NUM_HARNESSES), start_s)
        rng.choices([make for _, make in _KINDS], weights)[0](session)
        sessions.append(session.calls)
    return sessions
