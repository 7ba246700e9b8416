"""Texts of which programs' prompts are made: real instructions, descriptions of tools and documents."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.documents.load import load_documents

_DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"
_KINDS = ("*.rst", "*.txt", "*.html")
_VERBS = ("read", "write", "list", "find", "run", "open", "check", "merge", "count", "plot", "send", "move")
_THINGS = ("file", "page", "branch", "table", "note", "image", "order", "ticket")


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one origin.

    Attributes:
        origin: where they come from, for the report.
        instructions: long texts, each of at least 3,000 characters.
        tools: descriptions of functions, as OpenAI's API takes them.
        passages: paragraphs of documents, of some hundred characters each.
    """

    origin: str
    instructions: tuple[str, ...]
    tools: tuple[dict[str, Any], ...]
    passages: tuple[str, ...]


def some_texts(data: Path | None) -> Texts:
    """Return the texts of a folder of real inputs, or without one those that come with the project."""
    return _own_texts() if data is None else _real_texts(data)


def _own_texts() -> Texts:
    paths = [path for kind in _KINDS for path in sorted(_DOCUMENTS.glob(kind))]
    passages = _passages([s.text for doc in load_documents(paths) for s in doc.sections])
    instructions = ["\n".join(passages[n : n + 8]) for n in range(0, len(passages) // 2, 8)]
    tools = []
    rng = random.Random(0)
    for thing in _THINGS:
        for verb in _VERBS:
            about = rng.choice(passages)[:240].replace("\n", " ")
            tools.append(_tool(f"{verb}_{thing}", about, [f"{thing}_name", "where", "limit"]))
    return Texts(
        "examples/documents", _long(instructions), tuple(tools), tuple(passages[len(passages) // 2 :])
    )


def _real_texts(data: Path) -> Texts:
    rows = _rows(data / "system_prompts" / "long_system_prompts.jsonl")
    instructions = [row["prompt"] for row in rows]
    tools = []
    for row in _rows(data / "toolbench" / "functions.jsonl.gz"):
        parameters = {key: value for key, value in row["parameters"].items() if key != "optional"}
        function = {"name": row["key"][:64], "description": row["description"], "parameters": parameters}
        tools.append({"type": "function", "function": function})
    documents = _rows(data / "corpus_peps" / "peps_200.jsonl.gz")[:60]
    key = next(name for name in ("text", "body", "content") if name in documents[0])
    return Texts(str(data), _long(instructions), tuple(tools), tuple(_passages([d[key] for d in documents])))


def _rows(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines()]


def _passages(texts: list[str]) -> list[str]:
    parts = [part.strip() for text in texts for part in text.split("\n\n")]
    return [part for part in parts if 120 <= len(part) <= 1500]


def _long(texts: list[str]) -> tuple[str, ...]:
    """Return texts of at least 3,000 characters, with lines of moderate length; short ones are joined."""
    made, joined = [], ""
    for text in texts:
        joined = f"{joined}\n{text}" if joined else text
        if len(joined) >= 3000:
            made.append(joined[:8000])
            joined = ""
    return tuple(made)


def _tool(name: str, about: str, arguments: list[str]) -> dict[str, Any]:
    properties = {one: {"type": "string", "description": f"the {one} of the {name}"} for one in arguments}
    parameters = {"type": "object", "properties": properties, "required": arguments[:2]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
