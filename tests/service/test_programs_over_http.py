"""Programs run at a service as they do in process."""

from __future__ import annotations

from support.figure_7 import PROMPTS, WriteSnakeGame, written
from support.programs import Desk, desk_llm
from support.services import served

from stretto import programs as P
from stretto.engines.catalogue import transforms_engine


def test_figure_7_runs_over_http() -> None:
    desk = Desk(written)
    with served([desk_llm(desk), transforms_engine()]) as (_, url), P.Client(url):
        assert WriteSnakeGame() == ("run()", "assert run()")
    assert desk.prompts == PROMPTS
