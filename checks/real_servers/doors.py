"""OpenAI's client at the doors of Stretto before one real server: the same answers as without them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from checks.real_servers.lines import CLOCK, FORM, TOOLS, chat, kinds
from checks.real_servers.outcome import Outcome
from stretto.engines.server_process.kept import KeptProcess, take_port

_START_S, _LIMIT_S = 120.0, 300.0
_TEXT = "Say the number 3."
NOT_AT_ENGINES = ("logprobs",)
"""Kinds that a door with an engine refuses by name (docs/openai.md)."""


@contextmanager
def door(*command: str) -> Iterator[str]:
    """Context with the URL of a command of `stretto`, which listens at a free port until the end."""
    port = take_port(None)
    words = [sys.executable, "-m", "stretto", *command, "--port", str(port)]
    process = KeptProcess(words, dict(os.environ))
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(int(_START_S)):
            try:
                httpx.get(f"{url}/v1/models", timeout=10).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(1)
        else:
            raise TimeoutError(f"stretto {' '.join(command)} does not answer at {url}")
        yield url
    finally:
        process.end()


def check_doors(server: str, model: str) -> Iterator[Outcome]:
    """Ask the server itself, and then through each door, for an answer of each kind."""
    direct = {name: _ask(server, model, *asked) for name, asked in kinds(_TEXT).items()}
    doors = {
        "stretto serve --llm": (("serve", "--llm", server), "llm", NOT_AT_ENGINES),
        "stretto serve --worker": (("serve", "--worker", server), model, ()),
        "stretto route --worker": (("route", "--worker", server), model, ()),
    }
    for name, (command, named, refused) in doors.items():
        with door(*command) as url:
            for kind, asked in kinds(_TEXT).items():
                found = _ask(url, named, *asked)
                is_right = found[0] == 400 if kind in refused else _alike(kind, found, direct[kind])
                yield Outcome(
                    f"{name}, {kind}", is_right, f"{found}" if is_right else f"{found} {direct[kind]}"
                )
            yield from _streams(name, url, named)


def _ask(url: str, model: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status of an answer, and what of it does not change from one time to the next."""
    answer = httpx.post(url + path, json={"model": model, **body}, timeout=_LIMIT_S)
    found = answer.json()
    if not answer.is_success:
        return answer.status_code, found["error"].get("code")
    if "output" in found:
        return 200, [part["text"] for item in found["output"] for part in item.get("content") or ()]
    return 200, [_choice(choice) for choice in found["choices"]]


def _choice(choice: dict[str, Any]) -> tuple[str | None, list[tuple[str, Any]], bool]:
    message = choice.get("message") or {"content": choice.get("text")}
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return (message["content"] or None), calls, bool(choice.get("logprobs"))


def _alike(kind: str, found: tuple[int, Any], direct: tuple[int, Any]) -> bool:
    """Return whether an answer is the server's own, or where a door writes another prompt, of its form.

    A door with an engine has one tool in the prompt where one is named, and its responses are chats.
    """
    if found == direct:
        return True
    if kind == "named tool" and found[0] == 200:
        ((_, calls, _),) = found[1]
        return [name for name, _ in calls] == ["clock"]
    return kind == "response" and found[0] == 200 and bool(found[1][0])


def _streams(name: str, url: str, model: str) -> Iterator[Outcome]:
    """Read streams with OpenAI's client: JSON of a schema, a call of a tool, and the counts of tokens."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=_LIMIT_S) as client:
        for kind, fields in (
            ("schema", {"response_format": FORM, "max_tokens": 96}),
            ("tool", {"tools": TOOLS, "tool_choice": CLOCK, "max_tokens": 96}),
        ):
            body = chat(_TEXT, **fields)
            chunks = list(
                client.chat.completions.create(
                    model=model, stream=True, stream_options={"include_usage": True}, **body
                )
            )
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
            text = "".join(delta.content or "" for delta in deltas)
            written = "".join(part.arguments or "" for part in calls if part) if kind == "tool" else text
            usage = chunks[-1].usage
            has_counts = usage is not None and usage.completion_tokens > 0
            is_right = _is_json(written) and has_counts and len(chunks) > 2
            yield Outcome(
                f"{name}, streamed {kind}", is_right, f"{written!r} in {len(chunks)} chunks, {usage}"
            )


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
