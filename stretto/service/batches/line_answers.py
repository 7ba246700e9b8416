"""What came of the lines of a batch: in the journal of the batch, and in the files that its tenant gets.

A line has an entry of its own in the journal, with its number as the key. Its value is the answer:

    [custom_id, status, request id, [tokens of prompt, cached, output], body as text]

or, where the line was refused or its batch ended before, the error: [custom_id, code, message].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from stretto.router.answers import UsageReader
from stretto.runtime.journal.lines import JournalEntry
from stretto.service.batches.records import SpentTokens

_ANSWER_PARTS = 5


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer of an engine to a line. `body` is JSON in one line."""

    status: int
    request_id: str
    body: bytes

    @property
    def is_well(self) -> bool:
        """Whether it is no error."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class SavedLine:
    """What a journal says of a line."""

    line: int
    is_well: bool
    spent: SpentTokens


def line_answer(status: int, request_id: str, content: bytes) -> LineAnswer:
    """Return an answer as lines of files have it. A body that is no JSON becomes a text."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
        content.decode()
        body = content.replace(b"\n", b" ").replace(b"\r", b" ")  # between values: texts have none
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = msgspec.json.encode(content.decode("utf-8", "replace"))
    return LineAnswer(status, request_id, body)


def spent_of(answer: LineAnswer) -> SpentTokens:
    """Return the tokens that an answer says it has taken."""
    if not answer.is_well:
        return SpentTokens()
    reader = UsageReader()
    reader.feed(answer.body)
    usage = reader.usage()
    return SpentTokens(usage.num_prompt or 0, usage.num_cached or 0, usage.num_output or 0)


def answer_entry(line: int, custom_id: str, answer: LineAnswer, spent: SpentTokens) -> JournalEntry:
    """Return the entry of an answer."""
    tokens = [spent.num_prompt, spent.num_cached, spent.num_output]
    value = [custom_id, answer.status, answer.request_id, tokens, answer.body.decode()]
    return JournalEntry((str(line),), value)


def error_entry(line: int, custom_id: str | None, code: str, message: str) -> JournalEntry:
    """Return the entry of a line that has no answer."""
    return JournalEntry((str(line),), [custom_id, code, message])


def saved_lines(entries: Iterable[JournalEntry], num_lines: int) -> Iterator[SavedLine]:
    """Iterate over the lines that have an entry, each once."""
    for line, value in _first_entries(entries, num_lines):
        if len(value) == _ANSWER_PARTS:
            yield SavedLine(line, 200 <= value[1] < 300, SpentTokens(*value[3]))
        else:
            yield SavedLine(line, False, SpentTokens())


def output_lines(batch: str, entries: Iterable[JournalEntry], num_lines: int) -> Iterator[tuple[bool, bytes]]:
    """Iterate over the lines of a batch's files: whether one is for the output file, and what it is."""
    for line, value in _first_entries(entries, num_lines):
        head = b'{"id":%b,"custom_id":%b,"response":' % (
            msgspec.json.encode(f"batch_req_{batch.removeprefix('batch_')}_{line + 1}"),
            msgspec.json.encode(value[0]),
        )
        if len(value) == _ANSWER_PARTS:
            _, status, request_id, _, body = value
            response = b'{"status_code":%d,"request_id":%b,"body":%b}' % (
                status,
                msgspec.json.encode(request_id),
                body.encode(),
            )
            yield 200 <= status < 300, head + response + b',"error":null}\n'
        else:
            yield False, head + b'null,"error":%b}\n' % error_json(value[1], value[2])


def expired_line(batch: str, line: int, custom_id: str) -> bytes:
    """Return the line of the error file for a line that was not answered within its window."""
    message = "This request could not be executed before the completion window expired."
    entry = error_entry(line, custom_id, "batch_expired", message)
    ((_, text),) = output_lines(batch, [entry], line + 1)
    return text


def error_json(code: str, message: str) -> bytes:
    """Return an error as a line of the error file has it."""
    return msgspec.json.encode({"code": code, "message": message})


def _first_entries(entries: Iterable[JournalEntry], num_lines: int) -> Iterator[tuple[int, list[Any]]]:
    is_known = bytearray(num_lines)
    for entry in entries:
        line = int(entry.key[0])
        if line < num_lines and not is_known[line] and isinstance(entry.value, list):
            is_known[line] = True
            yield line, entry.value
