"""The reader of logs of OpenAI chats: calls with their answers and times, or whole conversations.

A line is one of two:

- a call: `request` is the body that was sent to `/v1/chat/completions`, `response` the body that came back.
  `start_time` and `end_time` (seconds, or ISO 8601) say when, and `session_id` which calls belong together.
  A call waits for the calls of its session that had ended before it began, and for as long as it did then: a
  user thought, or a tool ran. Calls of a session that overlapped run beside each other. Without a session, a
  call goes on from the one whose messages and answer its own messages begin with. A call without `end_time`
  ended at once; without `start_time`, it began at the whole second that `created` names.
- a conversation: `messages` in turn, as in OpenAI's files for fine-tuning. Each answer of the assistant is a
  call with all messages before it, right after the call before it.

Prompts are sent as they were recorded, with recorded answers. An answer's length is the recorded
`completion_tokens`, else it is estimated from its text.

Source: OpenAI's API reference, "Create chat completion" (bodies) and "Fine-tuning" (conversations). The names
around the bodies are those of LiteLLM's logs, in snake case or as there (`startTime`, `endTime`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stretto.costs.mean_output import num_tokens
from stretto.schema.typed import Count, Object, Text, shortened
from stretto.trace.agents.requests import After, AgentRequest, AgentTrace, ChatPrompt, Messages, checked_trace
from stretto.trace.lines import JsonLine, json_lines

_NAMES = {"startTime": "start_time", "endTime": "end_time"}
_OWN_FIELDS = {"messages", "tools", "model", "stream", "stream_options"}
_LIMITS = {"max_tokens", "max_completion_tokens"}


def _time_s(line: JsonLine, name: str, default: float) -> float:
    """Return a time in seconds since the epoch. Raises TraceError if a field is no time."""
    value = line.fields.get(name)
    if (found := default if value is None else _parsed_s(value)) is None:
        raise line.error(f"{name} must be seconds, or a date and time, got {shortened(value)}")
    return found


def _parsed_s(value: Any) -> float | None:
    if type(value) in (int, float):
        return float(value) if 0 <= value <= 1e11 else None
    try:
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class _Call:
    line: JsonLine
    name: str
    session: str | None
    messages: Sequence[Mapping[str, Any]]
    answer: Mapping[str, Any] | None
    request: Mapping[str, Any]
    output_tokens: int | None
    start_s: float
    end_s: float


def read_chat_log(path: Path) -> AgentTrace:
    """Read a log of chats.

    Raises:
        TraceError: the file does not fit the format.
    """
    calls: list[_Call] = []
    conversations: list[AgentRequest] = []
    for line in json_lines(path):
        if "request" in line.fields:
            calls.append(_read_call(line))
        else:
            conversations += _read_conversation(line)
    first_s = min((call.start_s for call in calls), default=0.0)
    after = _conditions(calls)
    requests = [
        AgentRequest(
            id=call.name,
            line=call.line.number,
            prompt=ChatPrompt(tuple(call.messages), tools=tuple(call.request.get("tools") or ())),
            arrival_s=0.0 if after[call.name] else call.start_s - first_s,
            after=after[call.name],
            output_tokens=call.output_tokens,
            model=call.request.get("model"),
            extra=_extra(call),
        )
        for call in calls
    ]
    return checked_trace(path, sorted([*requests, *conversations], key=lambda request: request.line))


def _extra(call: _Call) -> dict[str, Any]:
    """Return the further fields of a call. The recorded length of the answer replaces its limit."""
    own = _OWN_FIELDS if call.output_tokens is None else _OWN_FIELDS | _LIMITS
    return {name: value for name, value in call.request.items() if name not in own}


def _read_call(line: JsonLine) -> _Call:
    line = JsonLine(line.path, line.number, {_NAMES.get(name, name): v for name, v in line.fields.items()})
    request = line.within("request", line.required("request", Object))
    response = line.within("response", line.optional("response", Object, {}))
    request.optional("model", Text)
    request.optional("tools", list[Object])
    start_s = _time_s(line, "start_time", _time_s(response, "created", 0.0))
    end_s = _time_s(line, "end_time", start_s)
    if end_s < start_s:
        raise line.error(f"end_time is {start_s - end_s:g} s before start_time")
    answer, output_tokens = _read_answer(response)
    return _Call(
        line=line,
        name=line.optional("request_id", Text, f"line {line.number}"),
        session=line.optional("session_id", Text),
        messages=request.required("messages", Messages),
        answer=answer,
        request=request.fields,
        output_tokens=output_tokens,
        start_s=start_s,
        end_s=end_s,
    )


def _read_answer(response: JsonLine) -> tuple[Mapping[str, Any] | None, int | None]:
    choices = response.optional("choices", list[Object], [])
    answer = response.within("choices[0]", choices[0]).optional("message", Object) if choices else None
    usage = response.within("usage", response.optional("usage", Object, {}))
    return answer, usage.optional("completion_tokens", Count, None if answer is None else _num_tokens(answer))


def _num_tokens(answer: Mapping[str, Any]) -> int:
    """Return the estimated tokens of an answer: of its text and its tool calls."""
    calls = answer.get("tool_calls")
    return num_tokens(str(answer.get("content") or "") + (json.dumps(calls) if calls else ""))


def _conditions(calls: Sequence[_Call]) -> dict[str, tuple[After, ...]]:
    """Return what each call waits for, by its name."""
    sessions: dict[str, list[_Call]] = defaultdict(list)
    after: dict[str, tuple[After, ...]] = {}
    answered: dict[bytes, _Call] = {}
    for call in sorted(calls, key=lambda call: (call.start_s, call.line.number)):
        if call.session is not None:
            before = _awaited(sessions[call.session], call)
            sessions[call.session].append(call)
        else:
            keys = _keys([*call.messages, *([] if call.answer is None else [call.answer])])
            before = next(
                ([answered[key]] for key in reversed(keys[: len(call.messages)]) if key in answered), []
            )
            if call.answer is not None:
                answered[keys[-1]] = call
        last_s = max((other.end_s for other in before), default=0.0)
        wait_s = max(0.0, call.start_s - last_s)
        after[call.name] = tuple(After(other.name, wait_s) for other in before)
    return after


def _awaited(earlier: Sequence[_Call], call: _Call) -> list[_Call]:
    """Return the calls that had ended before `call` began, without those that such a call has waited for."""
    ended = [other for other in earlier if other.end_s <= call.start_s]
    last_start_s = max((other.start_s for other in ended), default=0.0)
    return [other for other in ended if other.end_s > last_start_s or other.start_s == last_start_s]


def _keys(messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return a hash for the messages up to each one. It is equal for equal messages, whatever servers add to
    their answers.
    """
    keys, key = [], b""
    for message in messages:
        told = [message.get("role"), message.get("content"), message.get("tool_calls")]
        key = blake2b(key + json.dumps(told, sort_keys=True).encode(), digest_size=16).digest()
        keys.append(key)
    return keys


def _read_conversation(line: JsonLine) -> Iterator[AgentRequest]:
    messages = line.required("messages", Messages)
    model, tools = line.optional("model", Text), line.optional("tools", list[Object], [])
    before: str | None = None
    for place, message in enumerate(messages):
        if message["role"] != "assistant" or place == 0:
            continue
        name = f"line {line.number}/{place}"
        yield AgentRequest(
            id=name,
            line=line.number,
            prompt=ChatPrompt(tuple(messages[:place]), tools=tuple(tools)),
            after=() if before is None else (After(before),),
            output_tokens=_num_tokens(message),
            model=model,
        )
        before = name
    if before is None:
        raise line.error("messages has no answer of the assistant after a first message")
