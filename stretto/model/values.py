"""The values that flow along the edges of a graph.

They are plain immutable data: an engine gets them, returns them, and never changes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from stretto.model.errors import StrettoError
from stretto.model.tools import ToolPart, ToolResult


class AbsentType:
    """The type of `ABSENT`, the value in a graph that means "there is no value".

    A step with a required input that is absent is skipped and delivers `ABSENT` itself. Examples of absent
    values are the result of a branch that is not taken, a third chunk that was not found, and a missing list
    item.
    """

    __slots__ = ()
    _instance: AbsentType | None = None

    def __new__(cls) -> AbsentType:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Final = AbsentType()


@dataclass(frozen=True, slots=True)
class Failure:
    """The value that stands in place of a step's result when the step has failed; `error` names that step.

    A step that needs the value fails with the same error. The op `select` skips failures, and a failed item
    of a list stays a failure in its place.
    """

    error: StrettoError


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text without halves of surrogate pairs, which nothing can encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_failure(value: object) -> Failure | None:
    """Return `value` if it is a `Failure`, or the first failure in it if it is a list; None if there is
    none.
    """
    if isinstance(value, Failure):
        return value
    if isinstance(value, list):
        return next((item for item in value if isinstance(item, Failure)), None)
    return None


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a document: the text under one heading or on one page (pages count from 1)."""

    text: str
    title: str | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document: its source and its text, in sections.

    Attributes:
        source: name that the user gave the document, usually a path.
        sha256: hash of the file's bytes, in hex.
        unread_pages: numbers of pages that show something but hold no text, as scans do.
    """

    source: str
    sections: tuple[Section, ...]
    sha256: str
    unread_pages: tuple[int, ...] = ()


class Mark(NamedTuple):
    """The beginning of a section of a document within the text of a chunk.

    Attributes:
        start: offset of the section's first character in the text of the chunk.
    """

    start: int
    title: str | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document that is embedded and retrieved as a whole.

    Attributes:
        index: number of the chunk in its document, from 0; (`source`, `index`) is the document order, which
            breaks all ties.
        title, page: title and page of the section in which the text begins.
        num_chunks: number of chunks of the whole document; 0 if unknown.
        marks: beginnings of all further sections within the text, in order.
    """

    source: str
    index: int
    text: str
    title: str | None = None
    page: int | None = None
    document_sha256: str = ""
    num_chunks: int = 0
    marks: tuple[Mark, ...] = ()

    def sections(self, start: int = 0, end: int | None = None) -> list[Mark]:
        """Return the sections that hold the characters from `start` to before `end` (None: to the last), in
        order, with their own beginnings in the text.
        """
        marks = [Mark(0, self.title, self.page), *self.marks]
        ends = [mark.start for mark in self.marks]
        last = len(self.text) if end is None else end
        return [
            mark
            for mark, after in zip(marks, [*ends, last + 1], strict=True)
            if mark.start < last and start < after
        ] or marks[:1]

    @property
    def place(self) -> str:
        """Human-readable location of the chunk: its file, with its pages or the titles of its sections if
        known.
        """
        where = place_of(self.sections())
        return f"{self.source}, {where}" if where else self.source


def place_of(sections: Sequence[Mark]) -> str:
    """Return where sections stand in their document, as in "page 3", "pages 1–4", "Budget" or
    "Budget – Costs"; "" if they have neither pages nor titles.
    """
    pages = [mark.page for mark in sections if mark.page is not None]
    titles = [mark.title for mark in sections if mark.title]
    if pages:
        return f"page {pages[0]}" if pages[0] == pages[-1] else f"pages {pages[0]}–{pages[-1]}"
    return " – ".join(dict.fromkeys([titles[0], titles[-1]])) if titles else ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result: a retrieved chunk with its score. Higher `score` is better; scores of different
    engines are not comparable.
    """

    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The tokens that an LLM has generated, as far as they make up a text.

    Attributes:
        tokenizer: name of the tokenizer to which the ids belong.
        num_chars: number of leading characters of the text that the tokens stand for. The rest of the text
            has no tokens: it is the beginning of a token whose end a stop string has cut off.
    """

    tokenizer: str
    ids: tuple[int, ...]
    num_chars: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt whose text is known: a constant of the prompt template, or the value of a variable.

    Every segment is tokenised separately, in every mode, so that cutting a prompt between segments never
    changes its tokens.

    Attributes:
        name: the variable's name (`question`, `context`…), or None for a constant of the template. Only
            constants may hold special tokens; a variable's text is data and is never parsed again.
        role: role of the message that begins with this segment ("system", "user" or "assistant"); None for a
            segment that goes on with the message before it. A prompt without roles is a message of the user.
        tokens: tokens that an LLM has generated as this text; None for any other text. An engine with another
            tokenizer uses the text.
        tools: what servers that take calls of tools get in place of `text`, which tells of tools in words.
    """

    text: str
    name: str | None = None
    role: str | None = None
    tokens: TokenIds | None = None
    tools: ToolPart | None = None


def answer_segment(text: str, tokens: TokenIds | None = None) -> Segment:
    """Return a text that an LLM has generated as a segment of a later prompt."""
    return Segment(text, "answer", tokens=tokens)


Prompt: TypeAlias = tuple[Segment, ...]


def num_common_segments(prompt: Prompt, other: Prompt) -> int:
    """Return how many leading segments of two prompts have the same text."""
    num = 0
    for one, two in zip(prompt, other, strict=False):
        if one.text != two.text:
            break
        num += 1
    return num


@dataclass(frozen=True, slots=True)
class KV:
    """The result of a prefill step, or of the port `kv` of a decode: a hint that `instance` of an LLM engine
    has cached the keys and values of `prompt`, and of what was generated after it.

    A hint is never needed for a right answer, because every task carries its whole prompt.

    Attributes:
        answer: text that a decode has generated after the prompt, as it was generated; None after a prefill.
    """

    prompt: Prompt
    instance: int | None = None
    answer: Segment | None = None


def as_text(value: object) -> str:
    """Return the text with which a value (a string, number, chunk, hit, call of a tool, an object of JSON,
    or a list of these) stands in a prompt.

    Raises:
        TypeError: the value has no textual form (a vector, a document).
    """
    match value:
        case str():
            return value
        case ToolResult():
            return str(value)
        case ToolPart():
            return value.words
        case Hit(chunk):
            return chunk.text
        case Chunk(text=text):
            return text
        case bool() | int() | float():
            return str(value)
        case list() | tuple():
            return "\n\n".join(as_text(item) for item in value)
        case dict():
            return _json_text(value)
    raise TypeError(f"a {type(value).__name__} has no textual form")


def _json_text(value: dict[Any, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise TypeError(f"an object has no textual form: {error}") from error


def whole_characters(text: str) -> str:
    """Return a text in which halves of surrogate pairs, which are no characters, are replaced by U+FFFD.

    Tokenizers and sockets refuse them.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def document_order(hits: Iterable[Hit]) -> list[Hit]:
    """Return hits sorted by falling score; hits of equal score by source and place in the document."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.chunk.source, hit.chunk.index))
