"""The interface of an optimisation pass: a function from a graph to a graph that computes the same; and the
conditions by which passes are weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from stretto.costs.mean_output import num_tokens
from stretto.graph.graph import Constant, Graph, Primitive, PromptParts
from stretto.graph.ops import Ops
from stretto.model.profile import Profile

Profiles: TypeAlias = Mapping[str, Profile]
"""Mapping from engine name to profile; an engine that is missing has `DEFAULT_PROFILE`."""

Pass: TypeAlias = Callable[[Graph, Profiles, Ops], Graph]
"""An optimisation pass: returns a graph with the same results; with nothing to do, the graph it was given."""

DEFAULT_PROFILE = Profile()
TOKENS_PER_SLOT = 64


def with_primitives(graph: Graph, primitives: list[Primitive]) -> Graph:
    """Return a copy of `graph` with these primitives instead of its own; `graph` itself if equal."""
    new = tuple(primitives)
    return graph if new == graph.primitives else replace(graph, primitives=new)


def is_worth_a_prefill(parts: PromptParts, profile: Profile) -> bool:
    """Return whether it pays to prefill these first parts of a prompt ahead, in a request of their own.

    It pays if prefilling them takes at least as long as an extra request costs. Token counts are guesses,
    because the values of variables are not known when a graph is optimised.
    """
    tokens = sum(num_tokens(part.text) if isinstance(part, Constant) else TOKENS_PER_SLOT for part in parts)
    return tokens > 0 and tokens * profile.per_unit_s >= profile.base_s


def texts_of(prompt: PromptParts) -> tuple[str, ...]:
    """Return the texts of a prompt's constants and the ports of its variables: a key that most unequal
    prompts differ in, and cheaper to hash than the parts, because a string keeps its hash.
    """
    return tuple([part.text if isinstance(part, Constant) else part.port for part in prompt])


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a prediction: costs of engines, the cores where they compute, and their load now.

    Attributes:
        profiles: costs of each engine, by name.
        instances: number of instances of an engine, if it is not 1.
        cores: number of cores that the engines in `threads` share.
        threads: number of these cores that an engine computes on. Engines that compute elsewhere are left
            out.
        num_others: number of other queries that run now, roughly: see `rounded_load`.
    """

    profiles: Profiles = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)
    cores: int = 1
    threads: Mapping[str, int] = field(default_factory=dict)
    num_others: int = 0


def rounded_load(num_queries: int) -> int:
    """Return a number of queries rounded down to a power of two, or 0, so that few loads are told apart."""
    return 1 << num_queries.bit_length() - 1 if num_queries > 0 else 0
