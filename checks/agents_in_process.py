"""Agents of a model in the process, which draws calls at random within the schemas of its tools."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto import Deployment, Template, deploy
from stretto.apps import agent
from stretto.components import Tool
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.tasks import LLMTask

_MAX_CHARS = 12


class DrawingLLM(TransformerLLM):
    """A model that draws its calls: at a temperature of 1, with at least one call in each turn and with short
    texts, as a model of random weights writes long ones.
    """

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Queue a task."""
        if task.decode is not None:
            schema = task.decode.json_schema and _with_calls(json.loads(task.decode.json_schema))
            drawn = replace(task.decode, temperature=1.0, seed=task.id, json_schema=schema)
            task = replace(task, decode=drawn)
        super().admit(task, rank)


def _with_calls(schema: dict[str, Any]) -> str:
    def short(part: Any) -> Any:
        if isinstance(part, list):
            return [short(one) for one in part]
        if not isinstance(part, dict):
            return part
        bounds = {"maxLength": _MAX_CHARS} if part.get("type") == "string" and "enum" not in part else {}
        return {name: short(value) for name, value in part.items()} | bounds

    return json.dumps({**short(schema), "minItems": 1})


def agents_of(
    model: Path, tools: Sequence[Tool], num_runs: int, max_turns: int
) -> tuple[list[Deployment], list[Template]]:
    """Return the LLM engine of a model in the process, and the agents of all runs, whose tools differ."""
    source = random.Random(num_runs)
    apps = [
        agent(
            source.sample(tools, source.randint(1, 4)),
            max_turns=max_turns,
            max_calls=3,
            call_tokens=160,
            max_tokens=16,
            max_results_chars=800,
            constrained=False if run % 4 == 3 else None,
            named_run=True,
        )
        for run in range(num_runs)
    ]
    llm = deploy("llm", DrawingLLM, TransformerConfig(model), contract="llm", keeps_state=True)
    return [llm], apps
