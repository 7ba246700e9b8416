"""Compiles an app, with the settings of a query (one run of it), to an execution graph, and caches that.

The second query with the same settings costs a dictionary look-up: a graph holds no values of a query.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.errors import ConfigError
from stretto.frontend.template import Configuration, Template
from stretto.graph.compile import ExecutionGraph, compile_graph
from stretto.graph.graph import Graph
from stretto.graph.passes.base import Profiles
from stretto.graph.passes.pipeline import optimise
from stretto.graph.verify import verify
from stretto.vocabulary import DEFAULT, Vocabulary

_MAX_CACHED = 1024


class PlanCache:
    """A compiler from app templates to execution graphs, with a cache of those that it made.

    Queries (runs) of one template with the same settings and optimisation passes share one graph.
    """

    def __init__(self, profiles: Profiles, vocabulary: Vocabulary = DEFAULT) -> None:
        self.profiles = profiles
        self.vocabulary = vocabulary
        self._plans: dict[object, ExecutionGraph] = {}

    def plan(
        self, template: Template, configuration: Configuration, passes: tuple[str, ...]
    ) -> ExecutionGraph:
        """Return the execution graph of a query (one run of an app) with these settings and passes.

        It comes from the cache if a query of the same template, settings and passes was compiled before.

        Raises:
            UserError: the configuration does not fit the template.
        """
        if not isinstance(configuration, Mapping) or not all(
            isinstance(chosen, Mapping) for chosen in configuration.values()
        ):
            raise ConfigError(f"{template.name}: a configuration maps components to settings")
        settings = tuple(
            (component, name, type(value), value)  # 1 and True are equal, and not the same setting
            for component, chosen in configuration.items()
            for name, value in chosen.items()
        )
        key = (template, settings, passes)
        try:
            found = self._plans.get(key)
        except TypeError as error:
            raise ConfigError(f"a setting of {template.name} is not a plain value: {error}") from error
        if found is None:
            found = self._remember(key, self.compile(template.lower(configuration, self.vocabulary), passes))
        return found

    def expand(self, body: str, inputs: Mapping[str, object], passes: tuple[str, ...]) -> ExecutionGraph:
        """Return the execution graph that replaces an `expand` primitive, a step that becomes a graph once
        its inputs are known.

        Args:
            body: name of the expansion in the vocabulary.
            inputs: values of the primitive's arguments, by port.

        Raises:
            ConfigError: there is no such expansion, or its graph does not have exactly one output.
            GraphError: the graph does not verify.
        """
        expansions = self.vocabulary.expansions
        if body not in expansions:
            raise ConfigError(f"there is no expansion {body!r}; there are {', '.join(expansions) or 'none'}")
        graph = expansions[body](inputs)
        key = (graph, passes)
        found = self._plans.get(key)
        if found is None:
            verify(graph, self.vocabulary.ops)
            if len(graph.outputs) != 1:
                raise ConfigError(f"expansion {body!r} made a graph with {len(graph.outputs)} outputs")
            found = self._remember(key, self.compile(graph, passes))
        return found

    def compile(self, graph: Graph, passes: tuple[str, ...]) -> ExecutionGraph:
        """Optimise a verified graph with the named passes, compile it, and return the result uncached."""
        known, ops = self.vocabulary.passes, self.vocabulary.ops
        chosen = {name: function for name, function in known.items() if name in passes}
        return compile_graph(optimise(graph, self.profiles, chosen, ops), self.profiles, ops)

    def _remember(self, key: object, plan: ExecutionGraph) -> ExecutionGraph:
        if len(self._plans) >= _MAX_CACHED:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = plan
        return plan
