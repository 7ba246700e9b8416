"""Asks the ready-made apps questions, and keeps each answer in a file, so that an interrupted run goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from benchmarks.answers.questions import Asked, QuestionSets
from stretto.apps import APPS, search_empowered
from stretto.apps.template import Template
from stretto.cli.engines import assemble
from stretto.cli.indexing import indexing_template
from stretto.cli.options import EngineOptions
from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.contract import BatchEngine
from stretto.engines.llm_size import is_small_llm
from stretto.engines.processor import has_bfloat16
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Task
from stretto.model.values import Document, Hit
from stretto.runtime.runtime import Runtime

SEARCH = "search"
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What an app answered, and its first source: the document and the text of the passage."""

    text: str
    source: str
    passage: str


class Asking:
    """The ready-made apps on the engines of this machine, and the answers that they have given.

    Args:
        llm: folder or file of the LLM.
        folder: where answers are kept, in one file for each app with its settings.
    """

    def __init__(self, sets: QuestionSets, llm: str, folder: Path) -> None:
        self._sets = sets
        self._llm = llm
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def answers(self, apps: Sequence[str], say: Callable[[str], None]) -> dict[str, list[Answer]]:
        """Return the answers of each app, in the order of the questions."""
        return asyncio.run(self._answers(apps, say))

    async def _answers(self, apps: Sequence[str], say: Callable[[str], None]) -> dict[str, list[Answer]]:
        kept = {app: _Kept(self._folder, app, self._template(app), self._llm) for app in apps}
        missing = {app: [one for one in self._sets.questions if one not in kept[app].answers] for app in apps}
        if any(missing.values()):
            say("answers: loading models")
            async with Runtime(self._engines()) as runtime:
                await self._index(runtime, missing, say)
                for app, questions in missing.items():
                    await self._ask(runtime, app, questions, kept[app], say)
        return {app: [kept[app].answers[one] for one in self._sets.questions] for app in apps}

    async def _index(
        self, runtime: Runtime, missing: Mapping[str, Sequence[Asked]], say: Callable[[str], None]
    ) -> None:
        asked = [one for app, questions in missing.items() if app != SEARCH for one in questions]
        app = indexing_template(self._template("naive"))
        for collection in dict.fromkeys(one.collection for one in asked):
            say(f"answers: indexing {collection}")
            await runtime.run(app, {"files": self._sets.documents[collection], "collection": collection})

    async def _ask(
        self,
        runtime: Runtime,
        app: str,
        questions: Sequence[Asked],
        kept: _Kept,
        say: Callable[[str], None],
    ) -> None:
        template = self._template(app)
        for start in range(0, len(questions), _AT_ONCE):
            say(f"answers: {app}, {start} of {len(questions)}")
            some = questions[start : start + _AT_ONCE]
            outputs = await asyncio.gather(*(runtime.run(template, _inputs(template, one)) for one in some))
            for one, output in zip(some, outputs, strict=True):
                kept.add(one, _answer_of(output))

    def _template(self, app: str) -> Template:
        small = is_small_llm(self._llm)
        if app == SEARCH:
            return search_empowered(small_llm=small)
        return APPS[app](named_collection=True, small_llm=small)

    def _engines(self) -> list[Deployment]:
        dtype = "bfloat16" if has_bfloat16() else None
        engines = list(assemble(EngineOptions(llms=(self._llm,), dtype=dtype)).deployments)
        llm = next(engine for engine in engines if engine.name == "llm")
        over = {one.question: one.collection for one in self._sets.questions}
        web = deploy("web", CollectionSearch, CollectionSearchConfig(self._sets.documents, over), max_batch=8)
        return [*engines, llm.changed(name="llm_small"), web]


@dataclass(frozen=True, slots=True)
class CollectionSearchConfig:
    """Documents by collection, and the collection that each question is asked over."""

    documents: Mapping[str, Sequence[Document]]
    asked_over: Mapping[str, str]


class CollectionSearch(BatchEngine):
    """A search engine (BM25) that searches for each question in the documents that it is asked over."""

    def __init__(self, config: CollectionSearchConfig) -> None:
        self._config = config
        self._searches: dict[str, CorpusSearch] = {}

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer each task with the best passages for its question."""
        return answer_batch(tasks, {"web_search": self._search})

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self._hits(a.require("queries", str), setting(a.task, "k", int, 4)) for a in applications]

    def _hits(self, question: str, k: int) -> list[Hit]:
        collection = self._config.asked_over[question]
        if collection not in self._searches:
            documents = tuple(self._config.documents[collection])
            self._searches[collection] = CorpusSearch(CorpusSearchConfig(documents))
        return self._searches[collection].hits(question, k)


class _Kept:
    """The answers of one app in a file, one line each."""

    def __init__(self, folder: Path, app: str, template: Template, llm: str) -> None:
        graph = repr((template.lower({}), Path(llm).name))
        digest = blake2b(graph.encode(), digest_size=6).hexdigest()
        self._path = folder / f"{app}-{digest}.jsonl"
        self.answers = dict(_read(self._path)) if self._path.exists() else {}

    def add(self, asked: Asked, answer: Answer) -> None:
        row = {"asked": [*_key(asked)], "answer": [answer.text, answer.source, answer.passage]}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.answers[asked] = answer


def _key(asked: Asked) -> tuple[object, ...]:
    return asked.set, asked.question, asked.collection, asked.source, asked.known


def _read(path: Path) -> Iterator[tuple[Asked, Answer]]:
    """Yield the kept answers. A last line that was cut off is removed from the file."""
    whole, _, rest = path.read_text("utf-8").rpartition("\n")
    if rest:
        path.write_text(f"{whole}\n" if whole else "", "utf-8")
    for line in whole.split("\n") if whole else ():
        row = json.loads(line)
        of, question, collection, source, known = row["asked"]
        yield Asked(of, question, collection, source, tuple(known)), Answer(*row["answer"])


def _inputs(template: Template, asked: Asked) -> dict[str, object]:
    given = {"question": asked.question, "files": [], "collection": asked.collection}
    return {name: given[name] for name, _ in template.inputs}


def _answer_of(outputs: Mapping[str, Any]) -> Answer:
    sources = outputs["sources"]
    first = next((hit for hit in sources if isinstance(hit, Hit)), None) if sources else None
    text = str(outputs["answer"]) if outputs["answer"] else ""
    return Answer(text, first.chunk.source if first else "", first.chunk.text if first else "")
