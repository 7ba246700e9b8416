"""The ready-made tools of agents."""

from __future__ import annotations

import pytest

from stretto.components import Tool
from stretto.engines.batch.calculator import calculate
from stretto.engines.batch.corpus_search import search_tool
from stretto.engines.batch.tools import Tools, ToolsConfig
from stretto.model.tasks import Task
from stretto.model.tools import ToolResult
from stretto.model.values import Document, Section


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17 * 23", "391"),
        ("(1 + 2) ^ 3 - -1", "28"),
        ("1,000 / 8", "125"),
        ("1 / 3", "0.3333333333"),
        ("7 // 2 + 7 % 2", "4"),
        (" 2.50 ", "2.5"),
    ],
)
def test_it_calculates(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "two",
        "__import__('os')",
        "9 ** 9 ** 9",
        "10 ** 60 ** 2",
        "(-8) ** 0.5",
        "True + 1",
        "1" + "+1" * 500,
        "(" * 150,
        "1 if 1 else 2",
        "x := 3",
    ],
)
def test_it_refuses_what_is_no_expression_of_numbers(expression: str) -> None:
    with pytest.raises(ValueError, match=r"number|characters|power"):
        calculate(expression)


def test_documents_are_searched_by_words() -> None:
    pytest.importorskip("bm25s")
    sea = Document("sea.txt", (Section("The sea is deep."), Section("A ship has masts.")), "")
    search = search_tool([sea], k=1)
    engine = Tools(ToolsConfig((search,)))
    calls = ["search: masts", "search: dragons"]
    task = Task(1, "q", "step", "call", {"call": calls}, {"result": "text"}, 2, ("call",))
    (results,) = engine.run([task])
    assert isinstance(results, list)
    assert [result.text for result in results] == ["A ship has masts.", "Nothing was found."]


def test_a_long_result_is_cut_off() -> None:
    engine = Tools(ToolsConfig((Tool("say", "say it", lambda text: text * 9),), max_chars=10))
    task = Task(1, "q", "step", "call", {"call": "say: abc"}, {"result": "text"})
    (result,) = engine.run([task])
    assert isinstance(result, ToolResult)
    assert result.text == "abcabcabca\n[Cut: these are the first 10 of 27 characters.]"
