"""The page on semantic variables: its programs run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.programs import Desk, desk_llm

from stretto import engines
from stretto.transforms.table import TRANSFORMS

PAGE = (Path(__file__).parents[2] / "docs" / "semantic_variables.md").read_text("utf-8")


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        engines,
        "llm_engine",
        lambda _: desk_llm(Desk(lambda prompt: "Norwegian" if "Which language" in prompt else "Oslo")),
    )
    scope: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "semantic_variables.md", "exec"), scope)
    assert capsys.readouterr().out == "Oslo\nNorwegian\n"
    tell = scope["tell"]
    assert list(tell.outputs) == ["joke", "rating"]  # type: ignore[attr-defined]


def test_the_page_names_every_transform() -> None:
    written = set(re.findall(r"`(\w+)", PAGE.split("## Transforms")[1]))
    assert not TRANSFORMS.keys() - written
