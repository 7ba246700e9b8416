"""Table of the expansions that Stretto comes with: functions that make the graph of an `expand` step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.components.agent import AGENT, agent_turn
from stretto.components.map_reduce import REDUCE, reduce_tree
from stretto.graph.graph import Graph

EXPANSIONS: Mapping[str, Callable[[Mapping[str, object]], Graph]] = {
    REDUCE: reduce_tree,
    AGENT: agent_turn,
}
"""Table of expansions by name, from which a vocabulary starts."""
