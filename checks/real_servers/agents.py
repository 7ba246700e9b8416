"""Agents whose calls a real server reads, and agents that are held to the schema of their tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from checks.real_servers.outcome import Outcome
from stretto import Runtime
from stretto.apps import agent
from stretto.components import AgentRun, tool
from stretto.engines import llm_engine, tools_engine
from stretto.wire.paths import ApiChoice

_APIS: tuple[ApiChoice, ...] = ("auto", "chat", "completions")
_MAX_TURNS = 2


def check_agents(server: str) -> Iterator[Outcome]:
    """Run agents with each API, free and held to the schema. Every run ends, and each effect happens once.

    Those that are held to the schema have the tool with effects alone, as a small model may call others.
    """
    for api in _APIS:
        for constrained in (None, True):
            sent: list[str] = []
            run = _run(server, api, sent, constrained=constrained)
            done = Counter(call.name for call in run.calls if call.outcome == "done")
            is_right = len(sent) == done["send"] and len(run.turns) <= _MAX_TURNS
            if constrained:
                is_right = is_right and bool(sent) and all(call.outcome == "done" for call in run.calls)
            held = "held to the schema" if constrained else "free"
            calls = [(call.name, call.arguments, call.outcome) for call in run.calls]
            yield Outcome(f"agent, {api}, {held}", is_right, f"{run.ended} after {calls}: {run.answer!r}")


def _run(server: str, api: ApiChoice, sent: list[str], **settings: Any) -> AgentRun:
    @tool(effects=True)
    def send(to: Literal["Ann", "Bob"]) -> str:
        """Send a letter."""
        sent.append(to)
        return f"sent to {to}"

    @tool
    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """Tell the weather of a city."""
        return f"-3 degrees in {city}"

    tools = [send] if settings["constrained"] else [weather, send]
    app = agent(tools, max_turns=_MAX_TURNS, call_tokens=64, max_tokens=16, **settings)
    with Runtime([llm_engine(server, api=api), tools_engine(tools)]) as runtime:
        found = runtime.run_sync(app, {"question": "How is the weather in Oslo? Tell Ann."})["run"]
    assert isinstance(found, AgentRun)
    return found
