"""The calls of a run of an app whose answers decide what it asks next, as a state machine.

Each request is a query of the app. How many calls are left is not known: for each step of the plan, the
requests count that may still make it. A call is known by its step and by a hash of what it asks, so that a
journal serves in whatever order answers came.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stretto.engines.decoding import changed_settings
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.values import Failure
from stretto.planner.application import AppRequest
from stretto.planner.deciding.nodes import DrawnApplication, node_name, place_of
from stretto.planner.deciding.query_calls import QueryCall, QueryCalls
from stretto.planner.running.planned_calls import CallAnswer, CallEnded, PlannedCall, Progress
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.run_request import PromptMessage, SentLine

MOST_ROUNDS = 1000
"""Most steps of one name in a query: a loop that makes more is taken to have no end."""
_Key = tuple[str, int]
"""A call of a query: its step and its number."""


@dataclass(slots=True)
class _LiveQuery:
    """A query that has begun.

    Attributes:
        calls: calls that can be made, or are under way.
        answers: answers so far.
        counts: nodes in which it counts as left.
    """

    query: QueryCalls
    calls: dict[PlannedCall, QueryCall] = field(default_factory=dict)
    answers: dict[_Key, object] = field(default_factory=dict)
    seen: Counter[_Key] = field(default_factory=Counter)
    counts: frozenset[str] = frozenset()
    is_growing: bool = True


class QueryBook:
    """All queries of a run (`Book`).

    Attributes:
        num_left: requests that may still make calls of each node of the plan.
        num_ready: calls of each node that can be made now, or are under way.
        num_requests_left, num_to_begin, num_resumed, num_growing: see `Book`.
    """

    def __init__(self, app: DrawnApplication, requests: RequestStore) -> None:
        self._app = app
        self._source = app.source
        self.requests = requests
        self._live: dict[int, _LiveQuery] = {}
        self._has_ended = bytearray(len(requests))
        self._saved: dict[int, dict[_Key, CallAnswer]] = {}
        self._ready: dict[int, list[PlannedCall]] = {}
        self.num_requests_left = len(requests)
        self.num_resumed = 0
        self.num_growing = len(requests)
        self.num_left = {node.name: len(requests) for node in app.nodes}
        self.num_to_begin = dict.fromkeys(self.num_left, 0)
        self.num_ready = dict.fromkeys(self.num_left, 0)
        self._all = frozenset(self.num_left)
        self._first = [node.name for node in app.nodes if not node.inputs]
        self._inner = {node.name: place_of(node.name) for node in app.nodes}

    def model_of(self, call: PlannedCall) -> str:
        """Return the model that a call is for; of one that has ended, any."""
        live = self._live.get(call.request)
        found = live.calls.get(call) if live else None
        return next(iter(self._app.models)) if found is None else self._source.model_of(found.engine)

    def left(self) -> list[AppRequest]:
        """Return the requests that have not ended, with the answers that they have."""
        found: list[AppRequest] = []
        for number, request in enumerate(self.requests.planned()):
            if self._has_ended[number]:
                continue
            live = self._live.get(number)
            found.append(request if live is None else replace(request, known=dict(live.answers)))
        return found

    def ended(self) -> dict[str, dict[tuple[int, int], int]]:
        """Return nothing: the requests that are left have their answers with them."""
        return {}

    def ready(self, numbers: Sequence[int] | None = None) -> Iterator[Progress]:
        """Yield the calls of each request that can be made first, or its end; it begins as it is reached."""
        numbers = range(len(self.requests)) if numbers is None else numbers
        for name in self._first:
            self.num_to_begin[name] += len(numbers)
        return self._reached(numbers)

    def _reached(self, numbers: Sequence[int]) -> Iterator[Progress]:
        for number in numbers:
            for name in self._first:
                self.num_to_begin[name] -= 1
            if not self._has_ended[number]:
                if number not in self._live:
                    yield self._begin(number)
                else:
                    yield Progress(self._ready.pop(number, []))

    def prompt(self, call: PlannedCall) -> tuple[PromptMessage, ...]:
        """Return the prompt of a call under way."""
        found = self._live[call.request].calls[call]
        return tuple(
            PromptMessage(one.role, one.text, one.tools, is_constant=one.name is None) for one in found.prompt
        )

    def line(self, call: PlannedCall) -> SentLine | None:
        """Return None: queries hand no lines on."""
        return None

    def decode(self, call: PlannedCall) -> dict[str, Any]:
        """Return the settings of a call's decode."""
        decode = self._live[call.request].calls[call].decode
        return {"max_tokens": decode.max_tokens, **changed_settings(decode)}

    def answered(self, call: PlannedCall, answer: CallAnswer) -> Progress:
        """Note the answer to a call. It is ignored if the request has ended, or the call was answered."""
        return self._noted(call, answer)

    def failed(self, call: PlannedCall, error: StrettoError) -> Progress:
        """Note that a call failed; what follows is up to the app."""
        return self._noted(call, error)

    def resume(self, answers: Iterable[tuple[PlannedCall, CallAnswer]]) -> Iterator[CallEnded]:
        """Note answers of an earlier run; yield the requests that end. To be read up before `ready`."""
        for call, answer in answers:
            self._saved.setdefault(call.request, {})[call.node, call.number] = answer
        for number in sorted(self._saved):
            progress = self._begin(number)
            if progress.ended is not None:
                yield progress.ended
            else:
                self._ready[number] = list(progress.ready)
        self._saved.clear()

    def has(self, call: PlannedCall) -> bool:
        """Return whether a call is still wanted."""
        live = self._live.get(call.request)
        return live is not None and call in live.calls

    def first_nodes(self, number: int) -> Sequence[str]:
        """Return the nodes of the calls that a request, which `ready` has not reached, can make first."""
        return () if self._has_ended[number] else self._first

    def _begin(self, number: int) -> Progress:
        query = self._source.query()
        live = self._live[number] = _LiveQuery(query, counts=self._all)
        inputs = self.requests.get(number).planned.inputs or {}
        return self._followed(number, live, query.begin(inputs))

    def _noted(self, call: PlannedCall, result: CallAnswer | StrettoError) -> Progress:
        live = self._live.get(call.request)
        found = live.calls.pop(call, None) if live else None
        if live is None or found is None:
            return Progress()
        self.num_ready[self._node_of(found)] -= 1
        return self._followed(call.request, live, self._given(live, call, found, result))

    def _given(
        self, live: _LiveQuery, call: PlannedCall, found: QueryCall, result: CallAnswer | StrettoError
    ) -> list[QueryCall]:
        """Give the result of a call to its query; return the calls that follow."""
        if isinstance(result, StrettoError):
            return live.query.answered(found, Failure(result))
        value = json.loads(result.text) if found.decode.items is not None else result.text
        live.answers[call.node, call.number] = value
        self._source.note(call.node, found.decode, value)
        return live.query.answered(found, value)

    def _followed(self, number: int, live: _LiveQuery, new: list[QueryCall]) -> Progress:
        """Take calls that have become possible; those that an earlier run has answered are answered."""
        saved, ready = self._saved.get(number, {}), list[PlannedCall]()
        for found in new:  # grows meanwhile
            name, round_number = found.place
            if round_number >= MOST_ROUNDS:
                problem = f"the loop around step {name!r} has had {MOST_ROUNDS} rounds: it has no end"
                live.query.fail(ConfigError(problem))
                break
            if self._source.model_of(found.engine) not in self._app.models:
                error = ConfigError(f"step {name!r} runs on {found.engine!r}, which the plan does not have")
                new += live.query.answered(found, Failure(error))
                continue
            key = name, found.number
            again = live.seen[key]
            live.seen[key] += 1
            call = PlannedCall(number, name, found.number + again)
            if (answer := saved.get((name, call.number))) is not None:
                self.num_resumed += 1
                new += self._given(live, call, found, answer)
            else:
                live.calls[call] = found
                self.num_ready[self._node_of(found)] += 1
                ready.append(call)
        self._count(live)
        if not live.query.has_ended:
            return Progress([call for call in ready if call in live.calls])
        for found in live.calls.values():
            self.num_ready[self._node_of(found)] -= 1
        del self._live[number]
        self._has_ended[number] = True
        self.num_requests_left -= 1
        kind, outputs = self.requests.kind(number), live.query.outputs
        return Progress(
            ended=CallEnded(self.requests.id(number), kind, {}, live.query.error, outputs=outputs)
        )

    def _count(self, live: _LiveQuery) -> None:
        """Count a query in the nodes whose calls it may still make."""
        counts = frozenset[str]() if live.query.has_ended else frozenset(self._open_nodes(live))
        for name in live.counts - counts:
            self.num_left[name] -= 1
        for name in counts - live.counts:
            self.num_left[name] += 1
        live.counts = counts
        names = (node_name(place) for place, _ in live.query.open_steps())
        is_growing = live.query.may_grow or any(name not in self.num_left for name in names)
        is_growing = is_growing and not live.query.has_ended
        self.num_growing += is_growing - live.is_growing
        live.is_growing = is_growing

    def _node_of(self, call: QueryCall) -> str:
        """Return the node in which a call counts: of a step that no draw has had, the last of its model."""
        name = node_name(call.place)
        return (
            name if name in self.num_left else self._app.models[self._source.model_of(call.engine)][-1].name
        )

    def _open_nodes(self, live: _LiveQuery) -> Iterator[str]:
        """Yield the nodes whose calls a query may make."""
        for place, _ in live.query.open_steps():
            if (name := node_name(place)) in self.num_left:
                yield name
        yield from map(self._node_of, live.calls.values())
        if live.query.may_grow:
            for name, (step, at) in self._inner.items():
                if step in self._source.inner_steps and at >= live.query.num_joined(step):
                    yield name
