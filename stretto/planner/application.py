"""An application of several LLMs, and the calls that a set of requests makes of it.

A *node* is a task for a model. It calls its model once for each request, or several times, or once for each
chunk of the request's document: all at once, or in a chain, where each prompt has the next chunk and the
answer so far. The answers of a node's inputs become part of its prompts, as `feed.py` says. Several nodes may
have the same model; its servers then answer the calls of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, TypeAlias

from msgspec import Meta

from stretto.model.errors import ConfigError

MAX_NUMBER = 2**31 - 1
"""Largest number of tokens: sums of several such numbers fit into 64 bits."""
_MAX_CALLS = 2**16
"""Most calls that a node makes for one request: a run holds all of them while the request lasts."""
_NUMBER = re.compile(r" \(servers \d+\)$")
NumTokens: TypeAlias = Annotated[
    int, Meta(ge=0, le=MAX_NUMBER, description=f"a number of tokens, 0 to {MAX_NUMBER}")
]
Named: TypeAlias = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class ModelNode:
    """One LLM of an application, with its task.

    Attributes:
        model: name of the model, with a number behind it where its servers answer some nodes apart from
            others; see `Application.apart`.
        max_tokens: longest answer, in tokens.
        prompt_tokens: tokens of the prompt's template.
        inputs: nodes whose answers are part of the prompts.
        calls: how often it is called for each request.
        chain: whether it is called once for each chunk of a request, with the answer so far.
        map: whether it is called once for each chunk of a request, all at once.
        template: kind of prompt, by which the lengths of answers are known.
        prompt: text of its prompt, with slots for what differs from call to call; empty for what is in the
            slots alone.
    """

    name: Named
    model: str
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
    prompt_tokens: NumTokens = 0
    inputs: tuple[str, ...] = ()
    calls: Annotated[int, Meta(ge=1, le=_MAX_CALLS)] = 1
    chain: bool = False
    map: bool = False
    template: str = ""
    prompt: str = ""

    @property
    def is_by_chunk(self) -> bool:
        """Whether it is called once for each chunk of a request."""
        return self.chain or self.map

    def num_calls(self, num_chunks: int) -> int:
        """Return how often it is called for a request whose document has so many chunks."""
        return num_chunks if self.is_by_chunk else self.calls


@dataclass(frozen=True, slots=True)
class AppRequest:
    """One request to an application.

    Attributes:
        id: the request's `custom_id`.
        prompt_tokens: tokens of its text.
        chunks: tokens of each chunk of its document.
        nodes: nodes that it is for; empty for all.
        answers: tokens of the answers, by node, where they are known.
        max_tokens: longest answer that a line of a Batch file allows; None of other requests.
        inputs: values of the inputs of an app whose answers decide, by name.
        known: answers to calls of such an app, by step and number of the call.
    """

    id: str
    prompt_tokens: int
    chunks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    answers: Mapping[str, int] | None = None
    max_tokens: int | None = None
    inputs: Mapping[str, object] | None = None
    known: Mapping[tuple[str, int], object] | None = None


class Application:
    """A checked application: its nodes in topological order.

    Attributes:
        models: nodes of each model, in this order.

    Raises:
        ConfigError: a name is used twice or unknown, or inputs form a cycle.
    """

    def __init__(self, name: str, nodes: Sequence[ModelNode]) -> None:
        self.name = name
        self.nodes = tuple(_sorted(nodes))
        self._by_name = {node.name: node for node in self.nodes}
        self._sources: dict[frozenset[str], Mapping[str, frozenset[str]]] = {}
        self.models: dict[str, list[ModelNode]] = {}
        for node in self.nodes:
            self.models.setdefault(node.model, []).append(node)

    def node(self, name: str) -> ModelNode:
        """Return the node of this name. Raises KeyError if there is none."""
        return self._by_name[name]

    def counted(self, count: Callable[[ModelNode], ModelNode], of_part: Callable[[str], int]) -> Application:
        """Return the application with the tokens of its own texts counted.

        Args:
            count: returns a node with its text counted.
            of_part: returns the tokens of a part of a prompt.
        """
        return Application(self.name, [count(node) for node in self.nodes])

    def identity(self) -> list[object]:
        """Return what decides its answers, as plain data: a journal belongs to it."""
        return [asdict(replace(node, model=model_name(node.model))) for node in self.nodes]

    def apart(self) -> Application:
        """Return the application whose parts, which no answers connect, have servers of their own, where a
        model is in several of them.
        """
        parts: dict[str, list[str]] = {}  # of each node, the nodes of its part
        for node in self.nodes:
            mine = [node.name]
            for one in {id(parts[name]): parts[name] for name in node.inputs}.values():
                mine += one
            parts.update(dict.fromkeys(mine, mine))
        users: dict[str, list[int]] = {}  # parts of each model
        nodes = []
        for node in self.nodes:
            of = users.setdefault(node.model, [])
            if (part := id(parts[node.name])) not in of:
                of.append(part)
            number = of.index(part)
            nodes.append(replace(node, model=f"{node.model} (servers {number + 1})") if number else node)
        return Application(self.name, nodes)

    def sources(self, nodes: Collection[str]) -> Mapping[str, frozenset[str]]:
        """Return the models that each model of some nodes waits for, directly or through others; itself too.

        Models with equal sources wait for each other: they can only run together. A model with more sources
        than another is none of that one's.
        """
        if (key := frozenset(nodes)) not in self._sources:
            self._sources[key] = self._sources_of(key)
        return self._sources[key]

    def _sources_of(self, nodes: frozenset[str]) -> Mapping[str, frozenset[str]]:
        taken = {node.model: {node.model} for node in self.nodes if node.name in nodes}
        for node in self.nodes:
            if node.name in nodes:
                taken[node.model].update(self.node(name).model for name in node.inputs if name in nodes)
        for between in taken:
            for sources in taken.values():
                if between in sources:
                    sources |= taken[between]
        return {model: frozenset(sources) for model, sources in taken.items()}


def model_name(servers: str) -> str:
    """Return the name of a model without the number of its servers; see `Application.apart`."""
    return _NUMBER.sub("", servers)


def check_model(name: str) -> None:
    """Check the name of a model that a user gives. Raises ConfigError."""
    if model_name(name) != name:
        raise ConfigError(f"model must not end with a number of servers, got {name!r}; rename its folder")


def _sorted(nodes: Sequence[ModelNode]) -> list[ModelNode]:
    if not nodes:
        raise ConfigError("an application needs at least one node")
    by_name: dict[str, ModelNode] = {}
    for node in nodes:
        if node.name in by_name:
            raise ConfigError(f"node {node.name!r} is there twice")
        by_name[node.name] = node
    for node in nodes:
        if len(set(node.inputs)) < len(node.inputs):
            raise ConfigError(f"node {node.name!r} has the same input twice: {', '.join(node.inputs)}")
        for wanted in node.inputs:
            if wanted == node.name:
                raise ConfigError(f"node {node.name!r} has itself as input; a chain needs `chain: true`")
            if wanted not in by_name:
                raise ConfigError(
                    f"node {node.name!r} has the unknown input {wanted!r}; nodes are {', '.join(by_name)}"
                )
    places = {name: at for at, name in enumerate(by_name)}
    sorter = TopologicalSorter({node.name: node.inputs for node in nodes})
    try:
        sorter.prepare()
    except CycleError as error:
        left = ", ".join(sorted(set(error.args[1]), key=places.__getitem__))
        raise ConfigError(f"the inputs of these nodes form a cycle: {left}") from error
    ordered: list[ModelNode] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=places.__getitem__)
        ordered += (by_name[name] for name in ready)
        sorter.done(*ready)
    return ordered
