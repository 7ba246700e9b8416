"""Prints the answers of `stretto ask` with their sources, as text or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from stretto.cli.verbosity import note, shown
from stretto.documents.quotes import Citation, cite
from stretto.documents.text import decode
from stretto.model.errors import StrettoError
from stretto.model.tasks import Ending
from stretto.model.values import ABSENT, Chunk, Hit

_NOTHING_FOUND = "No passage was found."
_NO_ANSWER = "The LLM gave no answer."
_REMARKS = {
    "length": "[cut at {} tokens]",
    "content_filter": "[ended by the server's content filter]",
    "thoughts": "[{} tokens of thoughts, and nothing after them]",
}
_C1_CONTROLS = {code: f"\\u{code:04x}" for code in range(127, 160)}  # JSON may hold them, terminals obey
_SMALL_MODEL = (
    "The LLM is SmolLM2-135M-Instruct, which is small; "
    "give another with --llm: a folder, a GGUF file or a URL."
)
_MAX_FILE_BYTES = 50_000_000


@dataclass(frozen=True, slots=True)
class PrintedAnswer:
    """The answer to one question of `stretto ask`, with its sources, as `--json` prints it.

    Attributes:
        answer: text of the answer; None where no passage was found, or an error came.
        ending: how the answer has ended; None if it ended by itself.
    """

    question: str
    answer: str | None
    sources: Sequence[AnswerSource]
    error: str | None = None
    ending: Ending | None = None

    @staticmethod
    def failed(question: str, error: StrettoError) -> PrintedAnswer:
        """Return an answer which says that the question failed with this error."""
        return PrintedAnswer(question, None, (), f"{type(error).__name__}: {error}")

    def as_json(self) -> dict[str, object]:
        """Convert the answer to one question, with its sources, to plain data for JSON."""
        finish = "stop" if self.ending is None else self.ending.finish
        return {
            "question": self.question,
            "answer": self.answer,
            "finish_reason": None if self.answer is None else finish,
            "sources": [source.as_json() for source in self.sources],
            "error": self.error,
        }


@dataclass(slots=True)
class Printer:
    """A printer of the answers of `stretto ask` to stdout, as text or as JSON.

    Attributes:
        errors: console on stderr.
        is_small_model: whether to say on stderr, with the first answer, that the default model gave it.
        names: names to print for sources, by source; another source is printed as its path.
    """

    errors: Console
    as_json: bool
    is_small_model: bool
    names: Mapping[str, str] = field(default_factory=dict)

    def answer(
        self, question: str, outputs: Mapping[str, object], ending: Ending | None = None
    ) -> PrintedAnswer:
        """Return the answer to a question, made from the outputs of the app's run, and how it has ended."""
        text, sources = outputs["answer"], outputs.get("sources")
        hits = [hit for hit in sources if isinstance(hit, Hit)] if isinstance(sources, list) else []
        answer = None if text is ABSENT else str(text)
        found = [answer_source(hit, self._name(hit.chunk.source), answer or "", question) for hit in hits]
        return PrintedAnswer(question, answer, found, ending=ending)

    def show(self, text: str) -> None:
        """Print a piece of an answer that is still being generated."""
        self._say_small_model()
        sys.stdout.write(shown(text, sys.stdout))
        sys.stdout.flush()

    def end(self, answer: PrintedAnswer) -> None:
        """Print the sources of an answer, whose text was printed in pieces before."""
        self.show(_after(answer) + "\n")
        self._print_sources(answer)

    def print(self, answer: PrintedAnswer) -> None:
        """Print a whole answer with its sources."""
        if answer.error is None:
            self._say_small_model()
        if self.as_json:
            line = json.dumps(answer.as_json(), ensure_ascii=False)
            sys.stdout.write(line.translate(_C1_CONTROLS) + "\n")
            sys.stdout.flush()
            return
        console = Console(emoji=False)
        console.print(f"[bold]{escape(shown(answer.question, sys.stdout))}[/]", soft_wrap=True)
        if answer.error is not None:
            console.print(f"[red]{escape(shown(answer.error, sys.stdout))}[/]", soft_wrap=True)
        else:
            text = shown((answer.answer or "") + _after(answer), sys.stdout)
            console.print(text, markup=False, highlight=False, soft_wrap=True)
            self._print_sources(answer)

    def _print_sources(self, answer: PrintedAnswer) -> None:
        console = Console(emoji=False)
        for number, named in enumerate(named_places(answer.sources), 1):
            place = escape(shown(named, sys.stdout))
            console.print(f"  [dim]{number}. {place}[/]", highlight=False, soft_wrap=True)

    def _say_small_model(self) -> None:
        if self.is_small_model:
            note(self.errors, _SMALL_MODEL)
        self.is_small_model = False

    def _name(self, source: str) -> str:
        """Printed name of a source: the given one; else its path, relative to the current folder if
        inside."""
        if source in self.names:
            return self.names[source]
        here = os.path.join(os.path.realpath(os.curdir), "")
        return source.removeprefix(here)


def _after(answer: PrintedAnswer) -> str:
    """Return what follows the text of an answer: remarks if it did not end by itself, or is empty."""
    if answer.answer is None:
        return _NOTHING_FOUND
    remarks = [] if answer.answer else [_NO_ANSWER]
    if (ending := answer.ending) is not None:
        remarks.append(_REMARKS[ending.finish].format(ending.num_tokens))
    return " ".join(["", *remarks] if answer.answer else remarks)


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """A passage that an answer was made from.

    Attributes:
        hit: the passage as it was found.
        name: printed name of its document.
        lines: first and last line of the passage in its file, counted from 1; None if they are unknown.
        citation: the sentence of the passage that supports the answer, and where it stands.
    """

    hit: Hit
    name: str
    lines: tuple[int, int] | None
    citation: Citation

    @property
    def place(self) -> str:
        """Place in its document of what the answer uses: page or section; without these, the passage's lines
        and the quote. "" if the passage is a document without lines, and supports nothing.
        """
        chunk, quote = self.hit.chunk, self.citation.quote
        if self.citation.place:
            return self.citation.place
        parts = []
        if chunk.num_chunks > 1:
            parts.append(f"passage {chunk.index + 1} of {chunk.num_chunks}")
        if self.lines is not None:
            first, last = self.lines
            parts.append(f"line {first}" if first == last else f"lines {first}–{last}")
        place = ", ".join(parts)
        return ": ".join(part for part in (place, quote and f"“{quote}”") if part)

    def as_json(self) -> dict[str, object]:
        """Convert the source to plain data for JSON."""
        chunk = self.hit.chunk
        return {
            "file": self.name,
            **self.citation.as_json(),
            "passage": chunk.index + 1,
            "lines": self.lines,
            "score": round(self.hit.score, 4),
            "text": chunk.text,
        }


def answer_source(hit: Hit, name: str, answer: str, question: str = "") -> AnswerSource:
    """Return the source of an answer that a hit is. Its document's file is read to number lines."""
    return AnswerSource(hit, name, lines_of_chunk(hit.chunk), cite(hit.chunk, answer, question))


def named_places(sources: Iterable[AnswerSource]) -> list[str]:
    """Return the documents of an answer's sources, each once, with the places of its passages."""
    places: dict[str, dict[str, None]] = {}
    for source in sources:
        places.setdefault(source.name, {})[source.place] = None
    joined = {name: "; ".join(filter(None, found)) for name, found in places.items()}
    return [name + _separator(found) + found for name, found in joined.items()]


def _separator(places: str) -> str:
    return "" if not places else ": " if places.startswith("“") else ", "


def lines_of_chunk(chunk: Chunk) -> tuple[int, int] | None:
    """Return the first and last line of a chunk in its file, counted from 1.

    Returns None for a chunk with pages or sections, and where the file is gone, has changed, or is no text.
    """
    if chunk.place != chunk.source or not os.path.isfile(chunk.source):
        return None
    try:
        if os.path.getsize(chunk.source) > _MAX_FILE_BYTES:
            return None
        with open(chunk.source, "rb") as file:
            text = decode(file.read())
    except (OSError, ValueError):
        return None
    start = text.find(chunk.text)
    if start < 0:
        return None
    first = 1 + text.count("\n", 0, start)
    return first, first + chunk.text.rstrip("\n").count("\n")
