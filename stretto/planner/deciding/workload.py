"""The calls of an app whose answers decide, by draws: in each, every query is run with made-up answers.

So each draw says by itself which calls there are, and which wait for which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.costs.length_belief import LengthBelief
from stretto.costs.output_lengths import LengthsBySource, OutputLengths
from stretto.costs.shape import LLMModel
from stretto.costs.step_arrays import Ints
from stretto.model.errors import ConfigError
from stretto.planner.answers_so_far import AnswersSoFar
from stretto.planner.application import AppRequest, ModelNode
from stretto.planner.deciding.answer_beliefs import AnswerBelief
from stretto.planner.deciding.app import DecidingApp
from stretto.planner.deciding.joined_parts import Place
from stretto.planner.deciding.nodes import DrawnApplication, first_nodes, node_name, step_of_node
from stretto.planner.deciding.query_calls import QueryCall
from stretto.planner.drawn_calls import DrawnCalls, NodeCalls
from stretto.planner.feed import Feed
from stretto.planner.workload import believed_lengths, ready_calls

_BLOCK = 512
_MOST_CALLS = 1000
"""Most calls of one query in a draw: a loop that makes more is taken to have no end."""
_MOST_ITEMS = 100_000
"""Longest list that an answer is made up with."""
_WORD = " the"
"""A word of one token, in most tokenizers and by the count of characters; answers are made of it."""


@dataclass(slots=True)
class _Drawn:
    """The calls of one step in a draw, in the order of the requests."""

    requests: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    waits: list[frozenset[Place]] = field(default_factory=list)


class DrawnWorkload:
    """The calls that a set of requests still makes of an app whose answers decide.

    Attributes:
        app: steps of all draws; the first steps of queries if no draw has a call.
        calls, estimated, beliefs, models: what `Workload` has under these names.
        deciding: distributions of the answers that decide, by step.

    Raises:
        ConfigError: a query fails with made-up answers, or makes too many calls.
    """

    def __init__(
        self,
        source: DecidingApp,
        requests: Sequence[AppRequest],
        model_of: Callable[[str], LLMModel],
        lengths: LengthsBySource,
        answers: AnswersSoFar,
        seeds: Sequence[int],
    ) -> None:
        if not requests:
            raise ConfigError("there are no requests")
        self._source = source
        self._requests = requests
        self._model_of = model_of
        self._lengths = lengths
        self._answers = answers
        self._steps: dict[Place, _Step] = {}
        self._of_name: dict[str, _Step] = {}
        self.deciding: dict[str, AnswerBelief] = {}
        found = {seed: self._queries(np.random.default_rng([seed, 2])) for seed in seeds}
        self._check_declared()
        self.app = DrawnApplication(source, self._nodes(found.values()) or first_nodes(source).nodes)
        self._draws = {seed: self._drawn(one) for seed, one in found.items()}
        self.models = {node.name: model_of(node.model) for node in self.app.nodes}
        self.beliefs = {node_name(place): step.belief for place, step in self._steps.items()}
        self.estimated = {node_name(place) for place, step in self._steps.items() if step.is_estimated}
        draws = self._draws.values()
        self.calls = {
            node.name: max((one[node.name].calls for one in draws), key=lambda calls: len(calls.requests))
            for node in self.app.nodes
        }

    def draw(self, seed: int) -> dict[str, DrawnCalls]:
        """Return one of the draws."""
        return self._draws[seed]

    draw_possible = draw

    def _check_declared(self) -> None:
        source = self._source
        steps = dict.fromkeys(node.name for node in source.egraph.nodes if node.decode is not None)
        steps |= source.inner_steps
        known = {source.pattern_of(name) for name in steps}
        if unknown := [name for name in source.declared if name not in known]:
            raise ConfigError(
                f"{source.name}: answers are declared of {unknown[0]!r}; the steps of the app are "
                f"{', '.join(steps)}"
            )

    def _queries(self, random: np.random.Generator) -> dict[Place, _Drawn]:
        """Run all queries with made-up answers; return their calls by step."""
        drawn: dict[Place, _Drawn] = {}
        samplers: dict[str, _Sampler] = {}
        for number, request in enumerate(self._requests):
            for call, prompt, output in self._calls_of(request, samplers, random):
                mine = drawn.setdefault(call.place, _Drawn())
                mine.requests.append(number)
                mine.numbers.append(call.item)
                mine.prompts.append(prompt)
                mine.outputs.append(output)
                mine.waits.append(call.waits)
        return drawn

    def _calls_of(
        self, request: AppRequest, samplers: dict[str, _Sampler], random: np.random.Generator
    ) -> Iterator[tuple[QueryCall, int, int]]:
        """Yield the calls of a query that are not answered yet, with the tokens of prompt and answer."""
        source, known = self._source, request.known or {}
        query = source.query()
        num_calls = 0
        seen: Counter[tuple[str, int]] = Counter()
        todo = query.begin(request.inputs or {})
        for call in todo:  # grows meanwhile
            if (num_calls := num_calls + 1) > _MOST_CALLS:
                raise ConfigError(
                    f"request {request.id!r} makes more than {_MOST_CALLS} calls with drawn answers: the "
                    f"loop around step {call.place[0]!r} has no end"
                )
            source.check_waited(query.waited)
            name = call.place[0]
            step = self._step(call)
            if known:
                key = name, call.number + seen[name, call.number]
                seen[name, call.number] += 1
                if key in known:
                    todo += query.answered(call, known[key])
                    continue
            if request.nodes and node_name(call.place) not in request.nodes:
                continue
            if name not in samplers:
                samplers[name] = _Sampler(step, random)
            prompt = max(1, sum(source.count(segment.text) for segment in call.prompt))
            answer, output = samplers[name].answer(prompt, call, source.count)
            yield call, prompt, output
            todo += query.answered(call, answer)
        if query.error is not None:
            raise ConfigError(f"request {request.id!r} fails with drawn answers: {query.error}")

    def _step(self, call: QueryCall) -> _Step:
        found = self._steps.get(call.place)
        if found is None:
            name = call.place[0]
            found = self._of_name.get(name) or self._new_step(call)
            self._steps[call.place] = self._of_name[name] = found
        return found

    def _new_step(self, call: QueryCall) -> _Step:
        name, decode = call.place[0], call.decode
        node = ModelNode(name, self._source.model_of(call.engine), decode.max_tokens, template=name)
        sizes = self._model_of(node.model)
        belief, is_known = believed_lengths(node, sizes, self._lengths, self._answers)
        found = self._source.lengths.get(name)
        if found:
            belief = belief.updated(found.elements())
        texts = self._source.belief_of(name, decode)
        if texts is not None:
            if decode.items is not None:
                _check_widths(name, texts)
            self.deciding[name] = texts
        return _Step(node, belief, not is_known, texts, sizes.max_context_tokens)

    def _nodes(self, draws: Iterable[dict[Place, _Drawn]]) -> list[ModelNode]:
        """Return the steps that some draws have as nodes."""
        inputs: dict[Place, dict[Place, None]] = {}
        is_map: set[Place] = set()
        for draw in draws:
            for place, drawn in draw.items():
                mine = inputs.setdefault(place, {})
                for waits in set(drawn.waits):
                    mine.update(dict.fromkeys(sorted(waits)))
                if max(drawn.numbers) > 0:
                    is_map.add(place)
        return [
            ModelNode(
                node_name(place),
                step.node.model,
                step.node.max_tokens,
                inputs=tuple(node_name(one) for one in inputs[place] if one in inputs),
                map=place in is_map,
            )
            for place, step in self._steps.items()
            if place in inputs
        ]

    def _drawn(self, draw: Mapping[Place, _Drawn]) -> dict[str, DrawnCalls]:
        found: dict[str, DrawnCalls] = {}
        places = {node.name: step_of_node(node.name) for node in self.app.nodes}
        running = {name: list(self._answers.running.get(name, ())) for name in self._of_name}
        for node in self.app.nodes:
            place = places[node.name]
            mine = draw.get(place, _Drawn())
            requests, prompts = np.array(mine.requests, np.int64), np.array(mine.prompts, np.int64)
            outputs = np.array(mine.outputs, np.int64)
            feeds = {
                name: _feed(draw.get(places[name], _Drawn()), requests, mine.waits, places[name])
                for name in node.inputs
            }
            generated = np.zeros(len(requests), np.int64)
            for call in ready_calls(len(requests), feeds.values()).tolist():
                if not running[place[0]]:
                    break
                generated[call] = min(running[place[0]].pop(0), outputs[call] - 1)
            numbers, nothing = np.array(mine.numbers, np.int64), np.full(len(requests), -1)
            calls = NodeCalls(node, requests, numbers, prompts, nothing, nothing, generated)
            found[node.name] = DrawnCalls(calls, prompts + generated, outputs - generated, feeds)
        return found


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known of the calls of a step.

    Attributes:
        texts: distribution of its answers, if they decide by more than their length.
    """

    node: ModelNode
    belief: LengthBelief
    is_estimated: bool
    texts: AnswerBelief | None
    context: int


class _Sampler:
    """Makes up the answers of a step in one draw."""

    def __init__(self, step: _Step, random: np.random.Generator) -> None:
        self._step = step
        self._random = random
        self._possible = step.belief.possible(random)
        self._texts = None if step.texts is None else step.texts.possible(random)
        self._next_lengths: list[int] = []
        self._next_texts: list[str] = []

    def answer(self, prompt: int, call: QueryCall, count: Callable[[str], int]) -> tuple[object, int]:
        """Return an answer, and its tokens."""
        room = max(1, min(call.decode.max_tokens, self._step.context - prompt))
        if self._texts is not None:
            if not self._next_texts:
                self._next_texts = self._texts.draw(self._random, _BLOCK)
            text = self._next_texts.pop()
            if call.decode.items is None:
                return text, max(1, min(room, count(text)))
            length, width = min(room, self._length()), int(text)
            return [_WORD * max(1, length // max(1, width))] * width, length
        length = min(room, self._length())
        return _WORD * length, length

    def _length(self) -> int:
        if not self._next_lengths:
            self._next_lengths = _lengths_of(self._possible, self._random)
        return max(1, self._next_lengths.pop())


def _check_widths(step: str, answers: AnswerBelief) -> None:
    for text in answers.weights:
        if not (text.isdecimal() and len(text) < 7 and int(text) <= _MOST_ITEMS):
            raise ConfigError(
                f"answers of {step!r}: it makes a list, so each must be a number of items, at most "
                f"{_MOST_ITEMS:,}, got {text!r:.80}"
            )


def _lengths_of(lengths: OutputLengths, random: np.random.Generator) -> list[int]:
    weights = np.array(lengths.weights)
    found: list[int] = random.choice(np.array(lengths.lengths), _BLOCK, p=weights / weights.sum()).tolist()
    return found


def _feed(source: _Drawn, requests: Ints, waits: Sequence[frozenset[Place]], place: Place) -> Feed:
    """Return which calls wait for the calls of a step to the same request."""
    known, groups = np.unique(np.array(source.requests, np.int64), return_inverse=True)
    at = np.searchsorted(known, requests)
    has_any = np.append(known, -1)[at] == requests
    does_wait = np.fromiter((place in one for one in waits), bool, len(waits))
    return Feed(np.arange(len(source.requests)), groups, np.where(has_any & does_wait, at, -1))
