"""What requests may bring to a deployed app: settings, inputs, documents, and bodies of two forms."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from stretto import Component, Input, Template
from stretto.apps import APPS, advanced_rag, naive_rag, search_empowered
from stretto.http.refusals import Refused
from stretto.model.errors import ConfigError
from stretto.model.values import ABSENT, Chunk, Hit, Mark
from stretto.service.apps.answers import as_json, outputs_as_json
from stretto.service.apps.deployed_app import READY_MADE, deploy_app, load_apps
from stretto.service.apps.inputs import checked_inputs
from stretto.service.apps.multipart import read_parts
from stretto.service.apps.query_request import read_query
from stretto.service.apps.setting_types import converted, schema_of, types_of
from stretto.service.apps.settings import checked_settings, place_of_error
from stretto.service.refusals import Misplaced


def refused(settings: Any, template: Template | None = None) -> Misplaced:
    with pytest.raises(Misplaced) as error:
        checked_settings(template or naive_rag(), settings)
    return error.value


def test_settings_become_a_configuration() -> None:
    given = {"indexing": {"tokens": 64, "overlap": 0}, "synthesis": {"mode": "refine", "retries": 2}}
    configuration = checked_settings(naive_rag(), given)
    assert configuration == given
    naive_rag().lower(configuration)


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        ([], "settings", "must be an object"),
        ({"indexing": 3}, "settings.indexing", "must be an object"),
        ({"reranking": {}}, "settings.reranking", "has no component 'reranking'; it has indexing"),
        ({"indexing": {"tokns": 3}}, "settings.indexing.tokns", "no setting 'tokns'; it has"),
        ({"indexing": {"tokens": "3"}}, "settings.indexing.tokens", "must be integer, got '3'"),
        ({"indexing": {"tokens": True}}, "settings.indexing.tokens", "must be integer, got True"),
        ({"indexing": {"tokens": 10**30}}, "settings.indexing.tokens", "must be integer"),
        ({"synthesis": {"mode": "\ud800"}}, "settings.synthesis.mode", "must be string"),
        ({"synthesis": {"mode": ["tree"]}}, "settings.synthesis.mode", "must be string, got a list"),
        ({"synthesis": {"timeout_s": "x"}}, "settings.synthesis.timeout_s", "must be number or null"),
    ],
)
def test_a_bad_setting_is_named(settings: Any, place: str, message: str) -> None:
    error = refused(settings)
    assert error.place == place
    assert message in error.message


def test_a_setting_without_a_default_is_checked_by_its_declared_type() -> None:
    error = refused({"query_expansion": {"constrained": "yes"}}, advanced_rag())
    assert (error.place, error.message) == (
        "settings.query_expansion.constrained",
        "must be boolean or null, got 'yes'",
    )


def test_the_place_of_an_unusable_value_is_the_setting_or_else_the_component() -> None:
    app, engines = naive_rag(), ("chunking", "embedding", "vectors", "llm")
    for settings, place in (
        ({"indexing": {"tokens": 0}}, "settings.indexing.tokens"),
        ({"synthesis": {"fan_in": 9, "mode": "x"}}, "settings.synthesis.mode"),
        ({"synthesis": {"fan_in": 9, "engine": "gpt"}}, "settings.synthesis.engine"),
        ({"indexing": {"tokens": 40, "overlap": 40}}, "settings.indexing"),
    ):
        assert place_of_error(app, settings, engines) == place


@dataclass(frozen=True)
class Odd:
    """Settings of every kind of type."""

    names: tuple[str, ...] = ()
    mode: Literal["a", "b"] = "a"
    share: float = 0.5
    tools: dict[str, int] | None = None
    weights: tuple[float, ...] | None = None


def test_types_of_settings_are_json_schemas() -> None:
    kinds = types_of(Odd)
    assert {name: schema_of(kind) for name, kind in kinds.items()} == {
        "names": {"type": "array", "items": {"type": "string"}},
        "mode": {"enum": ["a", "b"]},
        "share": {"type": "number"},
        "tools": {"anyOf": [{}, {"type": "null"}]},
        "weights": {
            "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}],
        },
    }
    assert converted(kinds["names"], ["x", "y"]) == ("x", "y")
    assert converted(kinds["share"], 1) == 1
    assert converted(kinds["weights"], [1, 2.5]) == (1, 2.5)
    assert converted(kinds["mode"], "b") == "b"
    for name, value in (("mode", "c"), ("share", float("inf")), ("names", ["x", 3]), ("tools", {"x": 1})):
        with pytest.raises(ConfigError):
            converted(kinds[name], value)


def test_an_app_says_what_it_takes() -> None:
    said = deploy_app("advanced", advanced_rag()).description()
    json.dumps(said)
    assert said["inputs"]["question"] == {"type": "string"}
    assert said["inputs"]["files"]["type"] == "array"
    assert said["outputs"] == {
        "answer": {"type": "text", "streams": True},
        "sources": {"type": "list[hit]", "streams": False},
    }
    tokens = said["settings"]["indexing"]["settings"]["tokens"]
    assert tokens == {"type": "integer", "default": 256}
    assert said["settings"]["synthesis"]["settings"]["retries"] == {"type": "integer", "default": 0}
    assert said["engines"] == ["chunking", "embedding", "llm", "reranking", "vectors"]


def test_ready_made_apps_are_all_servable() -> None:
    assert list(load_apps(READY_MADE)) == [*APPS, "search"]


def inputs_of(given: Any, template: Template | None = None) -> dict[str, Any]:
    return checked_inputs(template or naive_rag(), given, {})


def test_documents_are_given_as_text_as_base64_or_as_a_url() -> None:
    files = [
        {"name": "a.txt", "text": "Hello"},
        {"name": "b.md", "base64": base64.b64encode(b"# Hi").decode()},
        {"url": "https://example.com/c.html"},
    ]
    found = inputs_of({"question": "?", "files": files})["files"]
    assert [(one.name, one.data, one.url) for one in found] == [
        ("a.txt", b"Hello", None),
        ("b.md", b"# Hi", None),
        ("https://example.com/c.html", None, "https://example.com/c.html"),
    ]
    assert [one.place for one in found] == [f"inputs.files[{index}]" for index in range(3)]


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([], "inputs"),
        ({"files": []}, "inputs.question"),
        ({"question": "?"}, "inputs.files"),
        ({"question": 3, "files": []}, "inputs.question"),
        ({"question": "\ud800", "files": []}, "inputs.question"),
        ({"question": "?", "files": [], "more": 1}, "inputs.more"),
        ({"question": "?", "files": {}}, "inputs.files"),
        ({"question": "?", "files": ["x"]}, "inputs.files[0]"),
        ({"question": "?", "files": [{"name": "a", "text": "b"}, {"name": "a"}]}, "inputs.files[1]"),
        ({"question": "?", "files": [{"name": "a", "text": "b", "url": "c"}]}, "inputs.files[0]"),
        ({"question": "?", "files": [{"name": "a", "path": "/etc/passwd"}]}, "inputs.files[0]"),
        ({"question": "?", "files": [{"text": "b"}]}, "inputs.files[0].name"),
        ({"question": "?", "files": [{"name": "a\nb", "text": "b"}]}, "inputs.files[0].name"),
        ({"question": "?", "files": [{"name": "a", "base64": "%"}]}, "inputs.files[0].base64"),
        ({"question": "?", "files": [{"name": "a", "text": 3}]}, "inputs.files[0].text"),
    ],
)
def test_a_bad_input_is_named(given: Any, place: str) -> None:
    with pytest.raises(Misplaced) as error:
        inputs_of(given)
    assert error.value.place == place


class Looking(Component):
    """A component that takes a vector, which no request can bring."""

    outs = {"text": "text"}  # noqa: RUF012


def test_an_app_whose_inputs_are_no_json_is_not_deployed() -> None:
    vector = Input("vector", "vector")
    with pytest.raises(ConfigError, match="input 'vector' is vector; a served app takes"):
        deploy_app("app", Template("app", [], {"vector": vector}))
    with pytest.raises(ConfigError, match="cannot name an app in a URL"):
        deploy_app("a/b", naive_rag())


def body(boundary: bytes, *parts: tuple[bytes, bytes]) -> bytes:
    pieces = (
        b"--" + boundary + b"\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data
        for head, data in parts
    )
    return b"\r\n".join([*pieces, b"--" + boundary + b"--\r\n"])


def test_files_come_beside_the_query_in_a_multipart_body() -> None:
    data = bytes(range(256)) * 3 + b"\r\n--bound\r\n-"
    sent = body(
        b"boundary",
        (b'name="query"', json.dumps({"inputs": {"question": "Who?"}, "stream": True}).encode()),
        (b'name="files"; filename="a.bin"\r\nContent-Type: application/pdf', data),
        ('name="files"; filename="grüße.md"'.encode(), b"# x"),
    )
    request = read_query("multipart/form-data; boundary=boundary", sent)
    assert (request.inputs, request.stream, request.background) == ({"question": "Who?"}, True, False)
    found = checked_inputs(naive_rag(), request.inputs, request.files)["files"]
    assert isinstance(found, list)
    assert [(one.name, one.data) for one in found] == [("a.bin", data), ("grüße.md", b"# x")]


@pytest.mark.parametrize(
    ("content_type", "sent", "place"),
    [
        ("multipart/form-data", b"", "body"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n", "body, part 1"),
        ("multipart/form-data; boundary=x", b"--x\r\nnothing\r\n--x--", "body, part 1"),
        ("multipart/form-data; boundary=x", body(b"x", (b'filename="a"', b"")), "body, part 1"),
        ("multipart/form-data; boundary=x", body(b"x", (b'name="a\xff"', b"")), "body, part 1"),
        (
            "multipart/form-data; boundary=x",
            body(b"x", (b'name="query"' + b";" * 200, b"{}")),
            "body, part 1",
        ),
        ("multipart/form-data; boundary=x" + ";" * 200, body(b"x", (b'name="query"', b"{}")), "body"),
        ("multipart/form-data; boundary=x", body(b"x", (b'name="files"', b"")), "inputs.files"),
        ("multipart/form-data; boundary=x", body(b"x", *[(b'name="query"', b"{}")] * 1001), "body"),
        ("application/json", b"[]", "body"),
        ("application/json", b'{"question": "?"}', "body"),
        ("application/json", b'{"deadline_s": 0}', "deadline_s"),
        ("application/json", b'{"deadline_s": 1e300}', "deadline_s"),
        ("application/json", b'{"objective": "speed"}', "objective"),
        ("application/json", b'{"stream": 1}', "stream"),
        ("application/json", b'{"stream": true, "background": true}', "stream"),
    ],
)
def test_a_bad_body_is_refused(content_type: str, sent: bytes, place: str) -> None:
    with pytest.raises(Misplaced) as error:
        read_query(content_type, sent)
    assert error.value.place == place


@pytest.mark.parametrize(
    ("content_type", "sent"),
    [
        ("multipart/form-data; boundary=x", body(b"x", (b'name="query"', b"{"))),
        ("application/json", b""),
        ("application/json", b'{"inputs": NaN}'),
        ("application/json", b'"\xff"'),
        ("application/json", b"[" * 100_000),
        ("application/json", b'{"deadline_s": 1e999}'),
    ],
)
def test_a_body_that_is_no_json_is_malformed(content_type: str, sent: bytes) -> None:
    with pytest.raises(Refused) as error:
        read_query(content_type, sent)
    assert error.value.status == 400


def test_parts_keep_their_bytes() -> None:
    sent = body(b"x", (b'name="a"', b"\r\n\r\n\n"), (b'name="b"; filename="say \\"hi\\".txt"', b""))
    parts = read_parts('multipart/form-data; boundary="x"', sent)
    assert [(part.name, part.filename, part.data) for part in parts] == [
        ("a", None, b"\r\n\r\n\n"),
        ("b", 'say "hi".txt', b""),
    ]


@pytest.mark.parametrize(
    ("head", "filename"),
    [
        ("filename*=UTF-8''gr%C3%BC%C3%9Fe.md", "grüße.md"),
        ("filename=\"gr__e.md\"; filename*=UTF-8''gr%C3%BC%C3%9Fe.md", "gr__e.md"),
    ],
)
def test_a_file_may_have_only_an_extended_name(head: str, filename: str) -> None:
    """Older clients of Python send names that are not ASCII so, and nothing else says that it is a file."""
    sent = body(b"x", (b'name="files"; ' + head.encode(), b"# x"))
    assert [part.filename for part in read_parts("multipart/form-data; boundary=x", sent)] == [filename]


def test_outputs_are_json() -> None:
    hit = Hit(Chunk("a.md", 1, "Text.", title="T", num_chunks=2), 0.5)
    place = {"page": None, "pages": None, "section": "T", "sections": ["T"], "quote": None}
    source = {"source": "a.md", **place, "passage": 2, "text": "Text.", "score": 0.5}
    assert as_json([hit]) == [source]
    assert as_json(ABSENT) is None
    assert as_json([1, "x", float("nan"), True, (ABSENT,)]) == [1, "x", None, True, [None]]


def test_sources_quote_what_supports_the_answer() -> None:
    text = "The mill is old.\nIts roof is of slate.\nIt burnt down."
    marks = tuple(Mark(text.index("I", at), None, page) for at, page in ((10, 2), (30, 3)))
    hit = Hit(Chunk("a.pdf", 0, text, page=1, marks=marks), 0.5)
    for outputs, question, pages, quote in (
        ({"answer": "Slate"}, "What is the roof of?", [2, 2], "Its roof is of slate."),
        ({}, "Is the mill old?", [1, 1], "The mill is old."),
        ({"answer": 3.5}, "", [1, 3], None),
    ):
        sources = outputs_as_json({**outputs, "sources": [hit]}, question)["sources"]
        assert isinstance(sources, list)
        (found,) = sources
        assert (found["pages"], found["page"], found["quote"]) == (pages, pages[0], quote)


FILE = """
from stretto.apps import naive_rag
from beside import SIZE
from stretto.apps.components.synthesis import MODES

rag = naive_rag()

def other():
    return naive_rag(named_collection=bool(SIZE))

def broken():
    raise ValueError("no")

class Mute(Exception):
    def __str__(self):
        raise ValueError("an exception that cannot print its message")

def mute():
    raise Mute

number = 3
"""


def test_apps_are_loaded_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("SIZE = 1\n")
    path = tmp_path / "mine.py"
    apps = load_apps([f"{path}:rag", f"{path}:other", "search"])
    assert list(apps) == ["rag", "other", "search"]
    assert [name for name, _ in apps["other"].template.inputs] == ["files", "collection", "question"]
    assert apps["search"].template.name == search_empowered().name
    for where, message in (
        (f"{path}:number", "must be a Template"),
        (f"{path}:none", "there is no none in"),
        (f"{path}:broken", r"broken\(\) raised ValueError: no"),
        (f"{path}:mute", r"mute\(\) raised Mute"),
        (f"{tmp_path}/none.py:rag", "there is no file"),
        ("naïve", "give FILE.py:NAME, or a ready-made app: naive"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_apps([where])
    with pytest.raises(ConfigError, match="another app is called 'rag'"):
        load_apps([f"{path}:rag"] * 2)
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="raised ZeroDivisionError"):
        load_apps([f"{tmp_path}/bad.py:rag"])
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match="raised SystemExit: 3"):
        load_apps([f"{tmp_path}/ends.py:rag"])
