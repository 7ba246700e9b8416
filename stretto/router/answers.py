"""The body of a worker's answer on its way to the client: whole events, its end, and the counts there.

A stream of events is passed on event by event, so that one that is cut never ends inside an event: what
stands behind the last complete one is held back until the rest comes. The bytes are never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from stretto.model.errors import BadReply, BadServer, EngineUnavailable
from stretto.router.messages import WorkerUsage
from stretto.wire.errors import raise_for_event
from stretto.wire.paths import GENERATE

_MAX_HELD = 1_000_000
"""Bytes of an event that are held back; a longer one is passed on in parts."""
_ENDS = (b"\n\n", b"\r\n\r\n")
"""What ends an event."""
_LONGEST_END = 4
_TAIL_BYTES = 4096
_PROMPT, _OUTPUT, _CACHED = (
    (b"prompt_tokens", b"input_tokens"),
    (b"completion_tokens", b"output_tokens"),
    (b"cached_tokens", b"cache_read_input_tokens"),
)
"""Names of the counts in OpenAI's older API, and in its newer one and others."""
_APART = b"cache_read_input_tokens", b"cache_creation_input_tokens"
"""Counts of Anthropic's API, whose `input_tokens` are those of the prompt that are in neither."""
_OPENING = re.compile(
    rb'"content": ?""|"type": ?"(?:message_start|content_block_start|ping|response\.'
    rb'(?:created|queued|in_progress|output_item\.added|content_part\.added))"'
)
"""What an event has that opens a stream: an empty text, or a type of Anthropic's or OpenAI's newer API."""
_LAST = re.compile(
    rb'^data: ?\[DONE\]|"type": ?"(?:message_stop|response\.(?:completed|incomplete|failed))"', re.MULTILINE
)
"""What the last event of a stream has: OpenAI's mark, or a type of Anthropic's or OpenAI's newer API."""
_PAGE_KINDS = b"text/html", b"application/xhtml"
_PAGE = re.compile(rb"<(?:!doctype html|html)", re.IGNORECASE)
_DATA = re.compile(rb"^data: ?(.*)", re.MULTILINE)
_WITH_CHOICES = frozenset(f"/{path}" for path in GENERATE.values())
"""Paths of which each answer has choices."""
_NO_BODY, _NO_CHOICES = "its answer is empty, cut or a web page", "its answer has no choices"
_A_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_NOTHING = b"", b"null", b"[DONE]"
"""First events of streams that bring no answer."""
_MAX_REPORT_BYTES = 10_000
"""Bytes of an answer that may be nothing but the report of a failure."""
_UNKNOWN = WorkerUsage()
_LONGEST_NAME = 1 + max(map(len, (*_PROMPT, *_OUTPUT, *_CACHED, *_APART)))
_COUNTS = re.compile(rb'"(%b)"\s*:\s*(\d{1,9})(?![\w.])' % b"|".join((*_PROMPT, *_OUTPUT, *_CACHED, *_APART)))


class EventParts:
    """A filter of a stream of server-sent events, which passes on complete events only."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._edge = b""

    @property
    def num_held(self) -> int:
        """Number of bytes that are held back."""
        return len(self._held)

    @property
    def held(self) -> bytes:
        """What is held back."""
        return bytes(self._held)

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the stream; return those that can be passed on."""
        if not self._held and data.endswith(b"\n\n"):
            return data
        near = self._edge + data  # no end of an event begins before it
        ends = (near.rfind(mark) + len(mark) for mark in _ENDS if mark in near)
        end = max(ends, default=0) - len(self._edge)
        if end <= 0:
            self._hold(data, near)
            return self.rest() if len(self._held) > _MAX_HELD else b""
        whole = self.rest() + data[:end]
        self._hold(data[end:], data[end:])
        return whole

    def rest(self) -> bytes:
        """Return what is held back, when the stream has ended as it should."""
        held, self._held, self._edge = self._held, bytearray(), b""
        return bytes(held)

    def _hold(self, data: bytes, near: bytes) -> None:
        self._held += data
        self._edge = near[1 - _LONGEST_END :]


def is_page(kind: bytes) -> bool:
    """Return whether a content type is that of a web page, as of a proxy; the API has none."""
    return kind.lower().startswith(_PAGE_KINDS)


def why_none(path: str, kind: bytes, body: bytes) -> str:
    """Return why the body of a good answer to a request for a path, with a content type, is none of the API:
    a page, and JSON that is empty or cut or has no choice, are none. "" if it may be one.
    """
    body = body.strip()
    if kind and not kind.lower().startswith(b"application/json"):
        return _NO_BODY if kind.lower().startswith(b"text/") and _PAGE.match(body) else ""
    if len(body) <= len(b"{}") or body[:1] + body[-1:] not in (b"{}", b"[]"):
        return _NO_BODY
    must = path in _WITH_CHOICES
    if b'"choices"' in body:
        is_usual = len(body) > _MAX_REPORT_BYTES or _A_CHOICE.search(body) is not None
    else:
        is_usual = not must
    return "" if is_usual or (body[:1] == b"[" and not must) or _has_choices(body, must) else _NO_CHOICES


class _Choice(msgspec.Struct):
    pass


class _Choices(msgspec.Struct):
    choices: list[_Choice] | msgspec.UnsetType = msgspec.UNSET
    error: object = None


_CHOICES = msgspec.json.Decoder(_Choices)


def _has_choices(body: bytes, must: bool) -> bool:
    """Return whether a body is JSON whose `choices` are a list with objects. It needs the field only if it
    `must` have it and reports no error.
    """
    try:
        found = _CHOICES.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return found.choices != [] and not (must and found.choices is msgspec.UNSET and not found.error)


def reported_failure(body: bytes) -> str:
    """Return the temporary failure that a body reports, as servers do with status 200 too; "" if none."""
    if b'"error"' not in body or len(body) > _MAX_REPORT_BYTES:
        return ""
    try:
        value = json.loads(body)
        if isinstance(value, dict):
            raise_for_event(value)
    except (EngineUnavailable, BadServer) as error:
        return error.message
    except (BadReply, ValueError, RecursionError):
        pass
    return ""


def failed_start(events: bytes) -> str:
    """Return why the first events of a stream begin no answer; "" if they do, or are comments."""
    if (first := _DATA.search(events)) is None:
        return ""
    data = first[1].rstrip()
    return "its stream brings no answer" if data in _NOTHING else reported_failure(data)


def ends_stream(events: bytes) -> bool:
    """Return whether the last event of a stream is among some: what is lost behind it is no loss."""
    return _LAST.search(events) is not None


class UsageReader:
    """A reader of the token counts of an answer, which stand near the end of its body."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take a part of the body."""
        if b'_tokens"' in data:
            self._tail = data if len(data) <= _TAIL_BYTES else data[-_TAIL_BYTES:]

    def usage(self) -> WorkerUsage:
        """Return the counts, as far as the last part that has any tells them.

        Quotes inside generated text are escaped, so that a text never passes for counts.
        """
        if not self._tail:
            return _UNKNOWN
        begin = max(0, self._tail.find(b'_tokens"') - _LONGEST_NAME)  # a text stands before the counts
        found: dict[bytes, bytes] = dict(_COUNTS.findall(self._tail, begin))
        num_prompt, is_older = _first(found, _PROMPT), _PROMPT[0] in found
        if num_prompt is not None and not is_older:
            num_prompt += sum(int(found.get(name, 0)) for name in _APART)
        return WorkerUsage(num_prompt, _first(found, _OUTPUT), _first(found, _CACHED), is_older)


def _first(found: Mapping[bytes, bytes], names: tuple[bytes, bytes]) -> int | None:
    """Return the count of the first of two names that there is."""
    number = found.get(names[0]) or found.get(names[1])
    return None if number is None else int(number)


def has_token(events: bytes) -> bool:
    """Return whether events of a stream have more than its opening, which servers send before the first
    token.
    """
    return len(_OPENING.findall(events)) < events.count(b"data:")
