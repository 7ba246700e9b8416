"""The snippets of the page on agents run, in their order, and print what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

import stretto

pytest.importorskip("uvloop")
pytest.importorskip("mcp")

from support.emulated import emulating, fleet_of
from support.pages import blocks, write_files

PAGE = Path(stretto.__file__).parents[1] / "docs" / "agents.md"


def test_the_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    (script,) = (block.text for block in blocks(PAGE) if block.kind == "json")
    first, by_mcp = (block.text for block in blocks(PAGE) if block.kind == "text")
    Path("replies.json").write_text(script)
    scope: dict[str, object] = {"__name__": "page"}
    with emulating(fleet_of(replies=Path("replies.json"))) as (url,):
        for text in (block.text for block in blocks(PAGE) if block.kind == "python" and not block.file):
            code = text.replace("http://127.0.0.1:8001", url)
            exec(compile(code, str(PAGE), "exec"), scope)
    assert capsys.readouterr().out == f"{first}I do not know.\n{by_mcp}"
