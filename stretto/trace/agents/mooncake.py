"""The reader of Mooncake traces: plain ones, ones with turns, and agentic ones.

Each line is one request: `input_length` and `output_length` in tokens, `hash_ids` of the prompt's blocks, and
times in milliseconds. When it is sent is said in one of four ways:

- a plain line is sent at `timestamp`;
- a line with the `session_id` of an earlier line is sent `delay` after that line's request has ended, or as
  much later as its `timestamp` is;
- an agentic line has a `request_id`. It is sent `delay` and `tool_wait_ms` after the end of all requests in
  `wait_for`, or at `timestamp` if that is empty. `branches` names requests that begin here, which wait by
  themselves;
- version 2 of the agentic format has a header, `not_before_ms`, and `dependencies` with a `trigger`
  ("completion" or "dispatch") and a `delay_ms` each.

A prompt is given by its length, by `messages`, or by `text_input`. Blocks have the length that the header
says; else 512 tokens or, if the lines do not fit that, the largest power of two that fits all of them.

Source: Mooncake (FAST 2025); NVIDIA Dynamo, `lib/data-gen/src/mooncake.rs` (agentic lines, the other names of
fields, and version 2); AIPerf 0.13, `dataset/loader/models.py` (`MooncakeTrace`). Differs: in AIPerf, a later
turn of a session adds to the turns before it; here, as in Dynamo, every line is a whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from stretto.schema.typed import Count, Number, Object, Text
from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    ChatPrompt,
    Messages,
    Millis,
    SizedPrompt,
    checked_trace,
)
from stretto.trace.lines import JsonLine, TraceError, json_lines

SCHEMA = "dynamo.agentic_mooncake"
_VERSION = 2
_BLOCK_TOKENS = 512
_NAMES = {
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "created_time": "timestamp",
    "delay_ms": "delay",
}
_PROMPTS = ("input_length", "messages", "text_input")
_EVENTS: Mapping[str, Any] = {"completion": "end", "dispatch": "start"}

_Ids: TypeAlias = list[Annotated[int, Meta(ge=0)]]


def read_mooncake_trace(path: Path) -> AgentTrace:
    """Read a Mooncake trace.

    Raises:
        TraceError: the file does not fit the format.
    """
    lines = [_renamed(line) for line in json_lines(path)]
    block_tokens = None
    if lines and "schema" in lines[0].fields:
        block_tokens = _read_header(lines.pop(0))
    block_tokens = block_tokens or _find_block_tokens(lines)
    return checked_trace(path, _requests(lines, block_tokens))


def _renamed(line: JsonLine) -> JsonLine:
    return JsonLine(line.path, line.number, {_NAMES.get(name, name): v for name, v in line.fields.items()})


def _read_header(line: JsonLine) -> int:
    line.required("schema", Literal["dynamo.agentic_mooncake"])
    if line.required("version", Number) != _VERSION:
        raise line.error(f"version is {line.fields['version']}; only {_VERSION} is known")
    block_tokens: int = line.required("block_size", Number)
    return block_tokens


def _find_block_tokens(lines: list[JsonLine]) -> int:
    """Return the length of blocks that fits all lines: each has one id for every block, the last one
    perhaps not full.
    """
    least, most = 1, 1 << 30
    for line in lines:
        tokens, ids = line.optional("input_length", Number), line.optional("hash_ids", _Ids)
        if not tokens or not ids:
            continue
        least = max(least, -(-tokens // len(ids)))
        most = min(most, (tokens - 1) // (len(ids) - 1) if len(ids) > 1 else most)
        if least > most:
            raise line.error(
                f"{len(ids)} hash_ids for {tokens} tokens do not fit the blocks of the lines above"
            )
    if least <= _BLOCK_TOKENS <= most:
        return _BLOCK_TOKENS
    largest = 1 << (most.bit_length() - 1)
    if largest < least:
        raise TraceError(f"{lines[0].path}: blocks have {least} to {most} tokens, which is no power of two")
    return largest if most < 1 << 30 else 1 << (least - 1).bit_length()


def _requests(lines: list[JsonLine], block_tokens: int) -> Iterator[AgentRequest]:
    last_of_session: dict[str, tuple[str, float]] = {}
    known = {str(line.fields.get("request_id")) for line in lines}
    for line in lines:
        name = line.optional("request_id", Text, f"line {line.number}")
        session = line.optional("session_id", Text)
        timestamp_s = line.optional("timestamp", Millis, 0.0) / 1000
        arrival_s, after = timestamp_s, _conditions(line)
        for branch in line.optional("branches", list[Text], []):
            if branch not in known:
                raise line.error(f"branches names {branch!r}, which is no request of this file")
        if "request_id" not in line.fields and session in last_of_session:
            before, before_s = last_of_session[session]
            after = (
                After(before, line.optional("delay", Millis, 1000 * max(0.0, arrival_s - before_s)) / 1000),
            )
        if session is not None:
            last_of_session[session] = name, timestamp_s
        if after:
            arrival_s = 0.0
        yield AgentRequest(
            id=name,
            line=line.number,
            prompt=_prompt(line, block_tokens),
            arrival_s=line.optional("not_before_ms", Millis, 1000 * arrival_s) / 1000,
            after=after,
            output_tokens=line.optional("output_length", Count),
            model=line.optional("model", Text),
            extra=line.optional("extra", Object, {}),
        )


def _conditions(line: JsonLine) -> tuple[After, ...]:
    """Return what an agentic line waits for."""
    delay_s = (line.optional("delay", Millis, 0.0) + line.optional("tool_wait_ms", Millis, 0.0)) / 1000
    after = [After(other, delay_s) for other in line.optional("wait_for", list[Text], [])]
    for number, fields in enumerate(line.optional("dependencies", list[Object], [])):
        dependency = line.within(f"dependencies[{number}]", fields)
        event = _EVENTS[dependency.optional("trigger", Literal["completion", "dispatch"], "completion")]
        seconds = dependency.optional("delay_ms", Millis, 0.0) / 1000
        after.append(After(dependency.required("request_id", Text), seconds, event))
    return tuple(after)


def _prompt(line: JsonLine, block_tokens: int) -> SizedPrompt | ChatPrompt:
    given = [name for name in _PROMPTS if line.fields.get(name) is not None]
    if len(given) != 1:
        raise line.error(f"give one of {', '.join(_PROMPTS)}, not {' and '.join(given) or 'none'}")
    if given == ["messages"]:
        tools = line.optional("tools", list[Object], [])
        return ChatPrompt(tuple(line.required("messages", Messages)), tools=tuple(tools))
    if given == ["text_input"]:
        return ChatPrompt(({"role": "user", "content": line.required("text_input", Text)},))
    tokens, ids = line.required("input_length", Number), line.optional("hash_ids", _Ids, [])
    if ids and not (len(ids) - 1) * block_tokens < tokens <= len(ids) * block_tokens:
        raise line.error(f"{len(ids)} hash_ids for {tokens} tokens; one for each {block_tokens}")
    return SizedPrompt(tokens, tuple(ids), block_tokens)
