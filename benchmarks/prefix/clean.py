"""Clean programs: 15 kinds that do nothing wrong, some of which look as if they did. Four of each make 60."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.prefix.sessions import (
    CHAT,
    Build,
    Fields,
    Harness,
    agent,
    changed,
    chat,
    claude,
    rag,
    react,
    responses,
)

Calls = Iterator[tuple[str, Fields, str | dict[str, Any]]]


def clean_programs() -> dict[str, Build]:
    """Return the kinds by their names."""
    return {
        "agent": agent,
        "coding agent": claude,
        "responses": responses,
        "chat": chat,
        "documents": rag,
        "text agent": react,
        "day at the head": changed(agent, lambda h, f, turn: _add(f, "Today's date: 2026-11-27.", 0)),
        "name at the end": changed(chat, lambda h, f, turn: _add(f, f"The user is no. {h.number}.", None)),
        "compaction": _compacting,
        "sub-agents": _with_sub_agents,
        "forks": _forking,
        "old results cleared": _clearing,
        "tools loaded later": changed(agent, _more_tools),
        "steps of a workflow": _workflow,
        "all read one file": _reading,
    }


def _add(fields: Fields, line: str, place: int | None) -> None:
    text = fields["messages"][0]["content"]
    fields["messages"][0]["content"] = f"{line}\n{text}" if place == 0 else f"{text}\n{line}"


def _more_tools(h: Harness, fields: Fields, turn: int) -> None:
    if turn >= 3:
        fields["tools"].append(h.texts.tools[h.number])


def _compacting(h: Harness) -> Calls:
    fields: Fields = {}
    for path, fields, said in agent(h, 6):
        yield path, fields, said
    summary = {"role": "user", "content": f"You have worked on this: {h.answer()} {h.answer()}\nGo on."}
    messages = [fields["messages"][0], summary]
    for _ in range(4):
        said = h.answer()
        yield CHAT, {**fields, "messages": messages}, said
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": h.passage()}]


def _with_sub_agents(h: Harness) -> Calls:
    """An agent whose sub-agents have a system prompt of their own and all of its tools."""
    other = h.shared.choice(h.texts.instructions)
    main = agent(h, 5)
    for _ in range(5):
        path, fields, said = next(main)
        yield path, fields, said
        task = h.task()
        messages = [{"role": "system", "content": other}, {"role": "user", "content": task}]
        for _ in range(2):
            answer = h.answer()
            yield CHAT, {"model": "m", "tools": h.tools, "messages": messages}, answer
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": h.passage()}]


def _forking(h: Harness) -> Calls:
    fields: Fields = {}
    for path, fields, said in agent(h, 3):
        yield path, fields, said
    for _ in range(4):
        asked = [*fields["messages"], {"role": "user", "content": h.task()}]
        yield CHAT, {**fields, "messages": asked}, h.answer()


def _clearing(h: Harness) -> Calls:
    """An agent that once clears what tools have returned to it, to have room."""
    for turn, (path, fields, said) in enumerate(agent(h, 8)):
        if turn == 5:
            for message in fields["messages"][2:6]:
                if message["role"] == "tool":
                    message["content"] = "[cleared]"
        yield path, fields, said


def _workflow(h: Harness) -> Calls:
    """A document that is classified, answered about, and checked, with one instruction for each step."""
    steps = [h.shared.choice(h.texts.instructions) for _ in range(3)]
    for _ in range(2):
        document = h.passage()
        for step in steps:
            messages = [
                {"role": "system", "content": step},
                {"role": "user", "content": f"{document}\nGo on."},
            ]
            yield CHAT, {"model": "m", "messages": messages}, h.answer()


def _reading(h: Harness) -> Calls:
    """An agent of which every session begins by reading the same file."""
    file = "\n".join(h.shared.sample(h.texts.passages, 6))
    messages = [{"role": "system", "content": h.system}, {"role": "user", "content": h.task()}]
    for turn in range(5):
        said = h.answer()
        yield CHAT, {"model": "m", "tools": h.tools, "messages": messages}, said
        result = file if turn == 0 else h.passage()
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": result}]
