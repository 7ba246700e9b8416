"""The calls of a run of an app whose answers decide what it asks next, as a state machine.

Each request is a query of the app. How many calls are left is not known: for each step of the plan, the
requests count that may still make it. A call is known by its step and by a hash of what it asks, so that a
journal serves in whatever order answers came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stretto.engines.decoding import changed_settings
from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.values import Failure
from stretto.planner.application import AppRequest
from stretto.planner.deciding.nodes import DrawnApplication
from stretto.planner.deciding.query_calls import QueryCall
from stretto.planner.running.planned_calls import AskedCall, CallAnswer, CallEnded, PlannedCall, Progress
from stretto.planner.running.query_counts import Key, LiveQuery, QueryCounts
from stretto.planner.running.request_store import RequestStore

MOST_ROUNDS = 1000
"""Most steps of one name in a query: a loop that makes more is taken to have no end."""


class QueryBook:
    """All queries of a run (`Book`).

    Attributes:
        num_left, num_ready: see `QueryCounts`.
        num_requests_left, num_to_begin, num_resumed: see `Book`.
    """

    def __init__(self, app: DrawnApplication, requests: RequestStore) -> None:
        self._app = app
        self._source = app.source
        self.requests = requests
        self._live: dict[int, LiveQuery] = {}
        self._has_ended = bytearray(len(requests))
        self._saved: dict[int, dict[Key, CallAnswer]] = {}
        self._ready: dict[int, list[PlannedCall]] = {}
        self.num_requests_left = len(requests)
        self.num_resumed = 0
        self._counts = QueryCounts(app, len(requests))
        self.num_left, self.num_ready = self._counts.num_left, self._counts.num_ready
        self.num_to_begin = dict.fromkeys(self.num_left, 0)
        self._first = [node.name for node in app.nodes if not node.inputs]

    @property
    def num_growing(self) -> int:
        """Requests that may still make calls which count in no node now."""
        return self._counts.num_growing

    def model_of(self, call: PlannedCall) -> str:
        """Return the model that a call is for; of one that has ended, any."""
        live = self._live.get(call.request)
        found = live.calls.get(call) if live else None
        return next(iter(self._app.models)) if found is None else self._source.model_of(found.engine)

    def left(self) -> tuple[list[AppRequest], dict[str, dict[tuple[int, int], int]]]:
        """Return the requests that have not ended, each with its answers, and no answers apart."""
        found: list[AppRequest] = []
        for number, request in enumerate(self.requests.planned()):
            if not self._has_ended[number]:
                live = self._live.get(number)
                found.append(request if live is None else replace(request, known=dict(live.answers)))
        return found, {}

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

    def asked(self, call: PlannedCall) -> AskedCall:
        """Return what a call under way asks for. Queries hand no lines on."""
        found = self._live[call.request].calls[call]
        prompt = [
            PromptMessage(one.role, one.text, one.tools, is_constant=one.name is None) for one in found.prompt
        ]
        return AskedCall(prompt, {"max_tokens": found.decode.max_tokens, **changed_settings(found.decode)})

    def note(self, call: PlannedCall, result: CallAnswer | StrettoError) -> Progress:
        """Note the answer to a call, or that it failed: what follows is up to the app. It is ignored if the
        request has ended, or the call was answered.
        """
        live = self._live.get(call.request)
        found = live.calls.pop(call, None) if live else None
        if live is None or found is None:
            return Progress()
        self._counts.add_ready(found, -1)
        return self._followed(call.request, live, self._given(live, call, found, result))

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
        live = self._live[number] = LiveQuery(query, counts=frozenset(self.num_left))
        inputs = self.requests.get(number).planned.inputs or {}
        return self._followed(number, live, query.begin(inputs))

    def _given(
        self, live: LiveQuery, call: PlannedCall, found: QueryCall, result: CallAnswer | StrettoError
    ) -> list[QueryCall]:
        """Give the result of a call to its query; return the calls that follow."""
        if isinstance(result, StrettoError):
            return live.query.answered(found, Failure(result))
        value = json.loads(result.text) if found.decode.items is not None else result.text
        live.answers[call.node, call.number] = value
        self._source.note(call.node, found.decode, value)
        return live.query.answered(found, value)

    def _followed(self, number: int, live: LiveQuery, new: list[QueryCall]) -> Progress:
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
                self._counts.add_ready(found, 1)
                ready.append(call)
        self._counts.update(live)
        if not live.query.has_ended:
            return Progress([call for call in ready if call in live.calls])
        for found in live.calls.values():
            self._counts.add_ready(found, -1)
        del self._live[number]
        self._has_ended[number] = True
        self.num_requests_left -= 1
        kind, outputs = self.requests.kind(number), live.query.outputs
        return Progress(
            ended=CallEnded(self.requests.id(number), kind, {}, live.query.error, outputs=outputs)
        )
