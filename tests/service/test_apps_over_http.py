"""Deployed apps over HTTP: what they say of themselves, queries, streams, status, cancel, errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from reportlab.pdfgen.canvas import Canvas
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto import Input, Template
from stretto.apps import advanced_rag, naive_rag
from stretto.apps.components.llm_call import LLMCall
from stretto.documents import load_documents
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.runtime.runtime import Runtime
from stretto.service.apps.answers import outputs_as_json
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.apps.limits import AppLimits
from stretto.service.config import Limits, ServiceConfig, TenantConfig

TEXTS = {"a.txt": "The inn is near a cove. The captain lived at the inn.", "b.txt": "He drank rum."}
QUESTION = "Where did the captain live?"
INPUTS = {"question": QUESTION, "files": [{"name": name, "text": text} for name, text in TEXTS.items()]}


def short() -> Template:
    call = LLMCall(prompt="Say {x}", x=Input("x", "text"), max_tokens=8)
    return Template("short", call, {"text": call["text"]})


APPS = {
    name: deploy_app(name, template)
    for name, template in (("naive", naive_rag()), ("advanced", advanced_rag()), ("short", short()))
}


@dataclass(frozen=True)
class WritingConfig:
    """Configuration of `Writing`: what it waits for before it writes a text with the word "wait"."""

    may_end: threading.Event = field(default_factory=threading.Event)


class Writing(ScriptedLLM):
    """An LLM that writes eight words, fails where a prompt says so, or waits before its fourth word."""

    def __init__(self, config: WritingConfig) -> None:
        super().__init__(self._write, 16)
        self._may_end = config.may_end
        self._held: dict[str, list[list[str]]] = {}

    def step(self) -> list[Any]:
        events = super().step()
        if any(number == 3 for number in self._num_written.values()):
            self._may_end.wait(60)
        return events

    def _write(self, task: LLMTask, decode: Decode) -> str:
        if "fail" in task.prompt[-1].text:
            raise BadReply("told to")
        return "one two three four five six seven eight"


def engines(llm: Deployment | None = None) -> list[Deployment]:
    names = ("chunking", "embedding", "reranking", "vectors")
    fakes = [deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=True) for name in names]
    return [*fakes, llm or deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm")]


def writing(config: WritingConfig | None = None, **settings: Any) -> Deployment:
    return deploy("llm", Writing, config or WritingConfig(), contract="llm", **settings)


@contextmanager
def client(llm: Deployment | None = None, config: ServiceConfig | None = None) -> Iterator[httpx.Client]:
    with served(engines(llm), config, APPS) as (_, url), httpx.Client(base_url=url, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with client() as found:
        yield found


def ask(http: httpx.Client, app: str, **body: Any) -> httpx.Response:
    return http.post(f"/v1/apps/{app}/queries", json=body)


def events(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def test_apps_tell_what_they_take(http: httpx.Client) -> None:
    assert http.get("/v1/apps").json() == {"apps": ["naive", "advanced", "short"]}
    assert http.get("/v1/apps/naive").json() == json.loads(json.dumps(APPS["naive"].description()))
    assert http.get("/v1/apps/none").status_code == 404


SETTINGS: Sequence[Mapping[str, Mapping[str, object]]] = (
    {},
    {"indexing": {"tokens": 4, "overlap": 1}},
    {"synthesis": {"mode": "one_shot", "prompt": "Of {context} say to {question}:"}},
)


def in_process(app: str, settings: Mapping[str, Mapping[str, object]], folder: Path) -> dict[str, Any]:
    """The outputs of a run without a service, of files with the same names."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    documents = load_documents([folder / name for name in TEXTS])
    files = [replace(document, source=Path(document.source).name) for document in documents]
    with Runtime(engines()) as runtime:
        given = {"question": QUESTION, "files": files}
        outputs = runtime.run_sync(APPS[app].template, given, configuration=settings)
    return outputs_as_json(outputs, QUESTION)


@pytest.mark.parametrize("app", ["naive", "advanced"])
def test_answers_are_those_in_process(http: httpx.Client, tmp_path: Path, app: str) -> None:
    answers = []
    for settings in SETTINGS:
        answer = ask(http, app, inputs=INPUTS, settings=settings)
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"] == in_process(app, settings, tmp_path)
        answers.append(json.dumps(answer.json()["outputs"]))
    assert len(set(answers)) == 3


def test_files_may_be_uploaded(http: httpx.Client) -> None:
    files = [("files", (name, text.encode())) for name, text in TEXTS.items()]
    files.append(("files", ("rum.md", b"# Rum\n\nRum *is* a drink.")))
    query = json.dumps({"inputs": {"question": QUESTION}})
    answer = http.post("/v1/apps/naive/queries", data={"query": query}, files=files)
    assert answer.status_code == 200, answer.text
    markdown = next(one for one in answer.json()["outputs"]["sources"] if one["source"] == "rum.md")
    assert (markdown["section"], markdown["text"]) == ("Rum", "Rum Rum is a drink.")


def test_tables_and_office_files_may_be_uploaded(http: httpx.Client) -> None:
    pytest.importorskip("docx", reason="the extra office is not installed")
    from docx import Document

    written = BytesIO()
    document = Document()
    document.add_heading("Rum", level=1)
    document.add_paragraph("Rum is a drink.")
    document.save(written)
    files = [
        ("files", ("rum.docx", written.getvalue())),
        ("files", ("ships.csv", b"Ship,Home\nAda,Oslo\n")),
    ]
    query = json.dumps({"inputs": {"question": QUESTION}})
    answer = http.post("/v1/apps/naive/queries", data={"query": query}, files=files)
    assert answer.status_code == 200, answer.text
    found = {one["source"]: one for one in answer.json()["outputs"]["sources"]}
    assert (found["rum.docx"]["section"], found["rum.docx"]["text"]) == ("Rum", "Rum Rum is a drink.")
    assert found["ships.csv"]["text"] == "| Ship: Ada | Home: Oslo"
    files = [("files", ("rum.docx", b"no archive"))]
    refused = http.post("/v1/apps/naive/queries", data={"query": query}, files=files)
    assert refused.status_code == 422
    assert "rum.docx: is no readable Office file" in refused.json()["error"]["message"]


def test_pages_that_could_not_be_read_are_named(http: httpx.Client, tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "scan.pdf"))
    canvas.drawString(72, 700, "The captain lived at the inn.")
    canvas.showPage()
    canvas.rect(72, 300, 200, 300, fill=1)
    canvas.save()
    query = json.dumps({"inputs": {"question": QUESTION}})
    files = [("files", ("scan.pdf", (tmp_path / "scan.pdf").read_bytes()))]
    answer = http.post("/v1/apps/naive/queries", data={"query": query}, files=files)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert warning.startswith("scan.pdf: page 2 holds no text")
    assert answer.json()["outputs"]["sources"][0]["pages"] == [1, 1]
    assert "warnings" not in ask(http, "naive", inputs=INPUTS).json()


def test_a_large_upload_is_read_or_refused_as_a_small_one(http: httpx.Client) -> None:
    files = [("files", ("a.txt", b"The captain lived at the inn. " * 5000))]
    answer = http.post("/v1/apps/naive/queries", data={"query": json.dumps({"inputs": INPUTS})}, files=files)
    assert answer.status_code == 200, answer.text
    refused = http.post("/v1/apps/naive/queries", data={"query": "{"}, files=files)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "malformed")


def test_text_is_streamed_and_the_last_event_has_all_outputs(http: httpx.Client) -> None:
    body = {"inputs": INPUTS, "stream": True}
    with http.stream("POST", "/v1/apps/naive/queries", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        first, *pieces, last = events(response)
    assert first["status"] == "running"
    assert {piece["output"] for piece in pieces} == {"answer"}
    assert "".join(piece["text"] for piece in pieces) == last["outputs"]["answer"]
    assert (last["id"], last["status"]) == (first["id"], "done")
    assert last["outputs"] == ask(http, "naive", inputs=INPUTS).json()["outputs"]


def test_a_query_in_the_background_is_found_by_its_id() -> None:
    may_end = threading.Event()
    with client(writing(WritingConfig(may_end))) as http:
        started = ask(http, "short", inputs={"x": "a"}, background=True)
        assert (started.status_code, started.json()["status"]) == (202, "running")
        path = f"/v1/apps/short/queries/{started.json()['id']}"
        assert http.get(path).json()["status"] == "running"
        assert http.get(path.replace("short", "naive")).status_code == 404
        assert http.get(f"{path}x").status_code == 404
        may_end.set()
        with http.stream("GET", f"{path}/events") as response:
            *_, last = events(response)
        assert last["outputs"] == {"text": "one two three four five six seven eight"}
        assert http.get(path).json() == last
        assert http.delete(path).json() == last


def test_a_stream_is_cancelled() -> None:
    may_end = threading.Event()
    with client(writing(WritingConfig(may_end))) as http:
        try:
            body = {"inputs": {"x": "a"}, "stream": True}
            with http.stream("POST", "/v1/apps/short/queries", json=body) as response:
                coming = events(response)
                query, text = next(coming)["id"], next(coming)["text"]
                assert text.startswith("one")
                cancelled = http.delete(f"/v1/apps/short/queries/{query}")
                assert cancelled.json()["status"] == "cancelled"
                assert list(coming)[-1]["status"] == "cancelled"
        finally:
            may_end.set()
        assert http.get(f"/v1/apps/short/queries/{query}").json()["status"] == "cancelled"
        assert ask(http, "short", inputs={"x": "b"}).json()["status"] == "done"


def test_a_query_whose_reader_has_left_is_cancelled() -> None:
    may_end = threading.Event()
    with client(writing(WritingConfig(may_end))) as http:
        try:
            with http.stream(
                "POST", "/v1/apps/short/queries", json={"inputs": {"x": "a"}, "stream": True}
            ) as response:
                coming = events(response)
                query = next(coming)["id"]
                next(coming)
            with http.stream("GET", f"/v1/apps/short/queries/{query}/events") as response:
                *_, last = events(response)
            assert last["status"] == "cancelled"
        finally:
            may_end.set()


@pytest.mark.parametrize(
    ("body", "place", "message"),
    [
        ({"settings": {"indexing": {"tokens": "x"}}}, "settings.indexing.tokens", "must be integer"),
        ({"settings": {"indexing": {"tokens": 0}}}, "settings.indexing.tokens", "less than 1"),
        (
            {"settings": {"synthesis": {"mode": "x"}}},
            "settings.synthesis.mode",
            "one of one_shot, tree, refine",
        ),
        ({"settings": {"synthesis": {"engine": "gpt"}}}, "settings.synthesis.engine", "gpt"),
        ({"settings": {"synthesis": {"prompt": "{x}"}}}, "settings.synthesis.prompt", "a prompt has '{x}'"),
        ({"inputs": {"question": "?"}}, "inputs.files", "is missing"),
        ({"inputs": {**INPUTS, "files": [{"name": "a.pdf", "text": "no"}]}}, "inputs.files[0]", "a.pdf: "),
        ({"inputs": {**INPUTS, "files": [{"name": "a", "text": ""}]}}, "inputs.files[0]", "a: is empty"),
        (
            {"inputs": {**INPUTS, "files": [{"url": "http://127.0.0.1/"}]}},
            "inputs.files[0]",
            "is not allowed",
        ),
        ({"nonsense": 1}, "body", "unknown key"),
    ],
)
def test_what_is_wrong_in_a_request_is_named(
    http: httpx.Client, body: Mapping[str, Any], place: str, message: str
) -> None:
    answer = ask(http, "naive", **{"inputs": INPUTS, **body})
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert (error["code"], error["place"]) == ("invalid", place)
    assert message in error["message"]
    assert error["request_id"]


def test_a_step_that_fails_is_named() -> None:
    with client(writing()) as http:
        answer = ask(http, "short", inputs={"x": "fail"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["message"]) == (502, "bad_reply", "told to")
        assert error["step"] == "llmcall"
        body = {"inputs": {"x": "fail"}, "stream": True}
        with http.stream("POST", "/v1/apps/short/queries", json=body) as response:
            *_, last = events(response)
        assert last["error"]["step"] == "llmcall"
        started = ask(http, "short", inputs={"x": "fail"}, background=True).json()
        path = f"/v1/apps/short/queries/{started['id']}"
        with http.stream("GET", f"{path}/events") as response:
            list(events(response))
        assert http.get(path).json()["error"]["code"] == "bad_reply"


def test_a_query_that_would_miss_its_deadline_is_refused_with_what_it_needs() -> None:
    may_end = threading.Event()
    slow = writing(WritingConfig(may_end), profile=Profile(0.1, 0.0, per_output_s=10.0))
    with client(slow) as http:
        try:
            ask(http, "short", inputs={"x": "a"}, background=True)
            refused = ask(http, "short", inputs={"x": "b"}, deadline_s=20)
        finally:
            may_end.set()
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (429, "deadline_too_close")
        assert error["needs_s"] > 80
        assert int(refused.headers["retry-after"]) == -(-error["needs_s"] // 1) - 20
        assert ask(http, "short", inputs={"x": "b"}).json()["status"] == "done"


def test_queries_are_their_tenants_alone_and_within_limits() -> None:
    may_end = threading.Event()
    tenants = (
        TenantConfig(name="one", keys=("k1",), limits=Limits(sessions=1)),
        TenantConfig(name="two", keys=("k2",)),
        TenantConfig(name="three", keys=("k3",), limits=Limits(tokens_per_minute=12)),
    )
    config = ServiceConfig(port=0, tenant=tenants, apps=AppLimits(max_documents=1))
    with client(writing(WritingConfig(may_end)), config) as http:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("k1", "k2"))
        try:
            body = {"inputs": {"x": "a"}, "background": True}
            path = "/v1/apps/short/queries"
            assert http.post(path, json=body).status_code == 401
            started = http.post(path, json=body, headers=one).json()
            refused = http.post(path, json=body, headers=one)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "over_limit")
            assert http.get(f"{path}/{started['id']}", headers=two).status_code == 404
            assert http.delete(f"{path}/{started['id']}", headers=two).status_code == 404
            assert http.get(f"{path}/{started['id']}", headers=one).json()["status"] == "running"
        finally:
            may_end.set()
        three = {"Authorization": "Bearer k3"}
        body = {"inputs": {"x": "a"}}
        statuses = [http.post(path, json=body, headers=three).status_code for _ in range(2)]
        assert statuses == [200, 429]  # 8 tokens each
        many = http.post("/v1/apps/naive/queries", json={"inputs": INPUTS}, headers=two)
        assert (many.status_code, many.json()["error"]["place"]) == (422, "inputs.files[0]")
