"""The texts for training: documents as lists of sentences, and questions that people have asked.

Only sets with a suitable licence are used; the model card lists them. `squad_xquad_en` is held out and never
read here. The documents of the demo are not used either.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.documents.load import load_documents
from stretto.documents.markdown import parse_markdown
from stretto.documents.rst import parse_rst
from stretto.documents.sentences import split_sentences
from stretto.documents.text import parse_text
from stretto.model.values import Section

# Share of the examples that are made from each set. Plain folders of documents count as `documents`.
SHARES: Mapping[str, float] = {
    "books": 0.30,
    "corpus_peps": 0.20,
    "corpus_haystack_docs": 0.09,
    "corpus_prompt_book": 0.07,
    "tatqa": 0.14,
    "hotpotqa": 0.20,
    "documents": 1.0,
}
_DEMO = ("pep-0008", "pep-0257", "Stevenson_Treasure", "00b-history", "06-chain-of-thought")
_BOOK_PART_SENTENCES = 400
_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Passage:
    """Sentences in order, one paragraph after another; white space within a sentence is single spaces."""

    source: str
    name: str
    sentences: tuple[str, ...]
    starts_paragraph: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class PlacedQuestion:
    """A person's question, the sentence of a passage that answers it, and the answer if known."""

    question: str
    passage: int
    sentence: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages, questions about them, and questions about nothing in the corpus."""

    passages: tuple[Passage, ...]
    asked: tuple[PlacedQuestion, ...]
    loose_questions: tuple[str, ...]


def read_corpus(data: Path) -> Corpus:
    """Read all texts for training under `data`: known sets by name, else a folder of documents."""
    passages: list[Passage] = []
    asked: list[PlacedQuestion] = []
    loose: list[str] = []
    if not any((data / name).is_dir() for name in SHARES):
        for document in load_documents([data]):
            passages.append(_passage("documents", document.source, document.sections))
        return Corpus(tuple(passages), (), ())
    for name, sections in _long_documents(data):
        source, _, title = name.partition("/")
        if not any(demo in title for demo in _DEMO):
            passages.extend(_parts(_passage(source, title, sections)))
    _read_tatqa(data / "tatqa", passages, asked)
    _read_hotpotqa(data / "hotpotqa", passages, asked)
    loose += [row["question"] for row in _rows(data / "hotpotqa" / "dev_questions.jsonl.gz")]
    for file in ("test.jsonl", "val.jsonl", "devtest.jsonl"):
        loose += [row["question"] for row in _rows(data / "webquestions" / file)]
    loose += [row["question"] for row in _rows(data / "truthfulqa" / "truthfulqa.jsonl")]
    return Corpus(tuple(p for p in passages), tuple(asked), tuple(loose))


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Write a corpus as JSON, so that parsing is done only once."""
    path.write_text(json.dumps(asdict(corpus)), "utf-8")


def load_corpus(path: Path) -> Corpus:
    """Read a corpus that `save_corpus` wrote."""
    raw = json.loads(path.read_text("utf-8"))
    return Corpus(
        tuple(
            Passage(p["source"], p["name"], tuple(p["sentences"]), tuple(p["starts_paragraph"]))
            for p in raw["passages"]
        ),
        tuple(PlacedQuestion(**row) for row in raw["asked"]),
        tuple(raw["loose_questions"]),
    )


def paragraph_sentences(text: str) -> list[tuple[str, bool]]:
    """Split a text into sentences without line breaks; returns each with whether it begins a paragraph."""
    found: list[tuple[str, bool]] = []
    for paragraph in _PARAGRAPH.split(text):
        spans = list(split_sentences(paragraph))
        found += [(" ".join(paragraph[a:b].split()), place == 0) for place, (a, b) in enumerate(spans)]
    return found


def _passage(source: str, name: str, sections: tuple[Section, ...] | list[Section]) -> Passage:
    marked = [pair for section in sections for pair in paragraph_sentences(section.text)]
    return Passage(source, name, tuple(s for s, _ in marked), tuple(first for _, first in marked))


def _parts(passage: Passage) -> Iterator[Passage]:
    """Split a book into parts, because they have different topics, like documents."""
    for start in range(0, len(passage.sentences), _BOOK_PART_SENTENCES):
        window = slice(start, start + _BOOK_PART_SENTENCES)
        name = f"{passage.name}#{start}"
        yield Passage(passage.source, name, passage.sentences[window], passage.starts_paragraph[window])


def _long_documents(data: Path) -> Iterator[tuple[str, list[Section]]]:
    for path in sorted((data / "books" / "text").glob("*.txt.gz")):
        yield f"books/{path.name}", parse_text(gzip.decompress(path.read_bytes()))
    for row in _rows(data / "corpus_peps" / "peps_200.jsonl.gz"):
        yield f"corpus_peps/{row['doc_id']}", parse_rst(row["text"].encode())
    for row in _rows(data / "corpus_haystack_docs" / "haystack_docs_150.jsonl.gz"):
        yield f"corpus_haystack_docs/{row['doc_id']}", parse_markdown(row["text"].encode())
    for row in _rows(data / "corpus_prompt_book" / "chapters_en.jsonl"):
        yield f"corpus_prompt_book/{row['doc_id']}", parse_markdown(_without_tags(row["text"]).encode())


def _without_tags(text: str) -> str:
    return re.sub(r"</?[A-Za-z][^>]*>", "", text)


def _read_tatqa(folder: Path, passages: list[Passage], asked: list[PlacedQuestion]) -> None:
    places: dict[str, int] = {}
    for row in _rows(folder / "documents.jsonl"):
        places[row["doc_id"]] = len(passages)
        passages.append(_passage("tatqa", row["doc_id"], [Section("\n\n".join(row["paragraphs"]))]))
    for row in _rows(folder / "questions.jsonl"):
        if row["answer_type"] != "span" or row["answer_from"] == "table":
            continue
        place = places[row["doc_id"]]
        answer = " ".join(str(row["answer"][0]).split())
        holding = [n for n, s in enumerate(passages[place].sentences) if answer in s]
        if len(holding) == 1:
            asked.append(PlacedQuestion(row["question"], place, holding[0]))


def _read_hotpotqa(folder: Path, passages: list[Passage], asked: list[PlacedQuestion]) -> None:
    for row in _rows(folder / "distractor_100.jsonl"):
        first = len(passages)
        for paragraph in row["context"]:
            sentences = tuple(" ".join(s.split()) for s in paragraph["sentences"] if s.strip())
            starts = tuple(place == 0 for place in range(len(sentences)))
            passages.append(Passage("hotpotqa", paragraph["title"], sentences, starts))
        facts = {title for title, _ in row["supporting_facts"]}
        holding = [
            (place, number)
            for place in range(first, len(passages))
            if passages[place].name in facts
            for number, sentence in enumerate(passages[place].sentences)
            if row["answer"] in sentence
        ]
        if len(holding) == 1:
            asked.append(PlacedQuestion(row["question"], *holding[0]))
    for row in _rows(folder / "react_traces_100.jsonl"):
        for number, step in enumerate(row["steps"]):
            text = re.sub(r"\[\d+\]", "", step.get("observation") or "")
            passage = _passage("hotpotqa", f"{row['question']}#{number}", [Section(text)])
            if len(passage.sentences) >= 3 and "Search[" in step["action"]:
                passages.append(passage)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in text.decode().split("\n"):
            if line.strip():
                yield json.loads(line)
