"""The examples do what they show."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.local_models import models_loaded_once
from support.openai_stub import OpenAIStub, Reply
from support.routing import routing, run, until

from benchmarks.common.mini_model import MINI
from stretto import DEFAULT, load_documents
from stretto.engines.llms import llm_engine
from stretto.graph.graph import Graph
from stretto.graph.verify import verify

EXAMPLES = Path(__file__).parent.parent / "examples"
DOCUMENTS = {
    "inn.txt": "The Admiral Benbow is an inn near a cove. The captain lived at the inn with his sea chest.",
    "map.txt": "The map of the island was in the sea chest. A tall tree marks the treasure of the captain.",
    "style.txt": "A line may be 79 characters long. Comments and docstrings may be 72.",
}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Small documents in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in DOCUMENTS.items():
        Path(name).write_text(text)
    return [Path(name) for name in DOCUMENTS]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_advanced_rag(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with models_loaded_once():
        asyncio.run(load("advanced_rag").main("Where did the captain live?", paths))
    assert capsys.readouterr().out == (
        "The captain lived at the inn with his sea chest.\n  from inn.txt\n  from map.txt\n  from style.txt\n"
    )


def test_per_query_configuration(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with models_loaded_once():
        asyncio.run(load("per_query_configuration").main(paths))
    names = ("as it is", "small chunks", "one prompt", "own prompt")
    wanted = "".join(f"{name}: A line may be 79 characters long.\n" for name in names)
    assert capsys.readouterr().out == wanted


def run_documented_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run an example as its docstring shows it, with the models that ship; return what it prints."""
    docstring = load(name).__doc__ or ""
    python, script, *rest = next(
        line.split() for line in docstring.splitlines() if line.startswith("python ")
    )
    assert (python, script) == ("python", f"examples/{name}.py")
    monkeypatch.chdir(EXAMPLES.parent)
    monkeypatch.setattr(sys, "argv", [script, *rest])
    with models_loaded_once():
        runpy.run_path(script, run_name="__main__")
    return capsys.readouterr().out


def test_map_reduce(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The parts' summaries are sentences of the document, and nothing is said again and again."""
    *parts, summary = run_documented_command("map_reduce", monkeypatch, capsys).splitlines()
    text = (EXAMPLES / "documents" / "treasure-island-opening.txt").read_text("utf-8")
    known = set(text.split())
    assert len(parts) > 10
    assert all(part.startswith("- ") for part in parts)
    assert summary.startswith("In short: On stormy nights, when the wind shook")
    for line in (*parts, summary):
        words = line.split()
        assert sum(word in known for word in words) >= 0.8 * len(words) - 2, line
        assert all(len(set(words[i : i + 4])) > 1 for i in range(len(words) - 3)), line


def test_llm_call(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["The captain lived at the inn.", "It was a cold day."]
    with models_loaded_once():
        asyncio.run(load("llm_call").main("Where did the captain live?", texts))
    assert capsys.readouterr().out == (
        "'The captain lived at the inn.': The captain lived at the inn.\n"
        "'It was a cold day.': The context does not answer this question.\n"
    )


def test_tool_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "How many spaces per indentation level?"
    notes = tmp_path / "notes.txt"
    with models_loaded_once():
        asyncio.run(load("tool_call").main(asked, str(EXAMPLES / "documents" / "pep-0008.rst"), str(notes)))
    assert capsys.readouterr().out == "Use 4 spaces per indentation level.\n"
    assert notes.read_text() == f"{asked}\n  Use 4 spaces per indentation level.\n"


def test_condition(capsys: pytest.CaptureFixture[str]) -> None:
    inn, day = "The captain lived at the inn.", "It was a cold day in January."
    with models_loaded_once():
        asyncio.run(load("condition").main("Where did the captain live?", inn, day))
        asyncio.run(load("condition").main("Where did the captain live?", day, inn))
    assert capsys.readouterr().out == f"{inn} (read the first text)\n{inn} (read the second text)\n"


def test_agent(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("bm25s")
    agent = load("agent")
    asked = "What is 79 - 72, and what may be 72 characters long?"
    asyncio.run(agent.main(asked, [EXAMPLES / "documents" / "pep-0008.rst"], agent.rule()))
    said = capsys.readouterr().out
    assert said.startswith("79 - 72 = 7. ")
    assert "(and docstrings/comments to 72)" in said


def test_agent_on_a_server(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The same example runs on a chat server, which sees the results of both tools in its last request."""
    pytest.importorskip("bm25s")
    calls = ('[{"name": "search", "arguments": {"words": "sea ', 'chest"}}, "calcu', 'late: 6 * 7"]')
    replies = [Reply(calls), Reply(("[]",)), Reply(("It was ", "at the inn."))]

    async def ask() -> list[dict[str, Any]]:
        rest = iter(replies)
        async with OpenAIStub(lambda _: next(rest)) as stub:
            await load("agent").main("Where was it?", paths, llm_engine(stub.url, api="chat"))
            return [dict(request) for request in stub.requests]

    requests = asyncio.run(ask())
    assert capsys.readouterr().out == "It was at the inn.\n"
    assert [one["function"]["name"] for one in requests[0]["tools"]] == ["calculate", "search"]
    *_, searched, calculated = requests[-1]["messages"]
    assert "lived at the inn with his sea chest" in searched["content"]
    assert calculated["content"] == "42"


@pytest.mark.parametrize(("place", "num_rounds"), [(0, 0), (2, 2)])
def test_self_refine(place: int, num_rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes on until the text with the answer has been read, and no further."""
    texts = ["It was a cold day in January.", "He had a chest.", "The day was over."]
    texts.insert(place, "The captain lived at the inn.")
    example = load("self_refine")
    rounds: list[object] = []

    def after_verdict(inputs: Mapping[str, object]) -> Graph:
        rounds.append(inputs["place"])
        made: Graph = example.after_verdict(inputs)
        return made

    vars(example)["vocabulary"] = DEFAULT.with_expansion("after_verdict", after_verdict)
    with models_loaded_once():
        asyncio.run(example.main("Where did the captain live?", texts))
    assert capsys.readouterr().out == "The captain lived at the inn.\n"
    assert rounds == list(range(1, num_rounds + 2))


def test_iterative_retrieval(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("bm25s")
    documents = load_documents([EXAMPLES / "documents" / "pep-0008.rst"])
    with models_loaded_once():
        asyncio.run(load("iterative_retrieval").main("When should tabs be used?", documents))
    said = "Tabs should be used solely to remain consistent with code that is already indented with tabs.\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("drafts", "goes_on"),
    [
        (["Probably not in the documents."], True),
        (["By boat."], False),
        (2 * ["Probably not in the documents."], False),
        ([f"Probably not in the documents. The nearest sentence: {n}" for n in range(3)], True),
        ([f"Probably not in the documents. The nearest sentence: {n}" for n in range(4)], False),
    ],
)
def test_iterative_retrieval_is_bounded(drafts: list[str], goes_on: bool) -> None:
    known = {f"draft{place}": draft for place, draft in enumerate(drafts, start=1)}
    graph = load("iterative_retrieval").next_round({"question": "?", **known})
    verify(graph)
    assert any(primitive.op == "web_search" for primitive in graph) == goes_on


def test_search_if_needed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, at_hand, _, searched = run_documented_command("search_if_needed", monkeypatch, capsys).splitlines()
    assert at_hand == "  Anna keeps the key of the library. (without a search)"
    assert "silver fourpenny" in searched
    assert searched.endswith("(4 passages found)")


def test_own_parts(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("own_parts")
    asyncio.run(example.main())
    example.simulate()
    assert capsys.readouterr().out.splitlines() == [
        "['salut monde', 'the monde']",
        "{'texts': ['salut monde', 'the monde']} after 0.005 simulated seconds",
    ]


def test_own_policies() -> None:
    """The shortest prompt goes first, to the worker that joined last."""
    example = EXAMPLES / "own_policies.py"

    async def main() -> None:
        settings: dict[str, Any] = {
            "placement": f"{example}:LastWithRoom",
            "order": f"{example}:ShortestFirst",
        }
        async with routing("waits", "waits", num_slots=1, **settings) as at:
            running = [asyncio.create_task(at.ask()) for _ in range(2)]
            await until(lambda: [len(server.asked) for server in at.servers] == [1, 1])
            waiting = [asyncio.create_task(at.ask(prompt=letter * 999)) for letter in "ab"]
            await until(lambda: at.router_state.view.num_waiting == 2)
            waiting.append(asyncio.create_task(at.ask(prompt="c")))
            await until(lambda: at.router_state.view.num_waiting == 3)
            at.servers[1].go_on.set()
            await until(lambda: len(at.servers[1].asked) >= 2)
            assert json.loads(at.servers[1].asked[1].body)["prompt"] == "c"
            at.servers[0].go_on.set()
            for answer in await asyncio.gather(*running, *waiting):
                assert answer.status_code == 200

    run(main())


def test_every_example_has_a_test() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert {f"test_{name}" for name in names} <= globals().keys()


def test_the_branches_on_the_page_on_apps_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    page = (Path(__file__).parent.parent / "docs" / "apps.md").read_text("utf-8")
    branches = page.partition("## Branches")[2].split("```python\n")[1].split("```")[0]
    with models_loaded_once(str(MINI)):
        exec(compile(branches, "apps.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip()


def test_the_page_on_apps_shows_the_example_as_it_is() -> None:
    root = Path(__file__).parent.parent
    shown = (root / "docs" / "apps.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    example = (root / "examples" / "advanced_rag.py").read_text("utf-8")
    assert example.endswith(f'"""\n\n{shown}')
