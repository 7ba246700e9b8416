"""The snippets of the page on agents run, in their order, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stretto

pytest.importorskip("uvloop")

from support.emulated import emulating, fleet_of

PAGE = Path(stretto.__file__).parents[1] / "docs" / "agents.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = _BLOCK.findall(PAGE.read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    (script,) = (text for kind, text in blocks if kind == "json")
    (said,) = (text for kind, text in blocks if kind == "text")
    Path("replies.json").write_text(script)
    scope: dict[str, object] = {"__name__": "page"}
    with emulating(fleet_of(replies=Path("replies.json"))) as (url,):
        for text in (text for kind, text in blocks if kind == "python"):
            code = text.replace("http://127.0.0.1:8001", url)
            exec(compile(code, str(PAGE), "exec"), scope)
    assert capsys.readouterr().out == f"{said}I do not know.\n"
