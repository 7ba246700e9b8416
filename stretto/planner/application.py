"""An application of several LLMs, and the calls that a set of requests makes of it.

A *node* is an LLM with a task. It calls its model once for each request, or several times, or once for each
chunk of the request's document in a chain: then each prompt has the next chunk and the answer so far. The
answers of a node's inputs become part of its prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from stretto.costs.output_lengths import LengthsBySource, OutputLengths
from stretto.costs.shape import LLMModel
from stretto.costs.step_arrays import Ints
from stretto.errors import CapacityError, ConfigError
from stretto.planner.idle_blocks import MAX_REQUESTS


@dataclass(frozen=True, slots=True)
class Node:
    """One LLM of an application, with its task.

    Attributes:
        model: name of the model.
        max_tokens: longest answer, in tokens.
        prompt_tokens: tokens of the prompt's template.
        inputs: nodes whose answers are part of the prompts.
        calls: how often it is called for each request.
        chain: whether it is called once for each chunk of a request, with the answer so far.
        template: kind of prompt, by which the lengths of answers are known.
        prompt: text of its prompt, with slots for what differs from call to call; empty for what is in the
            slots alone.
    """

    name: str
    model: str
    max_tokens: int
    prompt_tokens: int = 0
    inputs: tuple[str, ...] = ()
    calls: int = 1
    chain: bool = False
    template: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an application.

    Attributes:
        id: the request's `custom_id`.
        prompt_tokens: tokens of its text.
        chunks: tokens of each chunk of its document, for chains.
        nodes: nodes that it is for; empty for all.
        answers: tokens of the answers, by node, where they are known.
    """

    id: str
    prompt_tokens: int
    chunks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    answers: Mapping[str, int] | None = None


class Application:
    """A checked application: its nodes in topological order.

    Raises:
        ConfigError: a name is used twice or unknown, or inputs form a cycle.
    """

    def __init__(self, name: str, nodes: Sequence[Node]) -> None:
        self.name = name
        self.nodes = tuple(_sorted(nodes))
        self._by_name = {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node:
        """Return the node of this name. Raises KeyError if there is none."""
        return self._by_name[name]


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    if not nodes:
        raise ConfigError("an application needs at least one node")
    by_name: dict[str, Node] = {}
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
    ordered: list[Node] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=places.__getitem__)
        ordered += (by_name[name] for name in ready)
        sorter.done(*ready)
    return ordered


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one node, in the order of the requests.

    Attributes:
        requests: number of each call's request.
        own_tokens: tokens of each prompt without the answers of other calls.
        previous: call whose answer each prompt also has; -1 for none.
        last_of: last call of each request; -1 for none.
        known: tokens of each answer if known; else -1.
    """

    node: Node
    requests: Ints
    own_tokens: Ints
    previous: Ints
    last_of: Ints
    known: Ints


@dataclass(frozen=True, slots=True)
class DrawnCalls:
    """The calls of one node with one draw of the lengths of all answers.

    Attributes:
        prompts: tokens of each prompt.
        outputs: tokens of each answer.
    """

    calls: NodeCalls
    prompts: Ints
    outputs: Ints


class Workload:
    """All calls that a set of requests makes of an application.

    Attributes:
        calls: calls by node, in topological order.
        estimated: nodes whose lengths of answers are those of another model or kind of prompt.

    Raises:
        ConfigError: a request names an unknown node, a chain has no chunks, or there are too many calls.
        CapacityError: a prompt is longer than its model's context; the message names the request.
    """

    def __init__(
        self,
        app: Application,
        requests: Sequence[Request],
        models: Mapping[str, LLMModel],
        lengths: LengthsBySource,
    ) -> None:
        if not requests:
            raise ConfigError("there are no requests")
        names = {node.name for node in app.nodes}
        for request in requests:
            if unknown := set(request.nodes) - names:
                raise ConfigError(f"request {request.id!r} is for the unknown node {min(unknown)!r}")
            if unknown := set(request.answers or ()) - names:
                raise ConfigError(
                    f"request {request.id!r} has an answer of the unknown node {min(unknown)!r}"
                )
        for node in app.nodes:
            _check_count(node, requests)
        self.app = app
        self.num_requests = len(requests)
        self.models = dict(models)
        self.calls = {node.name: _calls_of(node, requests) for node in app.nodes}
        self.estimated: set[str] = set()
        self._lengths = {node.name: self._lengths_of(node, lengths) for node in app.nodes}
        for node in app.nodes:
            self._check_context(node, requests)

    def _lengths_of(self, node: Node, lengths: LengthsBySource) -> OutputLengths:
        model = self.models[node.name].name
        if not lengths.knows(model, node.template):
            self.estimated.add(node.name)
        try:
            return lengths.of(model, node.template)
        except ConfigError:
            return lengths.of("vicuna-13b-v1.5")

    def _check_context(self, node: Node, requests: Sequence[Request]) -> None:
        calls, context = self.calls[node.name], self.models[node.name].max_context_tokens
        most = calls.own_tokens + np.where(calls.previous >= 0, node.max_tokens, 0)
        for name in node.inputs:
            has_input = self.calls[name].last_of[calls.requests] >= 0
            most = most + np.where(has_input, self.app.node(name).max_tokens, 0)
        if len(most) and most.max() >= context:
            at = int(most.argmax())
            raise CapacityError(
                f"request {requests[calls.requests[at]].id!r}: its prompt for node {node.name!r} may have "
                f"{most[at]} tokens; the context of {node.model} is {context} tokens"
            )

    def draw(self, seed: int) -> dict[str, DrawnCalls]:
        """Draw the lengths of all answers: at most the node's `max_tokens`, and what the context leaves.

        Source: SamuLLM §4.1. Differs: each node has random numbers of its own.
        """
        drawn: dict[str, DrawnCalls] = {}
        for number, node in enumerate(self.app.nodes):
            calls, lengths = self.calls[node.name], self._lengths[node.name]
            random = np.random.default_rng([seed, number])
            sums = np.cumsum(lengths.weights)
            places = np.searchsorted(sums, random.random(len(calls.requests)) * sums[-1], "right")
            wanted = np.array(lengths.lengths)[np.minimum(places, len(sums) - 1)]
            wanted = np.minimum(np.where(calls.known >= 0, calls.known, wanted), node.max_tokens)
            prompts = calls.own_tokens.copy()
            for name in node.inputs:
                last = drawn[name].calls.last_of[calls.requests]
                prompts[last >= 0] += drawn[name].outputs[last[last >= 0]]
            context = self.models[node.name].max_context_tokens
            outputs = np.maximum(1, np.minimum(wanted, context - prompts))
            for call in np.flatnonzero(calls.previous >= 0).tolist():
                prompts[call] += outputs[calls.previous[call]]
                outputs[call] = max(1, min(int(wanted[call]), context - int(prompts[call])))
            drawn[node.name] = DrawnCalls(calls, prompts, outputs)
        return drawn


def _check_count(node: Node, requests: Sequence[Request]) -> None:
    num_calls = sum(
        len(request.chunks) if node.chain else node.calls
        for request in requests
        if not request.nodes or node.name in request.nodes
    )
    if num_calls > MAX_REQUESTS:
        raise ConfigError(f"node {node.name!r} has {num_calls} calls; at most {MAX_REQUESTS} can be planned")


def _calls_of(node: Node, requests: Sequence[Request]) -> NodeCalls:
    numbers, tokens, previous, known = [], [], [], []
    last_of = np.full(len(requests), -1)
    for number, request in enumerate(requests):
        if request.nodes and node.name not in request.nodes:
            continue
        if node.chain and not request.chunks:
            raise ConfigError(f"request {request.id!r} has no chunks, which node {node.name!r} needs")
        parts = request.chunks if node.chain else (request.prompt_tokens,) * node.calls
        for at, part in enumerate(parts):
            numbers.append(number)
            tokens.append(max(1, part + node.prompt_tokens))
            previous.append(len(numbers) - 2 if node.chain and at else -1)
            known.append((request.answers or {}).get(node.name, -1))
        last_of[number] = len(numbers) - 1
    return NodeCalls(
        node,
        np.array(numbers, np.int64),
        np.array(tokens, np.int64),
        np.array(previous, np.int64),
        last_of,
        np.array(known, np.int64),
    )
