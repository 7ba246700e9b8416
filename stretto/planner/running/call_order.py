"""The order of the calls of a request: which can be made, by the answers that they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stretto.planner.application import Application, ModelNode
from stretto.planner.feed import is_by_chunk, taken
from stretto.planner.running.planned_calls import LiveRequest, PlannedCall, text_of_answer
from stretto.planner.running.request_store import Kind


class CallOrder:
    """The order in which an application's nodes can be called.

    Attributes:
        takers: nodes that take the answers of each node.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self.takers = {node.name: [one for one in app.nodes if node.name in one.inputs] for node in app.nodes}
        self._first_of: dict[tuple[tuple[str, ...], bool], Sequence[str]] = {}

    def calls_of(self, kind: Kind) -> Iterator[tuple[str, int]]:
        """Yield the nodes that requests of a kind are for, each with its number of calls."""
        for node in self._app.nodes:
            if not kind.nodes or node.name in kind.nodes:
                yield node.name, node.num_calls(kind.num_chunks)

    def first_nodes(self, kind: Kind) -> Sequence[str]:
        """Return the nodes of the calls that a new request of a kind can make first."""
        key = kind.nodes, bool(kind.num_chunks)
        if key not in self._first_of:
            num_left = dict(self.calls_of(kind))
            self._first_of[key] = [
                name
                for name, num in num_left.items()
                if num and not any(num_left.get(source) for source in self._app.node(name).inputs)
            ]
        return self._first_of[key]

    def able(self, number: int, live: LiveRequest) -> Iterator[PlannedCall]:
        """Yield all calls of a request that can be made, or are under way."""
        for name, answers in live.answers.items():
            node = self._app.node(name)
            for at, answer in enumerate(answers):
                call = PlannedCall(number, name, at)
                if answer is None and self._has_inputs(live, node, at):
                    yield call
                if answer is None and node.chain:
                    break

    def released(self, live: LiveRequest, answered: PlannedCall) -> Iterator[PlannedCall]:
        """Yield the calls that may have waited for an answer alone, and can be made now."""
        source, number = self._app.node(answered.node), answered.request
        if source.chain:
            yield from self._next_of_chain(live, source, number)
        for taker in self.takers[source.name]:
            if taker.name not in live.answers or not live.num_left[taker.name]:
                continue
            if taker.chain:
                yield from self._next_of_chain(live, taker, number)
                continue
            if is_by_chunk(source, taker):
                places = taken(source, taker, answered.number, len(live.answers[taker.name]))
            elif live.num_left[source.name]:
                continue
            else:
                places = range(len(live.answers[taker.name]))
            for at in places:
                if live.answers[taker.name][at] is None and self._has_inputs(live, taker, at):
                    yield PlannedCall(number, taker.name, at)

    def _next_of_chain(self, live: LiveRequest, node: ModelNode, number: int) -> Iterator[PlannedCall]:
        """Yield the next call of a chain, if there is one and it can be made."""
        answers = live.answers[node.name]
        at = len(answers) - live.num_left[node.name]
        if at < len(answers) and self._has_inputs(live, node, at):
            yield PlannedCall(number, node.name, at)

    def _has_inputs(self, live: LiveRequest, node: ModelNode, at: int) -> bool:
        """Return whether all answers that a call needs are there."""
        for name in node.inputs:
            if live.num_left.get(name):
                source, answers = self._app.node(name), live.answers[name]
                if not is_by_chunk(source, node) or answers[at] is None:
                    return False
        return True

    def inputs(self, live: LiveRequest, call: PlannedCall) -> dict[str, str]:
        """Return the text of the answers that a call takes, by the node that gave them."""
        node = self._app.node(call.node)
        found: dict[str, str] = {}
        for name in node.inputs:
            if (answers := live.answers.get(name)) is not None:
                wanted = taken(self._app.node(name), node, call.number, len(answers))
                found[name] = "\n\n".join(text_of_answer(answers[at]) for at in wanted)
        return found
