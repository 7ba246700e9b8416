"""A query whose graph is a single call of an LLM, and whose caller wants its end alone.

Such queries come by the hundred thousand. A `SessionMachine` does the same for any graph,
at several times the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.errors import UserError
from stretto.model.foreign import raised, typed
from stretto.model.tasks import Ending, QueryRecord, Usage
from stretto.model.values import Failure
from stretto.sched.queries.demand import usual
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.prepare import prepare_request
from stretto.sched.queries.results import Completed
from stretto.sched.snapshot import QueryPicture


class OneCall:
    """The state of a query of one call.

    Attributes:
        usage: tokens of the call; None until it has been answered.
        endings: the end of the call, if it did not end by itself.
    """

    is_one_shot = True

    def __init__(self, query: str, record: QueryRecord) -> None:
        self.query = query
        self.record = record
        self.usage: Usage | None = None
        self.endings: tuple[Ending, ...] = ()
        self._output = ""
        self._nodes: tuple[Node, ...] = ()

    def submit(self, egraph: ExecutionGraph, inputs: Mapping[str, object]) -> Outcome:
        """Return the request of a graph that `is_one_call`, with the values in `inputs`."""
        prefill, decode = egraph.nodes
        self._nodes = egraph.nodes
        self._output = egraph.outputs[0][0]
        outcome = Outcome()
        for name in egraph.inputs:
            if name not in inputs:
                raise UserError(f"the query brings no input {name!r}")
        values = {value_id: inputs[name] for name, value_id in egraph.inputs.items()}
        ports = {arg.port: values[arg.value] for arg in prefill.ins}
        demand = usual(self.record.criteria, prefill.path_s)
        try:
            request = prepare_request(
                self.query, prefill, decode, ports, 0, 1, (), self.record, demand=demand, is_alone=True
            )
            outcome.work.append(request)
        except raised() as error:
            outcome.error = typed(error, prefill.name)
        return outcome

    def open_nodes(self) -> Iterable[Node]:
        """Return the prefill and the decode of the call."""
        return self._nodes

    def complete_all(self, reports: Iterable[Completed]) -> Outcome:
        """Take the answer to the call, which ends the query."""
        outcome = Outcome()
        for report in reports:
            self.usage = report.usage
            ending = report.ending
            self.endings = () if ending is None else (replace(ending, outputs=(self._output,)),)
            (result,) = report.results
            if isinstance(result, Failure):
                outcome.error = result.error
            else:
                assert isinstance(result, tuple)
                outcome.outputs = {self._output: result[1]}
        return outcome

    def deliver(self, node: int, offset: int, piece: str) -> Outcome:
        """Return an empty outcome: nobody reads a piece of the answer before its end."""
        return Outcome()

    def picture(self) -> QueryPicture:
        """Return a snapshot of the query."""
        return QueryPicture(self.query, self.record.tenant, False, 1, (self._output,))

    def check_invariants(self) -> None:
        """Do nothing: no part of the state could disagree with another."""
