"""Engines are told which answers somebody reads before their end."""

from __future__ import annotations

import asyncio
import math
from typing import Literal

import pytest
from support.runtime_engines import graph

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime
from stretto.model.deployment import deploy
from stretto.sched.actions import Action, Admit
from stretto.sched.observer import Observer

TWO_TEXTS = graph(
    """
    graph two_texts(%text: text)
      %draft_kv = prefill([c"Draft: ", %text]) : kv @llm
      %draft    = decode(%draft_kv) : text @llm
      %kv       = prefill([c"Refine: ", %draft]) : kv @llm
      %answer   = decode(%kv) : text @llm
      return %answer
    """
)


class Admitted(Observer):
    """An observer that notes for how long each task may be silent."""

    def __init__(self) -> None:
        self.silence_s: list[float] = []

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.silence_s.append(action.task.silence_s)


@pytest.mark.parametrize("timeout_s", [None, 7.0])
@pytest.mark.parametrize("how", ["run", "submit", "session"])
def test_only_what_a_caller_may_stream_has_to_come_in_parts(
    how: Literal["run", "submit", "session"], timeout_s: float | None
) -> None:
    admitted = Admitted()

    async def main() -> None:
        llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", timeout_s=timeout_s)
        async with Runtime([llm], observers=[admitted]) as runtime:
            match how:
                case "run":
                    await runtime.run(TWO_TEXTS, {"text": "a"})
                case "submit":
                    await (await runtime.submit(TWO_TEXTS, {"text": "a"}))
                case "session":
                    async with await runtime.open_session() as session:
                        session.extend(TWO_TEXTS)
                        session.provide("text", "a")
                        await session.get("answer")

    asyncio.run(main())
    longest_s = math.inf if timeout_s is None else timeout_s
    assert admitted.silence_s == [longest_s, longest_s if how == "run" else 0.0]
