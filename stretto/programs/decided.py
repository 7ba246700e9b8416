"""A program whose Python decides what it asks next, as an app.

Nobody can know its calls before the answers are there. So the function is run again from its beginning with
the answers so far, and ends where it waits for one that is not known. It must do the same with the same
answers, and nothing besides its calls, as it is run for planning with made-up answers too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from stretto.apps.template import Configuration, Template
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Graph
from stretto.model.errors import ConfigError, StrettoError, UserError
from stretto.model.foreign import described
from stretto.model.record import record
from stretto.model.values import Failure
from stretto.programs.fragment import Fragment, WaitingCall
from stretto.programs.traced import CallTracer, PythonWaits, TracedProgram, check_names, inputs_of, outputs_of
from stretto.programs.values import checked_value
from stretto.programs.variable import CURRENT, SemanticVariable
from stretto.sched.vocabulary import Vocabulary


@record
class ProgramRun:
    """What a program has done with the answers so far.

    Attributes:
        calls: all its calls, in order.
        values: values of the variables that it has set.
        waits_for: variable whose value it waits for; None if it has returned.
        returned: value of each output, or the name of its variable as a `Later`.
    """

    calls: Sequence[WaitingCall]
    values: Mapping[str, object]
    waits_for: str | None
    returned: Mapping[str, object]


@record
class Later:
    """An output that is the value of a variable."""

    variable: str


class _Waits(BaseException):
    """Ends a program that waits for an answer; no `except Exception` of a program catches it. What a program
    does besides until it has ended, in `finally` or after a bare `except`, does not count.
    """


class DecidedProgram(Template):
    """The app that a program is whose Python waits for answers.

    Args:
        function: a function whose parameters without a default are the inputs of the app.

    Raises:
        ConfigError: the function raises before it first waits, or calls nothing until then.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.name = function.__name__
        self.vocabulary = DEFAULT
        self.outputs, self.order, self.components = {}, (), []
        self._function = function
        self._names = inputs_of(function)
        self.inputs = tuple((name, "any") for name in self._names)
        try:
            first = self.run({name: SemanticVariable(name=name) for name in self._names}, {})
        except ConfigError:
            raise
        except StrettoError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        if not first.calls:
            raise ConfigError(f"{self.name} waits for an answer before it has asked for any")
        self._graph, _ = Fragment(first.calls, lambda _: True).build()

    def lower(self, configuration: Configuration, vocabulary: Vocabulary | None = None) -> Graph:
        """Return the graph of the calls before it first waits. Raises ConfigError if there is a
        configuration.
        """
        if configuration:
            raise ConfigError(f"{self.name} is a program, which has no settings by component")
        return self._graph

    def values(self, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """Return the inputs of a request. Raises ConfigError if one is missing, unknown, or no value."""
        check_names(self.name, self._names, inputs)
        try:
            return {name: checked_value(value, name) for name, value in inputs.items()}
        except StrettoError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    def run(self, inputs: Mapping[str, object], known: Mapping[str, object]) -> ProgramRun:
        """Run the function until it waits for a variable that is not known, or returns.

        Args:
            known: values of variables, or a `Failure`.

        Raises:
            StrettoError: a call is wrong, nothing gives a value for which the program waits, or what it did
                not catch of a failed answer.
            ConfigError: the function raises.
        """
        waiting: ProgramRun | None = None

        def check(name: str) -> None:
            if name not in inputs and not tracer.ledger.knows(name):
                raise UserError(f"nothing gives the variable {name!r} a value")

        def get(name: str) -> Any:
            nonlocal waiting
            if name not in known:
                check(name)
                waiting = waiting or ProgramRun([*tracer.calls], {**tracer.values}, name, {})
                raise _Waits
            value = known[name]
            if isinstance(value, Failure):
                raise value.error
            return _own(value)

        tracer = CallTracer(get)
        token = CURRENT.set(tracer)
        returned: dict[str, object] = {}
        try:
            given = {name: _own(value) for name, value in inputs.items()}
            for name, value in outputs_of(self._function(**given)).items():
                if isinstance(value, SemanticVariable):
                    check(variable := value.name_in(tracer))
                    returned[str(name)] = Later(variable)
                else:
                    returned[str(name)] = checked_value(value, f"the output {name!r}")
        except _Waits:
            pass
        except (Exception, SystemExit) as error:  # the function is a user's
            if waiting is None and tracer.refused is None:
                if isinstance(error, StrettoError):
                    raise
                raise ConfigError(f"{self.name} raised {described(error)}") from error
        finally:
            CURRENT.reset(token)
        if tracer.refused is not None and waiting is None:
            raise ConfigError(f"{self.name}: {tracer.refused}") from tracer.refused
        return waiting or ProgramRun(tracer.calls, tracer.values, None, returned)


def _own(value: Any) -> Any:
    """Return a value that a program may change, and gets as it was when it is run again."""
    return deepcopy(value) if isinstance(value, list) else value


def program_of(function: Callable[..., object]) -> TracedProgram | DecidedProgram:
    """Return the app that a program is: of the graph of its calls, if its Python waits for none of them."""
    try:
        return TracedProgram(function)
    except ConfigError as error:
        if not isinstance(error.__cause__, PythonWaits):
            raise
    return DecidedProgram(function)
