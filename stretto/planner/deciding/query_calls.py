"""One query of an app as LLM calls: which can be made now, and what follows from their answers.

The production state machine of a query decides this, so that a plan's draws, with made-up answers, and a run,
with real ones, make the calls that the app makes when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.record import record
from stretto.model.tasks import Decode, QueryRecord
from stretto.model.values import KV, Failure, Prompt
from stretto.planner.deciding.joined_parts import JoinedParts, Place
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.session import SessionMachine
from stretto.sched.queries.turn_work import TurnWork

Expand = Callable[[str, Mapping[str, object]], ExecutionGraph]
_NUMBER_BYTES = 7


@record(eq=False)
class QueryCall:
    """One LLM call of a query.

    Attributes:
        node: id of the step in the query's graph.
        item: item of the list to which the step is applied; 0 if there is none.
        place: the step by its name.
        waits: steps whose answers had to be there, directly or through conditions and expansions.
    """

    node: int
    item: int
    place: Place
    engine: str
    prompt: Prompt
    decode: Decode
    waits: frozenset[Place]

    @property
    def number(self) -> int:
        """Number that is equal for calls of equal prompts and settings alone, in whatever order they come."""
        parts = [(segment.text, segment.role, segment.name is None) for segment in self.prompt]
        data = repr((parts, self.decode)).encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(data, digest_size=_NUMBER_BYTES).digest(), "big")


class QueryCalls:
    """The calls of one query.

    Args:
        expand: makes the graph that an `expand` step becomes.

    Attributes:
        outputs: outputs of the app, once all are there.
        error: error that the query has failed with.
        waited: steps for whose answers the Python of a program has waited.
    """

    def __init__(self, egraph: ExecutionGraph, expand: Expand) -> None:
        self.outputs: Mapping[str, object] | None = None
        self.error: StrettoError | None = None
        self.waited: dict[str, None] = {}
        self._egraph = egraph
        self._expand = expand
        self._turn = TurnWork()
        self._machine = SessionMachine("query", QueryRecord(is_streamed=False), self._expanded, self._turn)
        self._parts = JoinedParts()
        self._expanded_nodes: set[int] = set()

    @property
    def has_ended(self) -> bool:
        """Whether the query has its outputs, or has failed."""
        return self.outputs is not None or self.error is not None

    def begin(self, inputs: Mapping[str, object]) -> list[QueryCall]:
        """Begin the query; return the calls that can be made first."""
        return self._taken(self._begun(inputs))

    def answered(self, call: QueryCall, answer: object) -> list[QueryCall]:
        """Give the answer to a call, a text, a list or a `Failure`; return the calls that can be made now."""
        result: object = (KV(call.prompt), answer)
        if isinstance(answer, Failure):
            result = Failure(answer.error.at(call.place[0]))
        return self._taken(self._machine.complete(call.node, call.item, [result]))

    def fail(self, error: StrettoError) -> None:
        """End the query with an error, if it has not ended."""
        if not self.has_ended:
            self.error = error

    def open_steps(self) -> Iterator[tuple[Place, str]]:
        """Yield the steps of the present graph that may still make calls, each with its engine."""
        for node in self._machine.open_nodes():
            if node.decode is not None:
                yield self._parts.place(node), node.engine or ""

    def num_joined(self, step: str) -> int:
        """Return how many steps of a name the query's graph has had so far."""
        return self._parts.num_of[step]

    @property
    def may_grow(self) -> bool:
        """Whether a step may still become a graph that is not known yet."""
        return any(
            _is_expand(node) and node.id not in self._expanded_nodes for node in self._machine.open_nodes()
        )

    def _begun(self, inputs: Mapping[str, object]) -> Outcome:
        self._parts.join(self._egraph, frozenset())
        return self._machine.submit(self._egraph, inputs)

    def _taken(self, outcome: Outcome) -> list[QueryCall]:
        calls: list[QueryCall] = []
        while True:
            calls += (call for request in outcome.work for call in self._calls(request))
            self._note(outcome)
            if outcome.is_paused and not self.has_ended:
                self._turn.renew()
                outcome = self._machine.go_on()
                continue
            following = None if self.has_ended else self._next()
            if following is None:
                return [] if self.has_ended else calls
            outcome = following

    def _note(self, outcome: Outcome) -> None:
        self.error = self.error or outcome.error
        self.outputs = self.outputs or outcome.outputs

    def _next(self) -> Outcome | None:
        """Return what follows from what is known now, besides the work of the graph; None if nothing does."""
        return None

    def _calls(self, request: StepRequest) -> Iterator[QueryCall]:
        node = request.node
        assert request.decode is not None
        assert node.engine is not None
        part, local = self._parts.find(node.id)
        waits, place = part.before(local), self._parts.place(node)
        for at, prompt in enumerate(request.prompts):
            yield QueryCall(node.id, request.lo + at, place, node.engine, prompt, request.decode, waits)

    def _expanded(self, body: str, inputs: Mapping[str, object]) -> ExecutionGraph:
        """Return the graph that the step which is expanded now becomes."""
        graph = self._machine.graph
        node = next(one for one in self._machine.open_nodes() if _is_expand(one) and graph.has_opened(one))
        sub = self._expand(body, inputs)
        self._expanded_nodes.add(node.id)
        part, local = self._parts.find(node.id)
        part.grown[local.id] = self._parts.join(sub, part.before(local))
        return sub


def check_llm_alone(egraph: ExecutionGraph, name: str) -> None:
    """Check that all engines of a graph are LLMs, and that their calls can be made one by one.

    Raises:
        ConfigError: a step runs on another engine, goes on from the tokens of an answer, or has a fallback.
    """
    for node in egraph.nodes:
        if node.spec.runs_on not in (None, "llm"):
            raise ConfigError(
                f"{name}: step {node.name!r} runs on the engine {node.engine!r}, which is no LLM; plans are "
                "for apps of LLM calls, conditions and expansions"
            )
        if node.decode is not None and len(node.outs) > 1:
            raise ConfigError(
                f"{name}: a prompt goes on from the tokens of step {node.name!r}, which plans cannot do"
            )
        if node.strategy.fallback is not None:
            raise ConfigError(
                f"{name}: step {node.name!r} has a fallback, which plans do not use; leave it out"
            )
        if node.spec.runs_on == "llm" and node.decode is None and node.fused is None:
            raise ConfigError(f"{name}: step {node.name!r} is a prompt that several steps read")


def _is_expand(node: Node) -> bool:
    return node.spec.runs_on is None and node.spec.evaluate is None
