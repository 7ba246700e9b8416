"""A program as an app: the calls that a Python function makes on variables, traced once.

The function gets a variable for each argument, and returns the variables of its answers. So it must not
decide anything itself: what `get` would tell it is not there yet. Calls that no returned variable needs are
left out.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from stretto.apps.template import Configuration, Template
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Graph
from stretto.model.errors import ConfigError, StrettoError, UserError
from stretto.model.foreign import described
from stretto.model.tasks import Criteria, Usage
from stretto.programs.fragment import Fragment, WaitingCall, Work
from stretto.programs.ledger import Ledger
from stretto.programs.pending_calls import made_call
from stretto.programs.values import checked_value
from stretto.programs.variable import CURRENT, SemanticVariable
from stretto.sched.vocabulary import Vocabulary


class TracedProgram(Template):
    """The app that a program is.

    Args:
        function: a function whose parameters without a default are the inputs of the app.

    Raises:
        ConfigError: the function raises, waits for an answer, or returns something other than variables.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.name = function.__name__
        self.vocabulary = DEFAULT
        self.outputs, self.order, self.components = {}, (), []
        names = inputs_of(function)
        self.inputs = tuple((name, "any") for name in names)
        tracer = CallTracer()
        given = {name: SemanticVariable(name=name) for name in names}
        token = CURRENT.set(tracer)
        try:
            self._params = {variable.name_in(tracer): name for name, variable in given.items()}
            returned = function(**given)
            if tracer.refused is not None:
                raise tracer.refused
            found = _variables(returned, self.name)
            wanted = {name: variable.name_in(tracer) for name, variable in found.items()}
        except (Exception, SystemExit) as raised:  # the function is a user's
            error = tracer.refused or raised
            what = f": {error}" if isinstance(error, StrettoError) else f" raised {described(error)}"
            raise ConfigError(f"{self.name}{what}") from error
        finally:
            CURRENT.reset(token)
        fragment = Fragment(tracer.calls, lambda _: True)
        graph, names_in_graph = fragment.build()
        bound, constants = fragment.bind(names_in_graph)
        self._bound = {name: variable for name, variable in bound.items() if variable in self._params}
        fixed = {name: tracer.values[one] for name, one in bound.items() if one in tracer.values}
        self._constants = {**constants, **fixed}
        refs = dict(graph.outputs)
        made = {variable: refs[name] for name, variable in bound.items() if name in refs}
        if missing := [name for name, variable in wanted.items() if variable not in made]:
            raise ConfigError(f"{self.name}: no call makes what it returns as {missing[0]!r}")
        outputs = tuple((name, made[variable]) for name, variable in wanted.items())
        self._graph = _pruned(replace(graph, name=self.name, outputs=outputs))
        known = self._bound.keys() | self._constants.keys()
        if missing := [name for name in self._needed if name not in known]:
            raise ConfigError(f"{self.name}: nothing gives the variable {bound[missing[0]]!r} a value")

    def lower(self, configuration: Configuration, vocabulary: Vocabulary | None = None) -> Graph:
        """Return the graph of its calls. Raises ConfigError if there is a configuration."""
        if configuration:
            raise ConfigError(f"{self.name} is a program, which has no settings by component")
        return self._graph

    def values(self, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """Return the values of the graph's inputs, with those that stand in the program.

        Raises:
            ConfigError: an input is missing or unknown.
        """
        check_names(self.name, [name for name, _ in self.inputs], inputs)
        given = {name: inputs[self._params[variable]] for name, variable in self._bound.items()}
        return {name: value for name, value in {**self._constants, **given}.items() if name in self._needed}

    @property
    def _needed(self) -> frozenset[str]:
        return frozenset(name for name, _ in self._graph.inputs)


def inputs_of(function: Callable[..., object]) -> list[str]:
    """Return the parameters that a program must be given: those without a default.

    Raises:
        ConfigError: it takes any number of arguments, or is asynchronous.
    """
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{function.__name__} is asynchronous; a program to plan waits with get, not with await"
        )
    found = []
    for name, one in inspect.signature(function).parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise ConfigError(f"{function.__name__}: a program has parameters with names, not {one}")
        if one.default is one.empty:
            found.append(name)
    return found


def check_names(program: str, known: Sequence[str], inputs: Mapping[str, object]) -> None:
    """Check that a request brings the inputs of a program. Raises ConfigError if not."""
    if missing := [name for name in known if name not in inputs]:
        raise ConfigError(f"{program}: the request brings no input {missing[0]!r}")
    if unknown := [name for name in inputs if name not in known]:
        raise ConfigError(f"{program} has no input {unknown[0]!r:.80}; it has {', '.join(known)}")


def outputs_of(returned: object) -> Mapping[str, object]:
    """Return what a program returns, by the names of its outputs."""
    if isinstance(returned, dict):
        return returned
    if isinstance(returned, list | tuple):
        return {f"output{place}": value for place, value in enumerate(returned, 1)}
    return {"output": returned}


def _variables(returned: object, name: str) -> Mapping[str, SemanticVariable]:
    many = outputs_of(returned)
    found = {key: value for key, value in many.items() if isinstance(value, SemanticVariable)}
    if not found or len(found) < len(many) or not all(isinstance(key, str) for key in found):
        raise UserError(f"{name} must return variables that its calls make, got {returned!r:.80}")
    return found


def _pruned(graph: Graph) -> Graph:
    """Return a graph without the steps and inputs that no output needs."""
    needed = {ref.name for _, ref in graph.outputs}
    kept = []
    for primitive in reversed(graph.primitives):
        if primitive.name in needed:
            kept.append(primitive)
            needed |= {arg.ref.name for arg in primitive.args}
    names = {primitive.name for primitive in kept}
    return replace(
        graph,
        primitives=tuple(reversed(kept)),
        inputs=tuple(one for one in graph.inputs if one[0] in needed),
        order=tuple(pair for pair in graph.order if names.issuperset(pair)),
    )


class CallTracer:
    """A client that notes calls, and makes none.

    Args:
        get: returns the value of a variable for which the program waits, or raises; None refuses to wait.

    Attributes:
        refused: what the program has asked for and cannot have, whether or not it has caught that.
    """

    def __init__(self, get: Callable[[str], object] | None = None) -> None:
        self.ledger = Ledger()
        self._get = get or self._wait
        self.calls: list[WaitingCall] = []
        self.values: dict[str, object] = {}
        self.refused: UserError | None = None

    def call(
        self,
        work: Work,
        inputs: Mapping[str, object],
        outputs: Sequence[str],
        *,
        given: Mapping[str, SemanticVariable] | None = None,
        each: str | None = None,
        when: SemanticVariable | None = None,
    ) -> dict[str, SemanticVariable]:
        """Note a call, and return the variables that it produces, by output."""
        call, results = made_call(self, work, inputs, outputs, given=given, each=each, when=when)
        self.calls.append(call)
        return results

    def provide(self, name: str, value: object) -> None:
        """Note the value of a variable."""
        self.ledger.note_set(name)
        self.values[name] = checked_value(value, f"the variable {name!r}")

    def run_native(
        self,
        name: str,
        variables: Sequence[SemanticVariable],
        run: Callable[[list[Any]], Coroutine[Any, Any, object]],
    ) -> NoReturn:
        """Refuse a Python function on values."""
        what = f"{name} is a Python function on values; plans are for calls of LLMs alone"
        self.refused = self.refused or UserError(what)
        raise self.refused

    def get(self, name: str, perf: Criteria | None, timeout_s: float | None) -> object:
        """Return a value that is set or known."""
        return self.values[name] if name in self.values else self._get(name)

    async def aget(self, name: str, perf: Criteria | None, timeout_s: float | None) -> NoReturn:
        """Refuse to wait."""
        self._wait(name)

    def stream(self, name: str, perf: Criteria | None) -> AsyncIterator[str]:
        """Refuse to wait."""
        self._wait(name)

    def stream_sync(self, name: str, perf: Criteria | None) -> Iterator[str]:
        """Refuse to wait."""
        self._wait(name)

    def usage_of(self, name: str) -> Usage:
        """Refuse to wait."""
        self._wait(name)

    def drop(self, name: str) -> None:
        """Do nothing: no variable takes room."""

    def _wait(self, name: str) -> NoReturn:
        waits = PythonWaits(
            f"it waits for {name!r}, so its Python decides what is asked next, which a graph of its calls "
            "cannot say. Return the variable instead, and write what depends on it with when=, P.condition "
            "and P.first_present"
        )
        self.refused = self.refused or waits
        raise waits


class PythonWaits(UserError):
    """A program waits for an answer, so that its Python decides what it asks next."""
