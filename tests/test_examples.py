"""The examples do what they show."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from support.local_models import models_loaded_once

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


def test_map_reduce(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with models_loaded_once():
        asyncio.run(load("map_reduce").main(paths))
    assert capsys.readouterr().out == "The Admiral Benbow is an inn near a cove.\n"


@pytest.mark.parametrize(("num_summaries", "num_calls"), [(1, 0), (4, 1), (5, 3), (17, 8)])
def test_map_reduce_grows_by_as_many_calls_as_it_takes(num_summaries: int, num_calls: int) -> None:
    graph = load("map_reduce").reduce_summaries({"summaries": ["a summary"] * num_summaries})
    verify(graph)
    assert sum(primitive.op == "decode" for primitive in graph) == num_calls


def test_own_parts(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("own_parts").main())
    assert capsys.readouterr().out == "['salut monde', 'the monde']\n"


def test_every_example_has_a_test() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert {f"test_{name}" for name in names} <= globals().keys()


def test_the_readme_shows_the_example_as_it_is() -> None:
    """Every line of the README's app is a line of the example, in order."""
    root = Path(__file__).parent.parent
    shown = (root / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    lines = iter((root / "examples" / "advanced_rag.py").read_text("utf-8").splitlines())
    for line in filter(None, shown.splitlines()):
        assert line in lines, line
