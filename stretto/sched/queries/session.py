"""A query as its caller sees it: a session of named variables, to which graphs are added while it lives.

    submit      a one-shot query: one graph, every output wanted; one that fails, or an item of it, ends it
    extend      one more graph. Its inputs are variables, with or without a value; its outputs become such
    provide     a variable gets its value from outside
    want        a caller waits for a variable, with criteria and perhaps a deadline: the work that produces it
                goes before work that no caller waits for, and work for latency before all else
    unwant      that caller has left. This cancels nothing
    drop        the variable is given up: work that only serves it is cancelled, its value is freed
    close       the end; variables without a value fail

A variable is settled once: by a value, `ABSENT` or a `Failure`. A failed variable fails those that need it
and nothing else; the session goes on.

Source: Parrot §4 (semantic variables, `submit` and `get`). Differs: variables are dropped, and fail alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import islice

from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.errors import QueryCancelled, StrettoError, UserError
from stretto.model.tasks import Criteria, Ending, QueryRecord, Usage
from stretto.model.values import Failure, first_failure
from stretto.sched.queries.demand import Demand, asked_by, deduce
from stretto.sched.queries.graph_scheduler import GraphScheduler
from stretto.sched.queries.outcome import Outcome, endings_of
from stretto.sched.queries.results import Completed
from stretto.sched.queries.splicing import Expand
from stretto.sched.queries.turn_work import TurnWork
from stretto.sched.snapshot import QueryPicture

_NO_USAGE = Usage()


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.num_prompt_tokens + other.num_prompt_tokens,
        one.num_cached_tokens + other.num_cached_tokens,
        one.num_output_tokens + other.num_output_tokens,
    )


class SessionMachine:
    """The state of a query, which is either a one-shot run of one graph, or a session: named variables to
    which graphs are added while it lives.

    Each public method handles one event and returns its `Outcome`: work for engines, and news for the caller.

    Attributes:
        usage: tokens of all LLM requests that have ended; None if none has.
        endings: ends of the LLM requests that did not end by themselves; empty for a session.

    Raises:
        UserError: from `submit` and `extend`, for a graph that does not fit.
    """

    def __init__(
        self,
        query: str,
        record: QueryRecord | None = None,
        expand: Expand | None = None,
        turn: TurnWork | None = None,
    ) -> None:
        self.query = query
        self.record = record or QueryRecord()
        self.graph = GraphScheduler(query, self.record, expand, turn)
        self.graph.demands = {}
        self._variables: dict[str, int] = {}
        self._produced: set[str] = set()
        self._settled: dict[str, object] = {}
        self._wants: dict[str, Counter[Demand]] = {}
        self._asked: dict[int, Demand] = {}
        self._is_behind = False
        self._outputs: tuple[str, ...] | None = None
        self.usage: Usage | None = None
        self._usages: dict[str, Usage] = {}
        self.endings: tuple[Ending, ...] = ()
        self._ended: list[tuple[Ending, object]] = []  # with the answer

    @property
    def is_one_shot(self) -> bool:
        """Whether the query runs a single graph and ends by itself with that graph's outputs, unlike a
        session, which ends when it is closed.
        """
        return self._outputs is not None

    @property
    def open_variables(self) -> list[str]:
        """Names of the session's variables that have neither a value nor a failure yet."""
        return [name for name in self._variables if name not in self._settled]

    def open_nodes(self) -> Iterable[Node]:
        """Return the nodes that have not ended."""
        return self.graph.nodes.values()

    def submit(self, egraph: ExecutionGraph, inputs: Mapping[str, object]) -> Outcome:
        """Make this a one-shot query: run one graph with the values in `inputs`; the query ends with the
        graph's outputs.
        """
        for name in egraph.inputs:
            if name not in inputs:
                raise UserError(f"the query brings no input {name!r}")
        ids = dict(zip(egraph.inputs, self.graph.values.add(len(egraph.inputs)), strict=True))
        self.graph.demands = None
        outputs = self.graph.grow(egraph, ids, {})
        self._outputs = tuple(outputs)
        for name, (value_id, index) in outputs.items():
            self._bind(name, value_id, index)
        for name, value_id in ids.items():
            self.graph.live.bring(value_id, inputs[name])
        return self._take()

    def extend(
        self, egraph: ExecutionGraph, bind: Mapping[str, str], values: Mapping[str, object] | None = None
    ) -> Outcome:
        """Add a graph to a session. The graph's inputs are variables of the session, and its outputs become
        variables.

        Args:
            bind: names of variables, by names of inputs and outputs, where these differ.
            values: values of inputs that are no variables, by their names.
        """
        values = values or {}
        names = {name: bind.get(name, name) for name, _, _ in egraph.outputs}
        made = set(names.values())
        for name in names.values():
            if name in self._produced or name in self._settled:
                raise UserError(f"two graphs produce the variable {name!r}")
        if len(made) < len(names):
            name = next(name for name, number in Counter(names.values()).items() if number > 1)
            raise UserError(f"two graphs produce the variable {name!r}")
        read = {name: bind.get(name, name) for name in egraph.inputs if name not in values}
        if clash := next((name for name in read.values() if name in made), None):
            raise UserError(f"{egraph.graph.name} reads and produces the variable {clash!r}")
        ids = {name: self._variable(variable) for name, variable in read.items()}
        ids |= zip(values, self.graph.values.add(len(values)), strict=True)
        outputs = self.graph.grow(egraph, ids, names)
        self._produced |= made
        for name, (value_id, index) in outputs.items():
            self._bind(names[name], value_id, index)
            self._note_change(value_id)
        for name, value in values.items():
            self.graph.live.bring(ids[name], value)
        self._deduce()
        return self._take()

    def provide(self, name: str, value: object) -> Outcome:
        """Set a variable of the session to a value from the caller.

        A variable that has a value already, or that a graph produces, is not changed.
        """
        if name not in self._settled and name not in self._produced:
            self.graph.live.bring(self._variable(name), value)
        return self._take()

    def want(self, name: str, criteria: Criteria | None = None, deadline_s: float | None = None) -> Outcome:
        """Record that a caller waits for a variable of the session, so that the work that produces it becomes
        more urgent.

        The graph that produces it may be added later.

        Args:
            criteria: "latency" or "throughput", what the caller asks of queues and instances; None for what
                the session asks.
            deadline_s: time, by the clock of the runtime or simulator, by which the caller needs it; None for
                no deadline.
        """
        self._variable(name)
        if name not in self._settled:
            self._wants.setdefault(name, Counter())[self._demand(criteria, deadline_s)] += 1
            self._ask(name)
        return self._take()

    def unwant(self, name: str, criteria: Criteria | None = None, deadline_s: float | None = None) -> Outcome:
        """Record that a caller who waited for a variable, with these criteria ("latency" or "throughput") and
        this deadline, no longer waits.

        This cancels nothing.
        """
        wants, demand = self._wants.get(name), self._demand(criteria, deadline_s)
        if wants is not None and demand in wants:
            wants[demand] -= 1
            if not wants[demand]:
                del wants[demand]
            if not wants:
                del self._wants[name]
            self._ask(name)
        return self._take()

    def drop(self, name: str) -> Outcome:
        """Give a variable of the session up: cancel the work that only serves it, and free its value.

        Graphs that read the variable still get its value if a graph produces it, otherwise a failure.
        """
        if (value_id := self._variables.pop(name, None)) is None:
            return self._take()
        if name not in self._settled:
            failure = Failure(QueryCancelled(f"the variable {name!r} was dropped"))
            if name in self._produced:
                self.graph.outcome.settled.append((name, failure))
            else:
                self.graph.live.bring(value_id, failure)
        self._settled.pop(name, None)
        self._produced.discard(name)
        self._usages.pop(name, None)
        self._wants.pop(name, None)
        self._asked.pop(value_id, None)
        self._note_change(value_id)
        graph, producer = self.graph, self.graph.live.dependencies.producer(value_id)
        graph.conceal(name)
        graph.live.unwatch(value_id)
        graph.settle()
        if producer is not None and producer.id in graph.nodes:
            graph.cancel(graph.live.dependencies.unneeded(producer))
        self._deduce()
        return self._take()

    def close_some(self, error: StrettoError, most: int) -> tuple[list[tuple[str, Failure]], int]:
        """Give up to `most` variables up, because the session has ended: a session may have so many that all
        together would take long.

        Returns (name, failure) pairs for those without a value, which fail with `error`, and the number of
        variables given up, which is less than `most` only if none is left.
        """
        names = list(islice(self._variables, most))
        failed = [(name, Failure(error)) for name in names if name not in self._settled]
        for name in names:
            value_id = self._variables.pop(name)
            self.graph.values.pop(value_id, None)
            self._settled.pop(name, None)
            self._usages.pop(name, None)
            self._wants.pop(name, None)
            self._asked.pop(value_id, None)
        return failed, len(names)

    def complete_all(self, reports: Iterable[Completed]) -> Outcome:
        """Handle results of several nodes that came at the same time, so that everything they make
        ready is started together.
        """
        for report in reports:
            if report.usage is not None:
                self._count(report.usage, () if self.is_one_shot else self.graph.made_by(report.node))
            if report.ending is not None and self.is_one_shot:
                (result,) = report.results
                self._ended.append((report.ending, result))
            self.graph.complete(report.node, report.lo, report.results)
        return self._take()

    def complete(self, node: int, lo: int, results: Sequence[object]) -> Outcome:
        """Handle results of a node from an engine, for its items from `lo` on."""
        self.graph.complete(node, lo, results)
        return self._take()

    def deliver(self, node: int, offset: int, piece: str) -> Outcome:
        """Handle a piece of output of a decode that still runs: item number `offset` of a
        list, or text from character `offset` on.
        """
        self.graph.deliver(node, offset, piece)
        return self._take()

    def go_on(self) -> Outcome:
        """Go on where the graph has paused: it grows for long, has had much work to begin, or many of its
        nodes are needed more or less urgently than before.
        """
        if self._is_behind:
            self._deduce()
        return self._take()

    def picture(self) -> QueryPicture:
        """Return a snapshot of the query: how many nodes have not ended, and which
        variables have no value yet.
        """
        return QueryPicture(
            self.query,
            self.record.tenant,
            not self.is_one_shot,
            len(self.graph.nodes),
            tuple(self.open_variables),
        )

    def check_invariants(self) -> None:
        """Check that the running graph and the table of variables agree. For tests."""
        self.graph.check_invariants()
        assert set(self._settled) <= set(self._variables)

    def take_usage(self, name: str) -> Usage:
        """Return and forget the tokens of the LLM requests that have made a variable."""
        return self._usages.pop(name, _NO_USAGE)

    def _count(self, usage: Usage, names: Sequence[str]) -> None:
        """Count the tokens of an LLM request, also for the variables that come of it."""
        self.usage = _sum(self.usage or _NO_USAGE, usage)
        for name in names:
            self._usages[name] = _sum(self._usages.get(name, _NO_USAGE), usage)

    def _new_variable(self, name: str) -> int:
        (value_id,) = self.graph.values.add(1)
        self._watch(name, value_id)
        return value_id

    def _watch(self, name: str, value_id: int) -> None:
        self._variables[name] = value_id
        self.graph.live.watch(value_id, name)

    def _bind(self, name: str, value_id: int, index: int | None) -> None:
        """Let a variable have the value of an output: be that value where nothing else has its name yet."""
        live = self.graph.live
        variable = self._variables.get(name)
        if variable is None and index is None and value_id not in live.watched:
            self._watch(name, value_id)
        elif (
            variable is not None
            and index is None
            and live.dependencies.is_untouched(variable)
            and value_id not in live.watched
        ):
            live.unwatch(variable)
            self._watch(name, value_id)
            if (asked := self._asked.pop(variable, None)) is not None:
                self._asked[value_id] = asked
        elif variable is not None and live.dependencies.waits_for(value_id, variable):
            live.bring(variable, Failure(UserError(f"the variable {name!r} would come of itself")))
        else:
            live.link(value_id, index, self._variable(name))

    def _variable(self, name: str) -> int:
        value_id = self._variables.get(name)
        return self._new_variable(name) if value_id is None else value_id

    def _demand(self, criteria: Criteria | None, deadline_s: float | None) -> Demand:
        return asked_by(criteria or self.record.criteria, math.inf if deadline_s is None else deadline_s)

    def _ask(self, name: str) -> None:
        """Join what all callers that wait for a variable ask of it, and deduce what follows if that has
        changed.
        """
        value_id, wants = self._variables[name], self._wants.get(name)
        before = self._asked.pop(value_id, None)
        if wants:
            self._asked[value_id] = reduce(Demand.joined, wants)._replace(job=name)
        if self._asked.get(value_id) != before:
            self._note_change(value_id)
            self._deduce()

    def _note_change(self, value_id: int) -> None:
        """Note that something else than before is asked of a value, or by it of the node that produces it."""
        if (node := self.graph.live.dependencies.producer(value_id)) is not None:
            self.graph.changed[node.id] = None

    def _deduce(self) -> None:
        """Correct the demands on nodes after what has changed; note which have changed."""
        graph = self.graph
        graph.has_expanded = False
        if graph.demands is None or not graph.changed:
            return
        found = deduce(graph.live, graph.demands, self._asked, self._demand(None, None), graph.changed)
        self._is_behind = bool(graph.changed)
        graph.outcome.demands += graph.groups.update(found)

    def _take(self) -> Outcome:
        """Let the running graph go on, and return its outcome."""
        self.graph.settle()
        if self.graph.has_expanded:
            self._deduce()
        outcome = self.graph.take_outcome()
        outcome.is_paused = outcome.is_paused or self._is_behind
        for name, value in outcome.settled:
            if name in self._variables:
                self._settled[name] = value
                self._produced.discard(name)
                if self._wants.pop(name, None) is not None:
                    self._asked.pop(self._variables[name], None)
        if self._outputs is None:
            return outcome
        failed = outcome.failed_effects
        if outcome.settled:
            failures = {name: first_failure(value) for name, value in outcome.settled}
            failed = [*filter(None, map(failures.get, self._outputs)), *failed]
            outcome.settled = []
        if failed:
            outcome.error = failed[0].error
        elif not self.graph.live.effects and len(self._settled) == len(self._outputs):
            outcome.outputs = {name: self._settled[name] for name in self._outputs}
            self.endings = endings_of(self._ended, outcome.outputs)
        return outcome
