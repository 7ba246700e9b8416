"""A streamed completion that can go on at another worker when its stream is cut: from its prompt and the
tokens that have been generated so far.

That needs the ids of the tokens, so the request must have asked for them (`return_token_ids`, as vLLM has
it), and must have a limit of tokens, one prompt and one answer. A request with a field whose meaning depends
on all of the answer, such as stop strings, penalties or a grammar, does not go on elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stretto.http.body_readers import LARGE_BYTES
from stretto.wire import sse

_FIELDS = frozenset(
    (
        *("model", "prompt", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
        *("stream", "stream_options", "return_token_ids", "ignore_eos", "stop_token_ids", "logit_bias"),
        *("user", "priority", "cache_salt", "skip_special_tokens", "spaces_between_special_tokens"),
    )
)
"""Fields that mean the same for the rest of an answer."""
_MAX_BYTES = 4_000_000


class Resumption:
    """The part of a streamed completion that has come, and the request for its rest.

    Args:
        body: body of the request, as `resumable` has accepted it.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._seen: list[bytes] = []
        self._num_bytes = 0
        self._prompt: list[int] | None = None
        self._generated: list[int] = []
        self._shown: list[int] = []
        self._again: list[int] = []
        self._id: object = None

    @property
    def num_kept(self) -> int:
        """Number of bytes of events that are kept, or whose token ids are."""
        return self._num_bytes if self._num_bytes <= _MAX_BYTES else 0

    @property
    def num_read(self) -> int:
        """Number of bytes that `rest` reads."""
        return len(self._body) + self.num_kept

    def give_up(self) -> None:
        """Keep nothing any more, so that the answer cannot go on elsewhere from here."""
        self._num_bytes = _MAX_BYTES + 1
        self._seen.clear()
        self._body = b""

    def feed(self, events: bytes) -> None:
        """Take complete events as a worker sends them."""
        self._num_bytes += len(events)
        if self._num_bytes <= _MAX_BYTES:
            self._seen.append(events)
        else:
            self._seen.clear()

    def rest(self) -> bytes | None:
        """Return the body of the request for the rest of the answer; None if it cannot go on, also because
        of what the request is.

        Tokens whose text has not come, because they end within a character, are generated again. If no text
        has come at all, the rest is the whole answer, which needs no ids.
        """
        if self._num_bytes > _MAX_BYTES or (fields := _fields(self._body)) is None:
            return None
        held_back: list[int] = []
        num_before = len(self._generated)
        seen, self._seen = b"".join(self._seen), []
        for event in _events(seen):
            if "error" in event:
                return None
            for choice in _choices(event):
                ids = _ids(choice.get("token_ids"))
                if choice.get("finish_reason") is not None or (choice.get("text") and not ids):
                    return None
                self._prompt = self._prompt or _ids(choice.get("prompt_token_ids")) or None
                held_back += ids
                if choice.get("text"):
                    self._generated += held_back
                    held_back = []
            self._id = self._id or event.get("id")
        if len(self._generated) > num_before or len(held_back) > len(self._shown):
            self._shown = held_back
        self._again = list(self._shown)
        prompt = self._prompt or fields["prompt"]
        max_tokens = fields["max_tokens"] - len(self._generated)
        if max_tokens < 1:
            return None
        if isinstance(prompt, list):
            prompt = [*prompt, *self._generated]
        elif self._generated:
            return None
        rest = {**fields, "prompt": prompt, "max_tokens": max_tokens}
        if "min_tokens" in rest:
            rest["min_tokens"] = max(0, rest["min_tokens"] - len(self._generated))
        return json.dumps(rest).encode()

    def joined(self, events: bytes) -> bytes:
        """Return complete events of the rest as those of one answer: with its id, its counts of tokens, and
        without the ids that the client has got already.
        """
        parts = []
        for part in events.replace(b"\r\n", b"\n").split(b"\n\n"):
            found = list(_events(part))
            parts += [sse.encode_event(self._one(event)) for event in found]
            if part and not found:
                parts.append(part + b"\n\n")
        return b"".join(parts)

    def _one(self, event: dict[str, Any]) -> dict[str, Any]:
        if self._id is not None:
            event["id"] = self._id
        if self._generated or self._prompt is not None:  # else the client has not got its prompt's ids yet
            for choice in _choices(event):
                choice.pop("prompt_token_ids", None)
        for choice in _choices(event) if self._again else ():
            self._leave_out(choice)
        usage = event.get("usage")
        if isinstance(usage, dict):
            num = len(self._generated)
            usage["prompt_tokens"] = max(0, _count(usage, "prompt_tokens") - num)
            usage["completion_tokens"] = _count(usage, "completion_tokens") + num
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and details.get("cached_tokens"):
                num_cached = max(0, _count(details, "cached_tokens"))
                details["cached_tokens"] = min(num_cached, usage["prompt_tokens"])
        return event

    def _leave_out(self, choice: dict[str, Any]) -> None:
        """Leave out ids that came before the cut and are generated again; other ids than those are kept."""
        ids = _ids(choice.get("token_ids"))
        if ids:
            num = min(len(ids), len(self._again))
            is_same = ids[:num] == self._again[:num]
            self._again = self._again[num:] if is_same else []
            choice["token_ids"] = ids[num:] if is_same else ids


def resumable(path: str, body: bytes) -> Resumption | None:
    """Return what may let a streamed answer to a request go on elsewhere; None if it cannot.

    A large body is not read before an answer is cut.
    """
    if b'"return_token_ids"' not in body or path != "/v1/completions":
        return None
    return Resumption(body) if len(body) > LARGE_BYTES or _fields(body) is not None else None


def _fields(body: bytes) -> dict[str, Any] | None:
    """Return the fields of a request whose streamed answer can go on elsewhere; None if it cannot."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not fields.keys() <= _FIELDS:
        return None
    prompt = fields.get("prompt")
    is_one = isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and all(type(one) is int for one in prompt)
    )
    counts = [fields.get("max_tokens"), fields.get("min_tokens", 0)]
    is_wanted = fields.get("return_token_ids") is True and fields.get("stream") is True
    return fields if is_one and is_wanted and all(type(one) is int for one in counts) else None


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of complete events; what is none is left out."""
    for line in data.splitlines():
        if line.startswith(b"data:") and line[5:].lstrip()[:1] == b"{":
            try:
                yield json.loads(line[5:])
            except (ValueError, RecursionError):
                continue


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    choices = event.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _ids(value: Any) -> list[int]:
    """Return token ids that a server sent; none if the value is anything else."""
    is_list = isinstance(value, list) and all(type(one) is int for one in value)
    return value if is_list else []


def _count(counts: dict[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if type(value) is int else 0
