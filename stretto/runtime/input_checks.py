"""A query before it starts: the arguments of its caller are checked, and its app is planned."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import get_args

from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Configuration, Template, check_configuration
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.graph.types import item_type
from stretto.model.errors import ConfigError, UserError
from stretto.model.foreign import are_flat, check_nesting, described, raised
from stretto.model.record import record
from stretto.model.tasks import Criteria, Objective, QueryRecord
from stretto.model.values import Chunk, Document, Hit, is_text
from stretto.runtime.query import QueryOptions
from stretto.sched.messages import Submit
from stretto.sched.vocabulary import Vocabulary

_OBJECTIVES: tuple[str, ...] = get_args(Objective)
_CRITERIA: tuple[str, ...] = get_args(Criteria)
_KINDS: Mapping[str, type | UnionType] = {
    "number": int | float,
    "bool": bool,
    "document": Document,
    "chunk": Chunk,
    "hit": Hit,
}


def check_inputs(egraph: ExecutionGraph, inputs: Mapping[str, object]) -> None:
    """Check that `inputs` has a value of the right type for each input of a graph, and no others.

    Raises:
        UserError: one is missing, unknown, of another type, nested too deep, or a text that is not Unicode.
    """
    if not isinstance(inputs, Mapping):
        raise UserError(f"inputs must map names to values, got {reprlib.repr(inputs)}")
    for name, type_ in egraph.graph.inputs:
        if name not in inputs:
            raise UserError(f"{egraph.graph.name}: the query brings no input {name!r}")
        check_value(inputs[name], f"{egraph.graph.name}: input {name!r}")
        if not _is_of_type(inputs[name], type_):
            value = reprlib.repr(inputs[name])
            raise UserError(f"{egraph.graph.name}: input {name!r} takes {type_}, not {value}")
    if unknown := [name for name in inputs if name not in egraph.inputs]:
        raise UserError(f"{egraph.graph.name} has no input {reprlib.repr(unknown[0])}")


def check_options(names: Iterable[str]) -> None:
    """Check that every name is a keyword of `QueryOptions`. Raises TypeError, as Python does for a keyword
    that a function does not take.
    """
    known = QueryOptions.__annotations__
    if unknown := [name for name in names if name not in known]:
        raise TypeError(f"a query takes no keyword {unknown[0]!r}; it takes {', '.join(known)}")


def check_app(app: object, configuration: object) -> None:
    """Check that `app` can be run, and that `configuration` maps components to settings by name.

    Raises:
        UserError: it is no template and no compiled graph, or the configuration is of another form.
    """
    if not isinstance(app, Template | ExecutionGraph):
        raise UserError(f"an app is a Template or a compiled graph, got {reprlib.repr(app)}")
    if configuration is None:
        return
    check_configuration(configuration)
    if configuration and isinstance(app, ExecutionGraph):
        raise UserError(f"{app.graph.name} is compiled: it takes no configuration any more")


def check_tenant(tenant: object) -> None:
    """Check that `tenant` is a text, which all engines can write down. Raises UserError."""
    if not is_text(tenant):
        raise UserError(f"tenant must be a Unicode text, got {reprlib.repr(tenant)}")


def check_program(program: object) -> None:
    """Check that `program` is a text. Raises UserError."""
    if not is_text(program):
        raise UserError(f"program must be a Unicode text, got {reprlib.repr(program)}")


def check_objective(objective: Objective) -> None:
    """Check that `objective` is one of `Objective`. Raises UserError."""
    _check_one_of("objective", objective, _OBJECTIVES)


def check_criteria(criteria: Criteria | None) -> None:
    """Check that `criteria` is one of `Criteria`, or None. Raises UserError."""
    if criteria is not None:
        _check_one_of("criteria", criteria, _CRITERIA)


def _check_one_of(name: str, value: object, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UserError(f"{name} must be one of {', '.join(known)}, got {reprlib.repr(value)}")


def check_deadline(deadline_s: float | None, name: str = "deadline_s") -> None:
    """Check that a deadline is a number of seconds, or None. Raises UserError, which names it."""
    is_number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
    if deadline_s is not None and not (is_number and _is_float(deadline_s)):
        raise UserError(f"{name} must be a number of seconds, got {reprlib.repr(deadline_s)}")


def check_bind(bind: object, egraph: ExecutionGraph) -> None:
    """Check that `bind` maps names of inputs and outputs of a graph to names of variables.

    Raises:
        UserError: it is no mapping, the graph has no such input or output, or a variable's name is no text.
    """
    if not isinstance(bind, Mapping):
        raise UserError(f"bind must map names to names of variables, got {reprlib.repr(bind)}")
    known = dict.fromkeys([*egraph.inputs, *(name for name, _, _ in egraph.outputs)])
    if unknown := [name for name in bind if name not in known]:
        name = reprlib.repr(unknown[0])
        raise UserError(f"{egraph.graph.name} has no input or output {name}; it has {', '.join(known)}")
    for variable in bind.values():
        check_variable(variable)


def check_values(values: object, egraph: ExecutionGraph) -> None:
    """Check that `values` maps names of inputs of a graph to values that end. Raises UserError."""
    if not isinstance(values, Mapping):
        raise UserError(f"values must map names of inputs to values, got {reprlib.repr(values)}")
    if unknown := [name for name in values if name not in egraph.inputs]:
        raise UserError(f"{egraph.graph.name} has no input {reprlib.repr(unknown[0])}")
    if not are_flat(list(values.values())):
        for name, value in values.items():
            check_value(value, f"{egraph.graph.name}: input {name!r}")


def check_value(value: object, what: str) -> None:
    """Check that a value of a caller is not nested too deep. Raises UserError, which names `what` it is."""
    try:
        check_nesting(value)
    except raised() as error:
        raise UserError(f"{what}: {described(error)}") from error


def check_variable(name: object) -> None:
    """Check that `name` can name a variable of a session. Raises UserError."""
    if not isinstance(name, str):
        raise UserError(f"a variable's name must be a text, got {reprlib.repr(name)}")


def _is_float(number: float) -> bool:
    """Return whether a number is no NaN, and no integer too large for a float."""
    return abs(number) <= sys.float_info.max or abs(number) == math.inf


def _is_of_type(value: object, type_: str) -> bool:
    """Return whether a query may bring `value`. Vectors and "any" are not checked."""
    item = item_type(type_)
    if type_ != "any" and item is not None:
        return isinstance(value, list | tuple) and all(_is_of_type(i, item) for i in value)
    if type_ == "text":
        return is_text(value)
    return type_ not in _KINDS or isinstance(value, _KINDS[type_])


@record
class PreparedQuery:
    """A query whose arguments are checked and whose app is planned."""

    egraph: ExecutionGraph
    inputs: Mapping[str, object]
    record: QueryRecord
    passes: tuple[str, ...]

    def submit(self, query: str, *, is_streamed: bool) -> Submit:
        """Return the event that starts the query."""
        record = self.record
        return Submit(
            query,
            self.egraph,
            self.inputs,
            record.deadline_s,
            self.passes,
            record.tenant,
            record.criteria,
            is_streamed,
            record.program,
        )


class Preparation:
    """Prepares queries.

    Args:
        check_engines: checks that there is an engine that can run each step of a graph. Raises ConfigError.
    """

    def __init__(
        self, plans: PlanCache, vocabulary: Vocabulary, check_engines: Callable[[ExecutionGraph], None]
    ) -> None:
        self._plans = plans
        self._vocabulary = vocabulary
        self._check_engines = check_engines

    def pass_names(self, passes: str | Iterable[str]) -> tuple[str, ...]:
        """Return names of passes in the order they run, or `WEIGHED`. Raises ConfigError if there is no such
        pass.
        """
        names = passes if isinstance(passes, str) or not isinstance(passes, Iterable) else list(passes)
        if not isinstance(names, str) and not (
            isinstance(names, list) and all(isinstance(name, str) for name in names)
        ):
            raise ConfigError(f"passes must be names of passes, got {reprlib.repr(passes)}")
        return self._vocabulary.select_passes(names)

    def plan(
        self,
        app: Template | Graph | ExecutionGraph,
        configuration: Configuration | None,
        names: tuple[str, ...],
        *,
        is_running: bool = False,
    ) -> ExecutionGraph:
        """Return the compiled graph of an app. `is_running` says that the query runs already."""
        if isinstance(app, Graph):
            app = self._plans.plan_graph(app, names)
        check_app(app, configuration)
        if isinstance(app, Template):
            app = self._plans.plan(app, configuration or {}, names, is_running=is_running)
        self._check_engines(app)
        return app

    def record(
        self,
        now_s: float,
        tenant: str,
        objective: Objective,
        deadline_s: float | None,
        program: str = "",
    ) -> QueryRecord:
        """Return the record of a query that starts at `now_s`, with checks of who asks for what."""
        check_objective(objective)
        check_deadline(deadline_s)
        check_tenant(tenant)
        check_program(program)
        end_s = None if deadline_s is None else now_s + deadline_s
        return QueryRecord(tenant, objective, end_s, program=program)

    def prepare(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        now_s: float,
        *,
        configuration: Configuration | None = None,
        passes: str | Iterable[str] = "weighed",
        deadline_s: float | None = None,
        tenant: str = "",
        objective: Objective = "throughput",
        program: str = "",
    ) -> PreparedQuery:
        """Check the arguments of a query, and plan its app."""
        record = self.record(now_s, tenant, objective, deadline_s, program)
        names = self.pass_names(passes)
        egraph = self.plan(app, configuration, names)
        check_inputs(egraph, inputs)
        return PreparedQuery(egraph, inputs, record, names)
