"""A query of an app keeps its document once: what that was read from is freed before the long work begins."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
import weakref
from collections.abc import Sequence

import httpx
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.apps import naive_rag
from stretto.documents.parser_process import ParseLimits
from stretto.engines.catalogue import transforms_engine
from stretto.model.deployment import deploy
from stretto.model.tasks import Task
from stretto.model.values import Document
from stretto.runtime.worker import CloseEngine, Command, InstanceJob, RunBatch, run_instance
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.apps.inputs import UnparsedDocument
from stretto.service.apps.parsing import DocumentParsers
from stretto.service.apps.query_table import QueryTable

TEXT = "words of a text of two MB " * 80_000
MAX_IN_USE = 2.5 * len(TEXT)


class Embedder(FakeBatch):
    """Notes how much memory is in use while it embeds the first chunks of a long text.

    Other threads may be about to free what the document was read from, so it waits for them, 30 s at most.
    """

    in_use = 0

    def __init__(self, begun: threading.Event) -> None:
        super().__init__(FakeBatchConfig())
        self._begun = begun

    def run(self, tasks: Sequence[Task]) -> list[object]:
        embeds_chunks = any(task.each for task in tasks)
        if tracemalloc.is_tracing() and embeds_chunks and not self._begun.is_set():
            self._begun.set()
            give_up_s = time.monotonic() + 30
            while (in_use := self._in_use()) >= MAX_IN_USE and time.monotonic() < give_up_s:
                time.sleep(0.01)
            Embedder.in_use = in_use
        return super().run(tasks)

    def _in_use(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def test_a_document_is_held_once_while_it_is_embedded() -> None:
    begun = threading.Event()
    engines = [
        *(deploy(name, FakeBatch, FakeBatchConfig()) for name in ("chunking", "vectors")),
        deploy("embedding", Embedder, begun),
        desk_llm(Desk()),
        transforms_engine(),
    ]
    with (
        served(engines, apps={"naive": deploy_app("naive", naive_rag())}) as (_, url),
        httpx.Client(base_url=url, timeout=300) as http,
    ):
        body = {"inputs": {"question": "why", "files": [{"name": "a.txt", "text": "short"}]}}
        assert http.post("/v1/apps/naive/queries", json=body).status_code == 200
        body["inputs"]["files"] = [{"name": "a.txt", "text": TEXT}]
        request = http.build_request("POST", "/v1/apps/naive/queries", json=body)
        tracemalloc.start()
        try:
            assert http.send(request).status_code == 200
        finally:
            tracemalloc.stop()
    assert begun.is_set()
    assert len(TEXT) < Embedder.in_use < MAX_IN_USE


def test_a_parsed_document_is_freed_with_its_last_reader() -> None:
    """No cycle of references keeps it until garbage is collected."""

    async def parse() -> None:
        async with DocumentParsers(1, ParseLimits(), 1000) as parsers:
            await parsers.parse(UnparsedDocument("freed.txt", b"text", None, "files"))
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(parse())
        kept = [one for one in gc.get_objects() if type(one) is Document and one.source == "freed.txt"]
    finally:
        gc.enable()
    assert not kept


class Value:
    """A value that can be referred to weakly."""


class OneBatch:
    """Commands for one batch; notes when the next command is waited for whether its value is still held."""

    def __init__(self) -> None:
        value = Value()
        self.value = weakref.ref(value)
        self.was_held = True
        self._tasks: tuple[Task, ...] = (Task(1, "q", "s", "call", {"value": value}, {}),)

    def get(self) -> Command:
        if self._tasks:
            tasks, self._tasks = self._tasks, ()
            return RunBatch(1, tasks)
        self.was_held = self.value() is not None
        return CloseEngine()

    def empty(self) -> bool:
        return False


def test_an_instance_that_waits_holds_nothing_of_its_last_batch() -> None:
    inbox = OneBatch()
    job = InstanceJob("calls", 0, False, FakeBatch, FakeBatchConfig())
    run_instance(job, inbox, lambda event: None)
    assert not inbox.was_held


def test_the_questions_of_ended_queries_count_as_kept() -> None:
    """They are kept with the queries, to find the sentences that support the answer."""

    async def num_kept() -> int:
        table = QueryTable(600, 100, max_kept_bytes=1000)
        for _ in range(5):
            added = table.add("app", "ann", query=None, now_s=0, question="why " * 100)  # type: ignore[arg-type]
            table.end(added.id, 0, num_bytes=10)
        return len(table)

    assert asyncio.run(num_kept()) == 2
