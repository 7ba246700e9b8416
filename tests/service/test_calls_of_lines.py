"""What becomes of a line whose answer is cut, too long, refused or late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stretto.model.errors import BadReply, EngineUnavailable
from stretto.service.app import ServiceApp
from stretto.service.batches import line_caller
from stretto.service.batches.input_lines import InputLine
from stretto.service.batches.line_answers import LineAnswer
from stretto.service.batches.line_caller import EndedLine, end_line
from stretto.service.config import ServiceConfig

GOOD = LineAnswer(200, "r", b'{"usage":{"prompt_tokens":3,"completion_tokens":2}}')


def ended(
    monkeypatch: pytest.MonkeyPatch, found: Sequence[LineAnswer | Exception]
) -> tuple[EndedLine | None, int]:
    """Return what came of a line for which these answers come one after the other, and how many came."""
    left = list(found)

    async def ask(*_: object) -> LineAnswer:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async def run() -> EndedLine | None:
        app = ServiceApp(ServiceConfig())
        tenant = app.tenants.named("")
        assert tenant is not None
        line = InputLine("a", b"{}")
        return await end_line(app, tenant, "/v1/chat/completions", 0, line, "offline", lambda is_sent: None)

    with monkeypatch.context() as patched:
        patched.setattr(line_caller, "ask_service", ask)
        patched.setattr(line_caller, "_PAUSE_S", 0.0)
        return asyncio.run(run()), len(found) - len(left)


CUT = EngineUnavailable("cut")


@pytest.mark.parametrize(
    ("found", "num_asked", "code"),
    [
        ([CUT, CUT, CUT], 3, "answer_lost"),
        ([BadReply("long")], 1, "answer_too_large"),
        ([RuntimeError("a bug")], 1, "internal_error"),
    ],
)
def test_a_line_without_an_answer_has_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, found: Sequence[Exception], num_asked: int, code: str
) -> None:
    line, asked = ended(monkeypatch, found)
    assert line is not None
    assert isinstance(line.entry.value, list)
    assert (line.is_well, asked, line.entry.value[1]) == (False, num_asked, code)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_passing_error_is_followed_by_two_more_tries(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    failed = LineAnswer(status, "r", b"{}")
    line, asked = ended(monkeypatch, [failed, CUT, GOOD])
    assert line is not None
    assert (line.is_well, asked, line.spent.num_output) == (True, 3, 2)
    line, asked = ended(monkeypatch, [failed, failed, failed])
    assert line is not None
    assert isinstance(line.entry.value, list)
    assert (line.is_well, asked, line.entry.value[1]) == (False, 3, status)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_engine_ends_no_line(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    assert ended(monkeypatch, [LineAnswer(status, "r", b"{}")]) == (None, 1)
