"""The notebook runs from top to bottom, and prints what is kept in it where the default model is here."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from support.local_models import models_loaded_once

from benchmarks.common.mini_model import MINI
from stretto.engines.models.store import FETCHED_MODELS

NOTEBOOK = Path(__file__).parent.parent / "examples" / "first_hour.ipynb"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_it_is_short() -> None:
    assert len(cells()) == 5
    assert NOTEBOOK.stat().st_size < 10_000


@pytest.mark.long
def test_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    default = FETCHED_MODELS["smollm2"]
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, object] = {"__name__": "__main__"}
    with models_loaded_once(default.name if default.is_here else str(MINI)):
        for cell in cells():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
            (kept,) = cell["outputs"]
            if default.is_here:
                assert printed.getvalue() == "".join(kept["text"])
            else:
                assert printed.getvalue()
