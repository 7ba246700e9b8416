"""Calls of recorded sessions: agents that write a program together (MetaGPT), agents with tools (ToolBench),
agents that search (ReAct), and the agent that comes with Stretto.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.recognition.calls import CHAT, TEXT, TrueCall, chat_answer, text_answer
from benchmarks.recognition.own_agents import own_calls


def recorded_calls(data: Path, seed: int) -> dict[str, list[list[TrueCall]]]:
    """Return the calls of recorded sessions, by the name of their set."""
    rng = random.Random(seed)
    return {
        "MetaGPT, a program of 57 calls": [_coding(data, rng)],
        "ToolBench, 13 agents with tools": _tool_agents(data, rng),
        "ReAct, 100 agents that search": _searching_agents(data, rng),
        "agents of Stretto, 24 questions": own_calls(seed),
    }


def _coding(data: Path, rng: random.Random) -> list[TrueCall]:
    """Return the calls of one program: a design, then seven rounds of eight calls at once."""
    path = data / "multi_agent_coding" / "metagpt_pytorch_calls.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    calls: list[TrueCall] = []
    start_s = 0.0
    for _, rows_of_round in groupby(rows, lambda row: row["round"]):
        ends_s = []
        for row in rows_of_round:
            messages = [
                {"role": "system", "content": row["system"]},
                {"role": "user", "content": row["user"]},
            ]
            said = {"role": "assistant", "content": row["response"]}
            begin_s, end_s = start_s + rng.random(), start_s + rng.uniform(5, 20)
            fields = {"model": "m", "messages": messages}
            calls.append(TrueCall("metagpt", begin_s, end_s, CHAT, fields, chat_answer(said), "coding"))
            ends_s.append(end_s)
        start_s = max(ends_s)
    return calls


def _tool_agents(data: Path, rng: random.Random) -> list[list[TrueCall]]:
    """Return the calls of agents, with the prompts that were recorded. Their last message is the answer."""
    sessions = []
    path = data / "toolbench" / "agent_conversations.jsonl"
    for number, line in enumerate(path.read_text("utf-8").splitlines()):
        row = json.loads(line)
        prompts = [call["messages"] for call in row["calls"]]
        start_s = rng.uniform(0, 60)
        calls: list[TrueCall] = []
        for *messages, said in map(_as_chat, prompts):
            end_s = start_s + rng.uniform(2, 10)
            fields = {"model": "m", "messages": messages}
            calls.append(
                TrueCall(f"tools{number}", start_s, end_s, CHAT, fields, chat_answer(said), "tool agent")
            )
            start_s = end_s + rng.uniform(0.2, 5)
        sessions.append(calls)
    return sessions


def _as_chat(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with calls of functions in the form that is in use now."""
    made = []
    for message in messages:
        plain = {name: value for name, value in message.items() if name != "function_call"}
        if call := message.get("function_call"):
            plain["tool_calls"] = [{"id": "call", "type": "function", "function": call}]
        made.append(plain)
    return made


def _searching_agents(data: Path, rng: random.Random) -> list[list[TrueCall]]:
    """Return the calls of agents that share an instruction with examples, each prompt one text."""
    examples = json.loads((data / "agent_prompts" / "hotpotqa_fewshot.json").read_text("utf-8"))
    sessions = []
    path = data / "hotpotqa" / "react_traces_100.jsonl"
    for number, line in enumerate(path.read_text("utf-8").splitlines()):
        row = json.loads(line)
        prompt = f"{examples['webthink_simple6']}\nQuestion: {row['question']}\n"
        start_s = rng.uniform(0, 60)
        calls: list[TrueCall] = []
        for step, one in enumerate(row["steps"], 1):
            prompt += f"Thought {step}:"
            said = f" {one['thought']}\nAction {step}: {one['action']}"
            end_s = start_s + rng.uniform(1, 6)
            fields = {"model": "m", "prompt": prompt}
            calls.append(
                TrueCall(f"react{number}", start_s, end_s, TEXT, fields, text_answer(said), "search agent")
            )
            start_s = end_s + rng.uniform(0.2, 3)
            prompt += f"{said}\nObservation {step}: {one['observation']}\n"
        sessions.append(calls)
    return sessions
