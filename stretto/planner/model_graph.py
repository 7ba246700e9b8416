"""Prints an application as a graph of models: which node takes whose answers, and how many calls it makes."""

from __future__ import annotations

from collections.abc import Iterator

from stretto.planner.problem import Problem


def model_graph(problem: Problem) -> Iterator[str]:
    """Yield a line for each node, in topological order: an arrow names the nodes that take its answers."""
    nodes = problem.app.nodes
    takers = {node.name: [other.name for other in nodes if node.name in other.inputs] for node in nodes}
    for node in nodes:
        num_calls = len(problem.workload.calls[node.name].requests)
        line = f"{node.name} ({problem.workload.models[node.name].name}, {num_calls} calls"
        order = "one after the other" if node.chain else "one for each chunk"
        line += f", {order})" if node.is_by_chunk else ")"
        if takers[node.name]:
            line += f" -> {', '.join(takers[node.name])}"
        yield line
