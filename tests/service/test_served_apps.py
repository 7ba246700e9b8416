"""Ready-made apps as a user serves them: `stretto serve` in a process, and the same apps in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

import stretto
from benchmarks.common.mini_model import MINI
from stretto.apps import advanced_rag, naive_rag, search_empowered
from stretto.apps.template import Template
from stretto.documents import load_documents
from stretto.engines.catalogue import local_engines, search_engines
from stretto.engines.llms import STAND_IN, llm_engine
from stretto.model.deployment import Deployment
from stretto.runtime.runtime import Runtime
from stretto.service.apps.answers import outputs_as_json

ROOT = Path(stretto.__file__).parent.parent
BOOK = ROOT / "examples" / "documents" / "treasure-island-opening.txt"
STYLE = ROOT / "examples" / "documents" / "pep-0257.rst"
SHORT = {"max_tokens": 12}
OF_TEXT = "Question: {question}\nText: {context}\nAnswer:"

Case = tuple[str, Template, Mapping[str, Mapping[str, object]]]


@contextmanager
def service(*options: str) -> Iterator[str]:
    """Run `stretto serve` in a process; yield its URL. SIGTERM ends it."""
    cache = TemporaryDirectory()  # where it keeps what it learns
    server = subprocess.Popen(
        [sys.executable, "-m", "stretto.cli.main", "serve", "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache.name},
    )
    try:
        assert server.stderr is not None
        said: list[str] = []
        while (found := re.search(r"http://\S+", said[-1] if said else "")) is None:
            said.append(server.stderr.readline())
            assert said[-1], "".join(said)
        yield found.group()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 128 + signal.SIGTERM
    finally:
        server.kill()
        server.communicate()
        cache.cleanup()


def compare(
    url: str, engines: Sequence[Deployment], cases: Sequence[Case], document: Path, question: str
) -> None:
    """Ask each case over HTTP and in this process, and compare all outputs; no two cases have the same."""
    (loaded,) = load_documents([document])
    answers = []
    with Runtime(engines) as runtime, httpx.Client(base_url=url, timeout=800) as http:
        for app, template, settings in cases:
            inputs: dict[str, Any] = {"question": question}
            query = json.dumps({"inputs": inputs, "settings": settings})
            if "files" in dict(template.inputs):
                inputs["files"] = [replace(loaded, source=document.name)]
                files = [("files", (document.name, document.read_bytes()))]
                answer = http.post(f"/v1/apps/{app}/queries", data={"query": query}, files=files)
            else:
                answer = http.post(f"/v1/apps/{app}/queries", content=query)
            assert answer.status_code == 200, answer.text
            outputs = runtime.run_sync(template, inputs, configuration=settings)
            wanted = json.dumps(outputs_as_json(outputs, question))
            assert answer.json()["outputs"] == json.loads(wanted), (app, settings)
            answers.append((app, wanted))
    assert len(set(answers)) == len(cases)


def test_a_served_app_answers_as_in_process() -> None:
    pytest.importorskip("bm25s")
    llm = llm_engine(STAND_IN)
    cases: Sequence[Case] = (
        ("search", search_empowered(), {}),
        ("search", search_empowered(), {"answer": {"prompt": OF_TEXT, "max_tokens": 3}}),
    )
    with service("--llm", STAND_IN, "--app", "search", "--docs", str(BOOK)) as url:
        compare(
            url, search_engines(llm, None, load_documents([BOOK])), cases, BOOK, "Where did the captain stay?"
        )


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_three_apps_answer_as_in_process_with_a_checkpoint() -> None:
    pytest.importorskip("sentence_transformers")
    small = {"indexing": {"tokens": 96, "overlap": 0}, "synthesis": SHORT}
    one_shot = {"synthesis": {"mode": "one_shot", "prompt": OF_TEXT, **SHORT}}
    cases: Sequence[Case] = (
        ("naive", naive_rag(small_llm=True), small),
        ("naive", naive_rag(small_llm=True), one_shot),
        ("advanced", advanced_rag(small_llm=True), small),
        ("advanced", advanced_rag(small_llm=True), one_shot),
        ("search", search_empowered(small_llm=True), {"synthesis": SHORT}),
    )
    engines = local_engines(llm=llm_engine(str(MINI)))
    others = search_engines(engines[-1], None, load_documents([STYLE]))
    apps = [argument for app in ("naive", "advanced", "search") for argument in ("--app", app)]
    with service("--llm", str(MINI), *apps, "--docs", str(STYLE)) as url:
        compare(url, [*engines, *others[1:]], cases, STYLE, "What does a docstring do?")
