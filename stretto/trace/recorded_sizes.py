"""The sizes of values that a recorded run has in place of texts: characters, in lists as the values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

from stretto.model.references import Reference
from stretto.model.tasks import LLMTask, Task
from stretto.model.values import Chunk, Document, Hit
from stretto.trace.recorded_run import YesNo


def total_size(size: Any) -> int:
    """Return the total number of characters of a value in a recorded run, whose size may be a nested list."""
    if isinstance(size, Mapping):
        return int(size["chars"])
    return sum(map(total_size, size)) if isinstance(size, Sequence) else int(size)


def num_chars(tasks: Sequence[Task | LLMTask]) -> int:
    """Return the number of characters of all texts that these tasks read: prompts of LLM tasks, or inputs of
    batch tasks.
    """
    return sum(
        sum(len(segment.text) for segment in task.prompt)
        if isinstance(task, LLMTask)
        else sum(total_size(size_of(value)) for value in task.inputs.values())
        for task in tasks
    )


def size_of(value: object) -> Any:
    """Return the characters of a text; of a list, those of each item. Anything else counts 0."""
    match value:
        case Reference():
            return size_of(value.load())
        case str():
            return len(value)
        case Document(sections=sections):
            return [len(section.text) for section in sections]
        case Chunk(text=text) | Hit(chunk=Chunk(text=text)):
            return len(text)
        case list() | tuple():
            return [size_of(item) for item in value]
    return 0  # numbers, vectors, effects


def input_size(value: object) -> Any:
    """Return the size of an input of a query; that of a text with an id that equal texts share."""
    if isinstance(value, str):
        digest = blake2b(value.encode("utf-8", "replace"), digest_size=8).hexdigest()
        return {"chars": len(value), "id": digest}
    return size_of(value)


def sizes_of(value: object) -> list[Any]:
    """Return the sizes of the items of a result that is a list, else the size of the result."""
    return [size_of(item) for item in value] if isinstance(value, list | tuple) else [size_of(value)]


def first_word(value: object) -> YesNo:
    """Return "yes" or "no" if a text begins with that word, else ""."""
    words = value.lower().split(maxsplit=1) if isinstance(value, str) else []
    word = words[0].strip(".,!*\"'`") if words else ""
    return cast("YesNo", word) if word in ("yes", "no") else ""


def result_sizes(task: Task, result: object) -> list[Any]:
    """Return the sizes of texts and of lists of texts; none of vectors and effects."""
    return sizes_of(result) if task.op not in ("embed", "ingest") else []
