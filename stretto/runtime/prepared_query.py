"""A query before it starts: its arguments are checked, and its app is planned."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping

from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Configuration, Template
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.model.errors import ConfigError
from stretto.model.record import record
from stretto.model.tasks import Objective, QueryRecord
from stretto.runtime.input_checks import (
    check_app,
    check_deadline,
    check_inputs,
    check_objective,
    check_program,
    check_tenant,
)
from stretto.sched.messages import Submit
from stretto.sched.vocabulary import Vocabulary


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
