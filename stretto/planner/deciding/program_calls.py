"""One query of a program whose Python decides, as LLM calls: the program is run again whenever the answer for
which it waits is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.values import Failure
from stretto.planner.deciding.joined_parts import Place
from stretto.planner.deciding.query_calls import Expand, QueryCalls
from stretto.programs.decided import DecidedProgram, Later, ProgramRun
from stretto.programs.fragment import Fragment, WaitingCall
from stretto.sched.queries.outcome import Outcome

Compile = Callable[[Fragment], tuple[ExecutionGraph, Sequence[str]]]


class ProgramCalls(QueryCalls):
    """The calls of one query of a program.

    Args:
        compile_fragment: returns the graph of calls that come together, and the names of its inputs and
            outputs.
    """

    def __init__(
        self, program: DecidedProgram, egraph: ExecutionGraph, compile_fragment: Compile, expand: Expand
    ) -> None:
        super().__init__(egraph, expand)
        self._program = program
        self._compile = compile_fragment
        self._inputs: Mapping[str, object] = {}
        self._run: ProgramRun | None = None
        self._known: dict[str, object] = {}
        self._behind: dict[str, frozenset[Place]] = {}
        self._answered: frozenset[Place] = frozenset()

    def _begun(self, inputs: Mapping[str, object]) -> Outcome:
        self._inputs = inputs
        return self._continued()

    @property
    def may_grow(self) -> bool:
        """Whether the program has not returned yet."""
        return not self.has_ended and (self._run is None or self._run.waits_for is not None)

    def _note(self, outcome: Outcome) -> None:
        super()._note(outcome)
        self._known.update(outcome.settled)

    def _next(self) -> Outcome | None:
        assert self._run is not None
        waits_for = self._run.waits_for
        if waits_for is not None:
            if waits_for not in self._known:
                return None
            self._answered |= self._behind.get(waits_for, frozenset())
            return self._continued()
        self._end(self._run.returned)
        return None

    def _end(self, returned: Mapping[str, object]) -> None:
        """End the query, if all that the program has returned is there."""
        later = {name: one.variable for name, one in returned.items() if isinstance(one, Later)}
        if all(variable in self._known for variable in later.values()):
            found = dict(returned) | {name: self._known[variable] for name, variable in later.items()}
            failed = (one.error for one in found.values() if isinstance(one, Failure))
            self.error = next(failed, None)
            if self.error is None:
                self.outputs = found

    def _continued(self) -> Outcome:
        """Run the program with the answers so far, and add its further calls."""
        before = self._run
        try:
            self._run = run = self._program.run(self._inputs, self._known)
            num_before = 0 if before is None else len(before.calls)
            if before is not None and not _begins_like(run, before):
                raise ConfigError(
                    f"{self._program.name} asks for something else when it is run again with the same "
                    "answers: what it asks must follow from its inputs and answers alone"
                )
            return self._add(run, num_before)
        except StrettoError as error:
            self.fail(error)
            return Outcome()

    def _add(self, run: ProgramRun, num_before: int) -> Outcome:
        for name, value in run.values.items():
            if name not in self._known:
                self._known[name] = value
                self._machine.provide(name, value)
        new = run.calls[num_before:]
        outcome = self._extend(new) if new else Outcome()
        if run.waits_for is not None:
            self.waited.update(dict.fromkeys(step for step, _ in self._behind.get(run.waits_for, ())))
        return outcome

    def _extend(self, new: Sequence[WaitingCall]) -> Outcome:
        """Add calls to the graph of the query."""
        fragment = Fragment(new, lambda name: name in self._known)
        egraph, names = self._compile(fragment)
        bind, values = fragment.bind(names)
        reads = [self._behind.get(bind.get(name, ""), frozenset()) for name in egraph.inputs]
        part = self._parts.join(egraph, self._answered, reads)
        for name, value, _ in egraph.outputs:
            self._behind[bind[name]] = part.behind(value)
        return self._machine.extend(egraph, bind, values)


def _begins_like(run: ProgramRun, before: ProgramRun) -> bool:
    """Return whether a run begins with the calls of one before."""
    calls = run.calls[: len(before.calls)]
    return len(calls) == len(before.calls) and all(
        one.work.form == other.work.form
        and (one.inputs, one.outputs, one.constants) == (other.inputs, other.outputs, other.constants)
        and (one.each, one.when) == (other.each, other.when)
        for one, other in zip(calls, before.calls, strict=True)
    )
