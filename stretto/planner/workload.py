"""The calls that a set of requests makes of an application, or those that are left of them.

A call that has been answered is left out; its answer is part of the prompts that need it. A call under way
goes on from the tokens that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stretto.costs.length_belief import LengthBelief
from stretto.costs.output_lengths import LengthsBySource, OutputLengths
from stretto.costs.shape import LLMModel
from stretto.costs.step_arrays import Ints
from stretto.model.errors import CapacityError, ConfigError
from stretto.planner.answers_so_far import NO_ANSWERS, AnswersSoFar
from stretto.planner.application import MAX_NUMBER, Application, AppRequest, ModelNode
from stretto.planner.drawn_calls import DrawnCalls, NodeCalls
from stretto.planner.fast_state import MAX_REQUESTS
from stretto.planner.feed import Feed, feed, taken
from stretto.planner.prompt_slots import shows

_OTHER_MODEL = "vicuna-13b-v1.5"
_TEMPLATE_WORTH, _MODEL_WORTH, _OTHER_WORTH = 200.0, 10.0, 5.0
"""Numbers of a task's own answers that the lengths of answers count for, which were counted elsewhere: of the
same model and kind of prompt, of the same model, and of another model. With the same model and other
templates, means were measured that differ by factors of 1.1 to 4.9."""


class Workload:
    """All calls that a set of requests still makes of an application.

    Attributes:
        calls: calls by node, in topological order.
        feeds: answers of each input that the prompts of each node take.
        estimated: nodes whose lengths of answers are those of another model or kind of prompt.
        beliefs: what is believed about the lengths of each node's answers.

    Raises:
        ConfigError: a request names an unknown node, a chain has no chunks, or there are too many calls.
        CapacityError: a prompt is longer than its model's context; the message names the request.
    """

    def __init__(
        self,
        app: Application,
        requests: Sequence[AppRequest],
        models: Mapping[str, LLMModel],
        lengths: LengthsBySource,
        answers: AnswersSoFar = NO_ANSWERS,
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
        self._limits = np.array([request.max_tokens or MAX_NUMBER for request in requests], np.int64)
        self.models = dict(models)
        self.calls: dict[str, NodeCalls] = {}
        self.feeds: dict[str, dict[str, Feed]] = {}
        for node in app.nodes:
            calls = self.calls[node.name] = self._calls_of(node, requests, answers)
            feeds = self.feeds[node.name] = {name: self._feed(name, calls) for name in node.inputs}
            running = answers.running.get(node.name, ())
            places = ready_calls(len(calls.requests), feeds.values(), calls.previous)[: len(running)]
            calls.generated[places] = np.minimum(running[: len(places)], node.max_tokens - 1)
        self.estimated: set[str] = set()
        self.beliefs: dict[str, LengthBelief] = {}
        for node in app.nodes:
            self.beliefs[node.name], is_known = believed_lengths(
                node, self.models[node.name], lengths, answers
            )
            if not is_known:
                self.estimated.add(node.name)
        for node in app.nodes:
            self._check_context(node, requests)

    def _check_context(self, node: ModelNode, requests: Sequence[AppRequest]) -> None:
        calls, context = self.calls[node.name], self.models[node.name].max_context_tokens
        most = calls.own_tokens + np.where(calls.previous >= 0, node.max_tokens, 0)
        for name in _shown(node):
            cap = self.app.node(name).max_tokens
            most = most + self.feeds[node.name][name].totals(np.full(len(self.calls[name].requests), cap))
        if len(most) and most.max() >= context:
            at = int(most.argmax())
            raise CapacityError(
                f"request {requests[calls.requests[at]].id!r}: its prompt for node {node.name!r} may have "
                f"{most[at]} tokens; the context of {node.model} is {context} tokens"
            )

    def draw(self, seed: int) -> dict[str, DrawnCalls]:
        """Draw the lengths of all answers from the distributions that are most likely: at most the node's
        `max_tokens`, and what the context leaves.

        Source: SamuLLM §4.1. Differs: each node has random numbers of its own.
        """
        drawn: dict[str, DrawnCalls] = {}
        for number, node in enumerate(self.app.nodes):
            random = np.random.default_rng([seed, number])
            drawn[node.name] = self._drawn(node, self.beliefs[node.name].lengths, random, drawn)
        return drawn

    def draw_possible(self, seed: int) -> dict[str, DrawnCalls]:
        """Draw the lengths of all answers from distributions that may be the true ones."""
        drawn: dict[str, DrawnCalls] = {}
        for number, node in enumerate(self.app.nodes):
            random = np.random.default_rng([seed, number, 1])
            possible = self.beliefs[node.name].possible(random)
            drawn[node.name] = self._drawn(node, possible, random, drawn)
        return drawn

    def _drawn(
        self,
        node: ModelNode,
        lengths: OutputLengths,
        random: np.random.Generator,
        drawn: Mapping[str, DrawnCalls],
    ) -> DrawnCalls:
        calls = self.calls[node.name]
        wanted = np.where(calls.known >= 0, calls.known, _lengths_drawn(lengths, random, calls.generated))
        wanted = np.minimum(wanted, self._limits[calls.requests])
        wanted = np.minimum(wanted, node.max_tokens)
        prompts = calls.own_tokens.copy()
        for name in _shown(node):
            prompts += self.feeds[node.name][name].totals(drawn[name].outputs + drawn[name].calls.generated)
        context = self.models[node.name].max_context_tokens
        outputs = np.maximum(1, np.minimum(wanted, context - prompts) - calls.generated)
        prompts += calls.generated
        for call in np.flatnonzero(calls.previous >= 0).tolist():
            before = calls.previous[call]
            prompts[call] += outputs[before] + calls.generated[before]
            outputs[call] = max(1, min(int(wanted[call]), context - int(prompts[call])))
        return DrawnCalls(calls, prompts, outputs, self.feeds[node.name])

    def _calls_of(self, node: ModelNode, requests: Sequence[AppRequest], answers: AnswersSoFar) -> NodeCalls:
        """Return the calls of a node that are left; those of its inputs are known already."""
        if node.is_by_chunk or answers.ended:
            return self._calls_one_by_one(node, requests, answers)
        return _calls_at_once(node, requests)

    def _feed(self, source: str, calls: NodeCalls) -> Feed:
        given = self.calls[source]
        return feed(given.node, (given.requests, given.numbers), calls.node, (calls.requests, calls.numbers))

    def _calls_one_by_one(
        self, node: ModelNode, requests: Sequence[AppRequest], answers: AnswersSoFar
    ) -> NodeCalls:
        request_of, numbers, tokens, previous, known = [], [], [], [], []
        ended = answers.ended.get(node.name, {})
        for at, request in enumerate(requests):
            if request.nodes and node.name not in request.nodes:
                continue
            if node.is_by_chunk and not request.chunks:
                raise ConfigError(f"request {request.id!r} has no chunks, which node {node.name!r} needs")
            constant = _constant_tokens(node, request)
            answered, before = 0, -1
            for number in range(node.num_calls(len(request.chunks))):
                if (at, number) in ended:
                    answered = ended[at, number] if node.chain else 0
                    continue
                prompt = constant + self._answered_inputs(node, at, number, request, answers)
                if node.is_by_chunk:
                    prompt += request.chunks[number]
                if before < 0:
                    prompt += answered
                request_of.append(at)
                numbers.append(number)
                tokens.append(max(1, prompt))
                previous.append(before if node.chain else -1)
                known.append((request.answers or {}).get(node.name, -1))
                before = len(numbers) - 1
        return NodeCalls(
            node,
            np.array(request_of, np.int64),
            np.array(numbers, np.int64),
            np.array(tokens, np.int64),
            np.array(previous, np.int64),
            np.array(known, np.int64),
            np.zeros(len(known), np.int64),
        )

    def _answered_inputs(
        self, node: ModelNode, at: int, number: int, request: AppRequest, answers: AnswersSoFar
    ) -> int:
        """Return the tokens of the answers to inputs that are there and part of the prompt of a call."""
        tokens = 0
        for name in _shown(node):
            if ended := answers.ended.get(name):
                source = self.app.node(name)
                wanted = taken(source, node, number, source.num_calls(len(request.chunks)))
                tokens += sum(ended.get((at, one), 0) for one in wanted)
        return tokens


def _calls_at_once(node: ModelNode, requests: Sequence[AppRequest]) -> NodeCalls:
    """Return the calls of a node that is not called by chunk, if no call of any node has been answered."""
    name = node.name
    chosen = np.array(
        [at for at, request in enumerate(requests) if not request.nodes or name in request.nodes], np.int64
    )
    tokens = np.array([_constant_tokens(node, requests[at]) for at in chosen.tolist()], np.int64)
    known = np.array([(requests[at].answers or {}).get(name, -1) for at in chosen.tolist()], np.int64)
    num_calls = len(chosen) * node.calls
    return NodeCalls(
        node,
        np.repeat(chosen, node.calls),
        np.tile(np.arange(node.calls), len(chosen)),
        np.repeat(np.maximum(1, tokens), node.calls),
        np.full(num_calls, -1),
        np.repeat(known, node.calls),
        np.zeros(num_calls, np.int64),
    )


def _constant_tokens(node: ModelNode, request: AppRequest) -> int:
    """Return the tokens that all prompts of a node for a request have: its template, and the request's text
    if that is part of them.
    """
    return node.prompt_tokens + (request.prompt_tokens if shows(node.prompt, "prompt") else 0)


def _shown(node: ModelNode) -> list[str]:
    """Return the inputs of a node whose answers are part of its prompts; others it only waits for."""
    return [name for name in node.inputs if shows(node.prompt, name)]


def believed_lengths(
    node: ModelNode, model: LLMModel, lengths: LengthsBySource, answers: AnswersSoFar
) -> tuple[LengthBelief, bool]:
    """Return what is believed about the lengths of a node's answers, and whether those of its model and kind
    of prompt were counted.
    """
    is_known = lengths.knows(model.name, node.template)
    try:
        worth = _TEMPLATE_WORTH if is_known and node.template else _MODEL_WORTH
        before = LengthBelief(lengths.of(model.name, node.template), worth)
    except ConfigError:
        before = LengthBelief(lengths.of(_OTHER_MODEL), _OTHER_WORTH)
    found = answers.lengths.get(node.name, Counter[int]())
    whole = (tokens for tokens in found.elements() if tokens < node.max_tokens)
    cut = [node.max_tokens for tokens in found.elements() if tokens >= node.max_tokens]
    still_run = [tokens + 1 for tokens in answers.running.get(node.name, ())]
    return before.updated(whole, [*cut, *still_run]), is_known


def ready_calls(num: int, feeds: Iterable[Feed], previous: Ints | None = None) -> Ints:
    """Return the calls of a node, of which there are `num`, that wait for no other."""
    can_run = np.ones(num, bool) if previous is None else previous < 0
    for one in feeds:
        can_run &= one.taken < 0
    return np.flatnonzero(can_run)


def _lengths_drawn(lengths: OutputLengths, random: np.random.Generator, generated: Ints) -> Ints:
    """Draw a length for each answer, longer than what it has already."""
    points, sums = np.array(lengths.lengths, np.int64), np.cumsum(lengths.weights)
    first = np.where(generated > 0, np.searchsorted(points, generated, "right"), 0)
    before = np.where(first > 0, sums[first - 1], 0.0)
    places = np.searchsorted(sums, before + random.random(len(generated)) * (sums[-1] - before), "right")
    wanted: Ints = points[np.minimum(places, len(points) - 1)]
    return np.where(first == len(points), generated + 1, wanted)


def _check_count(node: ModelNode, requests: Sequence[AppRequest]) -> None:
    num_calls = sum(
        node.num_calls(len(request.chunks))
        for request in requests
        if not request.nodes or node.name in request.nodes
    )
    if num_calls > MAX_REQUESTS:
        raise ConfigError(f"node {node.name!r} has {num_calls} calls; at most {MAX_REQUESTS} can be planned")
