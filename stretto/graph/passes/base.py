"""What a pass is: a function from a graph to a graph with the same result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from stretto.costs.profile import Profile
from stretto.costs.tokens import num_tokens
from stretto.graph.graph import Constant, Graph, Primitive, PromptParts
from stretto.graph.ops import Ops

Profiles: TypeAlias = Mapping[str, Profile]
"""Engine name to profile; an engine that is missing has the default one."""

Pass: TypeAlias = Callable[[Graph, Profiles, Ops], Graph]
"""Keeps the result; returns the same graph, or an equal one, when it has nothing to do."""

DEFAULT_PROFILE = Profile()
_TOKENS_PER_SLOT = 64


def with_primitives(graph: Graph, primitives: list[Primitive]) -> Graph:
    """`graph` with other primitives, or itself when they are the same."""
    new = tuple(primitives)
    return graph if new == graph.primitives else replace(graph, primitives=new)


def is_worth_a_prefill(parts: PromptParts, profile: Profile) -> bool:
    """Whether prefilling `parts` ahead saves more than the extra request costs.

    Token counts are guesses: the values are not known when a graph is optimised.
    """
    tokens = sum(num_tokens(part.text) if isinstance(part, Constant) else _TOKENS_PER_SLOT for part in parts)
    return tokens > 0 and tokens * profile.per_unit_s >= profile.base_s
