"""The steps of an app whose answers decide, as nodes of an application for the planner and for runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from stretto.graph.text import print_graph
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, ModelNode
from stretto.planner.deciding.app import DecidingApp
from stretto.planner.deciding.joined_parts import Place, first_steps

_MARK = " #"


class DrawnApplication(Application):
    """The steps of an app whose answers decide, as nodes.

    Attributes:
        source: the app, by which draws are made.
    """

    def __init__(self, source: DecidingApp, nodes: Sequence[ModelNode]) -> None:
        super().__init__(source.name, nodes)
        self.source = source

    def counted(
        self, count: Callable[[ModelNode], ModelNode], of_part: Callable[[str], int]
    ) -> DrawnApplication:
        """Return the application, whose draws count all parts of prompts."""
        self.source.count = of_part
        return self

    def identity(self) -> list[object]:
        """Return what decides its answers: the graph, and the models of its engines."""
        return [
            self.name,
            print_graph(self.source.egraph.graph, self.source.template.vocabulary.ops),
            sorted(self.source.models.items()),
        ]


def node_name(place: Place) -> str:
    """Return the name of the node that a step is."""
    return place[0] if not place[1] else f"{place[0]}{_MARK}{place[1] + 1}"


def step_of_node(name: str) -> Place:
    """Return the step that a node of this name is."""
    step, mark, number = name.rpartition(_MARK)
    return (step, int(number) - 1) if mark and number.isdecimal() else (name, 0)


def in_short(names: Sequence[str]) -> str:
    """Return names of nodes as words, with how many nodes a step is, if there are several."""
    steps = Counter(step_of_node(name)[0] for name in names)
    return ", ".join(step if num == 1 else f"{step} ×{num}" for step, num in steps.items())


def first_nodes(source: DecidingApp) -> DrawnApplication:
    """Return the steps of the graph that queries begin with, and a node for each other model that it names.

    Raises:
        ConfigError: the app calls no LLM.
    """
    nodes = [
        ModelNode(
            node_name(place),
            source.model_of(node.engine or ""),
            1 if node.decode is None else node.decode.max_tokens,
            inputs=tuple(map(node_name, sorted(waits))),
        )
        for place, node, waits in first_steps(source.egraph)
    ]
    known = {node.model for node in nodes}
    names = {node.name for node in nodes}
    for model in dict.fromkeys(source.models.values()):
        if model not in known and model not in names:
            nodes.append(ModelNode(model, model, 1))
    if not nodes:
        raise ConfigError(f"{source.name}: the app calls no LLM, so there is nothing to plan")
    return DrawnApplication(source, nodes)
