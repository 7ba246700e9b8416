"""The calls of a run as a state machine: which can be made now, with which prompts, and which requests end.

A call that fails takes away the other calls of its node and of all nodes that need this one's answers. A
request ends when no call of it is left. Answers are kept until their request ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import StrettoError
from stretto.planner.application import Application, AppRequest
from stretto.planner.prompt_slots import fill
from stretto.planner.running.call_order import CallOrder
from stretto.planner.running.planned_calls import (
    AskedCall,
    CallAnswer,
    CallEnded,
    LiveRequest,
    PlannedCall,
    Progress,
    text_of_answer,
)
from stretto.planner.running.request_store import Kind, RequestStore


class CallBook:
    """All calls that the requests make of an application.

    Attributes:
        num_left: calls by node that still have to be made, or to be answered.
        num_requests_left: number of requests that have not ended.
        num_resumed: calls that an earlier run has answered.
        num_to_begin: requests that `ready` has still to reach, by the nodes of their first calls.
        num_ready: None, because all calls are known from the beginning and count in `num_left`.
    """

    def __init__(self, app: Application, requests: RequestStore) -> None:
        self._app = app
        self._order = CallOrder(app)
        self.requests = requests
        self._live: dict[int, LiveRequest] = {}  # of requests that have begun
        self._has_ended = bytearray(len(requests))
        self.num_requests_left, self.num_resumed, self.num_growing = len(requests), 0, 0
        self.num_left = {node.name: 0 for node in app.nodes}
        self.num_ready = None
        self.num_to_begin = dict.fromkeys(self.num_left, 0)
        self._num_calls: dict[Kind, int] = {}
        for kind, count in requests.kinds():
            calls = dict(self._order.calls_of(kind))
            self._num_calls[kind] = sum(calls.values())
            for name, num_calls in calls.items():
                self.num_left[name] += num_calls * count

    def model_of(self, call: PlannedCall) -> str:
        """Return the model that a call is for."""
        return self._app.node(call.node).model

    def left(self) -> tuple[list[AppRequest], dict[str, dict[tuple[int, int], int]]]:
        """Return the requests that have not ended, as planners see them, and the tokens of each answer to
        them, by node; the keys are the place of the request in that list, and the number of the call.
        """
        numbers = [number for number in range(len(self.requests)) if not self._has_ended[number]]
        ended: dict[str, dict[tuple[int, int], int]] = {name: {} for name in self.num_left}
        for place, number in enumerate(numbers):
            live = self._live.get(number)
            for name, answers in live.answers.items() if live else ():
                for at, answer in enumerate(answers):
                    if answer is not None:
                        ended[name][place, at] = answer.num_output
        return [self.requests.planned()[number] for number in numbers], ended

    def ready(self, numbers: Sequence[int] | None = None) -> Iterator[Progress]:
        """Yield the calls of each request, or of some, that can be made first; they count as under way then.

        Requests begin as they are reached, because those that wait take little memory.
        """
        numbers = range(len(self.requests)) if numbers is None else numbers
        for number in numbers:
            for name in self.first_nodes(number):
                self.num_to_begin[name] += 1
        return self._reached(numbers)

    def asked(self, call: PlannedCall) -> AskedCall:
        """Return what a call under way asks for.

        Its prompt is the request's own messages, or one text made of them, of the node's prompt, of answers
        and of a chunk. Calls of one request and node have different seeds.
        """
        live, node = self._live[call.request], self._app.node(call.node)
        if live.request is None:
            live.request = self.requests.get(call.request)
        request = live.request
        settings = {"max_tokens": node.max_tokens, **(request.decode or {})}
        if call.number and settings.get("temperature"):
            settings["seed"] = settings.get("seed", 0) + call.number
        inputs = self._order.inputs(live, call)
        if not node.prompt and not node.is_by_chunk and not inputs:
            return AskedCall(request.messages, settings, request.sent)
        texts = {"prompt": request.text}
        if node.chain:
            texts["so_far"] = text_of_answer(live.answers[node.name][call.number - 1]) if call.number else ""
        if node.is_by_chunk:
            texts["chunk"] = request.chunks[call.number]
        prompt = (PromptMessage(None, fill(node.prompt, {**texts, **inputs})),)
        return AskedCall(prompt, settings, request.sent)

    def note(self, call: PlannedCall, result: CallAnswer | StrettoError) -> Progress:
        """Note the answer to a call, or the error that it failed with. An answer is ignored if the request
        has ended, or the call was answered.
        """
        if isinstance(result, StrettoError):
            return self._failed(call, result)
        if not self._answered(call, result):
            return Progress()
        live = self._live[call.request]
        live.started.discard(call)
        if (ended := self._ended(call.request)) is not None:
            return Progress(ended=ended)
        return Progress(ready=tuple(live.unstarted(self._order.released(live, call))))

    def _failed(self, call: PlannedCall, error: StrettoError) -> Progress:
        """Note that a call failed: its node, and nodes that need its answers, make no more calls for the
        request. It is ignored if the request has ended.
        """
        live = self._begun(call.request)
        if live is None:
            return Progress()
        live.error = live.error or error
        lost = [call.node]
        while lost:
            name = lost.pop()
            if name in live.num_left and name not in live.failed:
                live.failed.add(name)
                self.num_left[name] -= live.num_left[name]
                live.num_left[name] = 0
                lost += [taker.name for taker in self._order.takers[name]]
        return Progress(ended=self._ended(call.request))

    def resume(self, answers: Iterable[tuple[PlannedCall, CallAnswer]]) -> Iterator[CallEnded]:
        """Note answers of an earlier run; yield the requests that end. To be read up before `ready`."""
        self.num_resumed = sum(self.num_left.values())
        for call, answer in answers:
            if call.number >= dict(self._order.calls_of(self.requests.kind(call.request))).get(call.node, 0):
                continue  # of a damaged line without a checksum
            ended = self._ended_at_once(call, answer)
            if ended is None and self._answered(call, answer):
                ended = self._ended(call.request)
            if ended is not None:
                yield ended
        self.num_resumed -= sum(self.num_left.values())

    def has(self, call: PlannedCall) -> bool:
        """Return whether there is such a call, and it is still wanted."""
        live = self._begun(call.request)
        answers = () if live is None or call.node in live.failed else live.answers.get(call.node, ())
        return 0 <= call.number < len(answers)

    def _reached(self, numbers: Sequence[int]) -> Iterator[Progress]:
        for number in numbers:
            for name in self.first_nodes(number):
                self.num_to_begin[name] -= 1
            if (live := self._begun(number)) is not None:
                yield Progress(tuple(live.unstarted(self._order.able(number, live))))

    def first_nodes(self, number: int) -> Sequence[str]:
        """Return the nodes of the calls that a request, which `ready` has not reached, can make first."""
        if self._has_ended[number]:
            return ()
        kind, live = self.requests.kind(number), self._live.get(number)
        if live is not None:  # an earlier run has answered calls of it
            return list(dict.fromkeys(call.node for call in self._order.able(number, live)))
        return self._order.first_nodes(kind)

    def _begun(self, number: int) -> LiveRequest | None:
        """Return the state of a request, which begins if it has not; None if it has ended."""
        if self._has_ended[number]:
            return None
        live = self._live.get(number)
        if live is None:
            num_left = dict(self._order.calls_of(self.requests.kind(number)))
            answers: dict[str, list[CallAnswer | None]] = {one: [None] * num for one, num in num_left.items()}
            live = self._live[number] = LiveRequest(answers, num_left)
        return live

    def _answered(self, call: PlannedCall, answer: CallAnswer) -> bool:
        """Note an answer; return whether it is wanted, and the first to its call."""
        live = self._begun(call.request)
        if live is None or call.node in live.failed or live.answers[call.node][call.number] is not None:
            return False
        live.answers[call.node][call.number] = answer
        live.num_left[call.node] -= 1
        self.num_left[call.node] -= 1
        return True

    def _ended_at_once(self, call: PlannedCall, answer: CallAnswer) -> CallEnded | None:
        """End a request of a single call, which has not begun, by its answer. None if it is no such one."""
        number, kind = call.request, self.requests.kind(call.request)
        if self._num_calls[kind] != 1 or self._has_ended[number] or number in self._live:
            return None
        self.num_left[call.node] -= 1
        self._has_ended[number] = True
        self.num_requests_left -= 1
        return CallEnded(self.requests.id(number), kind, {call.node: (answer,)})

    def _ended(self, number: int) -> CallEnded | None:
        """End a request if no call of it is left."""
        live = self._live[number]
        if any(live.num_left.values()):
            return None
        del self._live[number]
        self._has_ended[number] = True
        self.num_requests_left -= 1
        return CallEnded(self.requests.id(number), self.requests.kind(number), live.given(), live.error)
