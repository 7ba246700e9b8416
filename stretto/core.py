"""The values that flow along the edges of a graph.

They are plain immutable data: an engine gets them, returns them, and never changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from stretto.errors import StrettoError


class AbsentType:
    """The type of `ABSENT`: what an edge delivers when there is no value.

    A primitive with a required absent input is skipped and delivers `ABSENT` itself, so a branch not
    taken, a third chunk that was not found and a missing item all follow one rule.
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
    """What an edge delivers when the step before it has failed; `error` names that step.

    A failure flows: a primitive that needs it fails with it. `select` passes over failures, and a failed item
    of a list stays a failure in its place.
    """

    error: StrettoError


def first_failure(value: object) -> Failure | None:
    """The failure that a whole value is, or the first among its items."""
    if isinstance(value, Failure):
        return value
    if isinstance(value, list):
        return next((item for item in value if isinstance(item, Failure)), None)
    return None


@dataclass(frozen=True, slots=True)
class Section:
    """A run of a document's text under one heading or on one page (pages count from 1)."""

    text: str
    title: str | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document. `source` is what the user calls it (a path); `sha256` is of its bytes, in hex."""

    source: str
    sections: tuple[Section, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document that is embedded and retrieved as one.

    `index` counts the chunks of its document from 0; (`source`, `index`) is document order, which
    breaks every tie. `num_chunks` is how many chunks the whole document has.
    """

    source: str
    index: int
    text: str
    title: str | None = None
    page: int | None = None
    document_sha256: str = ""
    num_chunks: int = 0

    @property
    def place(self) -> str:
        """Where a reader finds it: file, then page or section."""
        if self.page is not None:
            return f"{self.source}, page {self.page}"
        return f"{self.source}, {self.title}" if self.title else self.source


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved chunk. Higher `score` is better; scores of different engines do not compare."""

    chunk: Chunk
    score: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt with its text known.

    `name` is None for a constant of the template, else the name of the variable (`question`,
    `context`…). Only constants may hold special tokens; a variable's text is data and is never parsed
    again. Every segment is tokenised by itself, in every mode, so that cutting a prompt between
    segments never changes its tokens.
    """

    text: str
    name: str | None = None


Prompt: TypeAlias = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class KV:
    """A hint that `instance` of an LLM engine has computed the keys and values of `prompt`.

    It is never needed for a right answer: whoever uses it carries the whole prompt.
    """

    prompt: Prompt
    instance: int | None = None


def as_text(value: object) -> str:
    """How a value reads inside a prompt.

    Raises:
        TypeError: the value has no textual form (a vector, a document).
    """
    match value:
        case str():
            return value
        case Hit(chunk):
            return chunk.text
        case Chunk(text=text):
            return text
        case bool() | int() | float():
            return str(value)
        case list() | tuple():
            return "\n\n".join(as_text(item) for item in value)
    raise TypeError(f"a {type(value).__name__} has no textual form")


def document_order(hits: Iterable[Hit]) -> list[Hit]:
    """Hits by falling score; equal scores by document order, whatever order they arrived in."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.chunk.source, hit.chunk.index))
