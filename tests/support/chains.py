"""Chains of LLM calls, each of which needs the answer of the one before it."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.profile import Profile
from support.machines import compiled


def chain(num_calls: int, profile: Profile, *, max_tokens: int, engine: str = "llm") -> ExecutionGraph:
    """Return a chain of `num_calls` calls, the first of which reads the input `q`."""
    lines = ["graph chain(%q: text)"]
    last = "%q"
    for number in range(num_calls):
        lines.append(f"%k{number} = prefill([{last}]) : kv @{engine}")
        lines.append(
            f"%a{number} = decode(%k{number}) {{max_tokens={max_tokens}, ignore_eos=true}} : text @{engine}"
        )
        last = f"%a{number}"
    profiles: Mapping[str, Profile] = {engine: profile}
    return compiled("\n".join([*lines, f"return {last}"]), profiles)
