"""The snippets of `service.md` and of `http.md` run."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
from support.pages import DOCS, python_of
from support.programs import Desk, desk_llm
from support.services import served


def test_a_program_runs_at_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    with served([desk_llm(Desk(lambda prompt: f"short: {'soup' in prompt}"))]) as (_, url):
        code = python_of(DOCS / "service.md").replace("http://127.0.0.1:8700", url)
        exec(compile(code, "service.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == "short: True\n"


def test_a_route_is_added() -> None:
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(python_of(DOCS / "design" / "http.md"), "http.md", "exec"), scope)
    with served([desk_llm(Desk())]) as (service, url):
        scope["add_route"](service)
        with build_opener(ProxyHandler({})).open(f"{url}/v1/echoes/word") as answer:
            assert json.load(answer) == {"echo": "word"}
