"""The 24 faults that are planted into programs, as clients have them, and the repairs that mend them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.prefix.sessions import (
    TEXT,
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


class PlantedFault(NamedTuple):
    """A fault.

    Attributes:
        build: a kind of program that has it.
        clean: the same kind without it.
        rules: the rules by which it may be told.
        repair: the repair that mends it, as `RepairConfig` takes it; None if no rule can.
    """

    build: Build
    clean: Build
    rules: tuple[str, ...]
    repair: Mapping[str, Any] | None = None


def planted_faults() -> dict[str, PlantedFault]:
    """Return the faults by their names."""
    return {**_lines(), **_tools(), **_texts()}


def _clock(h: Harness, turn: int) -> str:
    seconds = 3600 * 9 + 977 * h.number + 13 * turn
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _id(h: Harness) -> str:
    return f"{h.noise.getrandbits(128):032x}"


def _first_system(fields: Fields, edit: Callable[[str], str]) -> None:
    """Edit the system prompt, wherever the API has it."""
    for name in ("system", "instructions", "prompt"):
        if isinstance(fields.get(name), str):
            fields[name] = edit(fields[name])
            return
    if isinstance(fields.get("system"), list):
        fields["system"][0]["text"] = edit(fields["system"][0]["text"])
    else:
        fields["messages"][0]["content"] = edit(fields["messages"][0]["content"])


def _head(build: Build, line: Callable[[Harness, int], str]) -> Build:
    """Return a kind with a line at the head of its system prompt."""
    return changed(build, lambda h, f, turn: _first_system(f, lambda text: f"{line(h, turn)}\n{text}"))


def _middle(build: Build, line: Callable[[Harness, int], str]) -> Build:
    """Return a kind with a line among the first ones of its system prompt."""

    def put(text: str, said: str) -> str:
        lines = text.split("\n")
        return "\n".join([*lines[:2], said, *lines[2:]])

    return changed(build, lambda h, f, turn: _first_system(f, lambda text: put(text, line(h, turn))))


def _lines() -> dict[str, PlantedFault]:
    """Lines near the head that change, which a rule can drop or move."""

    def billing(h: Harness, turn: int) -> str:
        return f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={_id(h)[:5]};"

    def billed(h: Harness, f: Fields, turn: int) -> None:
        f["system"].insert(0, {"type": "text", "text": billing(h, turn)})

    def user_line(h: Harness, f: Fields, turn: int) -> None:
        f["messages"][1]["content"] = f"Request-Id: {_id(h)}\n{f['messages'][1]['content']}"

    times = ("time", "number", "id")
    return {
        "billing line, Anthropic": PlantedFault(
            changed(
                claude, lambda h, f, turn: f["system"].insert(0, {"type": "text", "text": billing(h, turn)})
            ),
            claude,
            ("id",),
            {"drop_line": "x-anthropic-billing-header: *"},
        ),
        "billing line, chat": PlantedFault(
            _head(agent, billing), agent, ("id",), {"drop_line": "x-anthropic-billing-header: *"}
        ),
        "time at the head": PlantedFault(
            _head(agent, lambda h, turn: f"Now: 2026-11-27T{_clock(h, turn)}Z"),
            agent,
            times,
            {"move_line": "Now: *"},
        ),
        "time in the middle": PlantedFault(
            _middle(claude, lambda h, turn: f"The time is {_clock(h, turn)}."),
            claude,
            times,
            {"move_line": "The time is *"},
        ),
        "epoch in instructions": PlantedFault(
            _head(responses, lambda h, turn: f"timestamp={1795760000 + 977 * h.number + 13 * turn}"),
            responses,
            times,
            {"move_line": "timestamp=*"},
        ),
        "request id": PlantedFault(
            _head(chat, lambda h, turn: f"request id: {_id(h)}"),
            chat,
            ("id",),
            {"drop_line": "request id: *"},
        ),
        "session id": PlantedFault(
            _head(agent, lambda h, turn: f"Session: s-{h.number * 7919 + 104729}-{h.number}"),
            agent,
            ("id", "number"),
            {"drop_line": "Session: *"},
        ),
        "id in the first message": PlantedFault(
            changed(agent, user_line), agent, ("id",), {"drop_line": "Request-Id: *"}
        ),
        "turn counter": PlantedFault(
            _head(agent, lambda h, turn: f"Turn {turn + 1} of 20."),
            agent,
            ("number",),
            {"drop_line": "Turn *"},
        ),
        "room left": PlantedFault(
            _middle(chat, lambda h, turn: f"Context left: {97 - 3 * turn - h.number}%"),
            chat,
            ("number",),
            {"drop_line": "Context left: *"},
        ),
        "time in a text": PlantedFault(
            _head(react, lambda h, turn: f"Today is 27 Nov 2026, {_clock(h, turn)}."),
            react,
            times,
            {"drop_line": "Today is *"},
        ),
    }


def _tools() -> dict[str, PlantedFault]:
    """Lists of tools that are put together anew."""

    def shuffled(h: Harness, f: Fields, turn: int) -> None:
        h.noise.shuffle(f["tools"])

    def by_session(h: Harness, f: Fields, turn: int) -> None:
        f["tools"] = f["tools"][h.number :] + f["tools"][: h.number]

    def keys(h: Harness, f: Fields, turn: int) -> None:
        f["tools"] = [{**one, "function": _shuffled_keys(h, one["function"])} for one in f["tools"]]

    def required(h: Harness, f: Fields, turn: int) -> None:
        for tool in f["tools"]:
            h.noise.shuffle(tool["function"]["parameters"].setdefault("required", []))
            tool["function"]["parameters"]["properties"] = _shuffled_keys(
                h, tool["function"]["parameters"].get("properties", {})
            )

    def described(h: Harness, f: Fields, turn: int) -> None:
        f["tools"][0]["function"]["description"] += f" (as of {_clock(h, turn)})"

    repair = {"canonical_tools": True}
    return {
        "order of tools by request": PlantedFault(
            changed(agent, shuffled), agent, ("order of tools",), repair
        ),
        "order of tools by session": PlantedFault(
            changed(claude, by_session), claude, ("order of tools",), repair
        ),
        "order of keys": PlantedFault(changed(agent, keys), agent, ("order of keys",), repair),
        "order of arguments": PlantedFault(changed(agent, required), agent, ("order of keys",), repair),
        "time in a description": PlantedFault(changed(agent, described), agent, ("time", "number")),
    }


def _long(h: Harness) -> Any:
    """Return the calls of an agent whose history becomes long."""
    return agent(h, 12)


def _shuffled_keys(h: Harness, value: dict[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in h.noise.sample(sorted(value), len(value))}


def _texts() -> dict[str, PlantedFault]:
    """Texts that change before long texts that stay; their authors must put them elsewhere."""

    def named(h: Harness, f: Fields, turn: int) -> None:
        name = ("Ann", "Bob Miller", "Chandra", "Dmitri", "Eve-Marie")[h.number % 5]
        _first_system(f, lambda text: f"You are the assistant of {name}, who works in sales.\n{text}")

    def status(h: Harness, f: Fields, turn: int) -> None:
        files = [
            f" M src/{h.noise.choice(h.tools)['function']['name']}.py" for _ in range(h.noise.randint(1, 5))
        ]
        _first_system(f, lambda text: "git status:\n" + "\n".join(files) + "\n\n" + text)

    def question_first(h: Harness) -> Any:
        for _ in range(4):
            prompt = f"Question: {h.task()}\n\nInstructions:\n{h.system}\n\nAnswer:"
            yield TEXT, {"model": "m", "prompt": prompt}, h.answer()

    def documents_first(h: Harness) -> Any:
        for path, fields, answer in rag(h):
            ask = fields["messages"][1]["content"]
            yield (
                path,
                {"model": "m", "messages": [{"role": "user", "content": f"{ask}\n\n{h.system}"}]},
                answer,
            )

    def instructions_first(h: Harness) -> Any:
        for _ in range(4):
            prompt = f"Instructions:\n{h.system}\n\nQuestion: {h.task()}\n\nAnswer:"
            yield TEXT, {"model": "m", "prompt": prompt}, h.answer()

    def examples(h: Harness, f: Fields, turn: int) -> None:
        few = h.texts.passages[:12]
        shown = "\n\n".join(f"Example:\n{one}" for one in h.noise.sample(few, len(few)))
        f["messages"][0]["content"] = f"Do as these do.\n\n{shown}"

    def results(h: Harness, f: Fields, turn: int) -> None:
        for number, message in enumerate(f["messages"]):
            if message["role"] == "tool":
                found = {"text": message["content"], "at": number, "ok": True, "page": 3, "from": "disk"}
                message["content"] = json.dumps(_shuffled_keys(h, found))

    def call_ids(h: Harness, f: Fields, turn: int) -> None:
        for message in f["messages"]:
            for call in message.get("tool_calls", ()):
                call["id"] = f"call_{_id(h)[:24]}"
            if message["role"] == "tool":
                message["tool_call_id"] = f"call_{_id(h)[:24]}"

    def salted(h: Harness, f: Fields, turn: int) -> None:
        f["cache_salt"] = _id(h)

    text = ("text", "number", "time", "id")
    return {
        "name of the user": PlantedFault(changed(agent, named), agent, ("text",)),
        "state of the repository": PlantedFault(changed(agent, status), agent, text),
        "question before instructions": PlantedFault(question_first, instructions_first, text),
        "documents before instructions": PlantedFault(documents_first, rag, text),
        "examples in another order": PlantedFault(changed(chat, examples), chat, ("order of text", *text)),
        "results written anew": PlantedFault(
            changed(_long, results), _long, ("order of keys", "order of text")
        ),
        "ids of calls": PlantedFault(changed(_long, call_ids), _long, ("id",)),
        "salt": PlantedFault(changed(agent, salted), agent, ("id",)),
    }
