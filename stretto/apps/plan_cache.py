"""Compiles an app, with the settings of a query, to an execution graph, and caches that.

The second query with the same settings costs a dictionary look-up: a graph holds no values of a query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

from stretto.apps.components.choices import NAMES
from stretto.apps.template import Configuration, Template
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.graph.passes.base import Conditions, Profiles, rounded_load
from stretto.graph.passes.pipeline import optimise
from stretto.graph.passes.weigh import WEIGHED, weigh
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError
from stretto.sched.vocabulary import Vocabulary

_MAX_CACHED = 1024

Names: TypeAlias = tuple[str, ...]

T = TypeVar("T")


class PlanCache:
    """A compiler from app templates to graphs that can be run, with a cache of those that it made.

    Queries with the same steps and optimisation passes share one graph, whichever template, settings
    or expansion they come from: what is compiled is found by its structure. Where passes are weighed, the
    present load counts too, as far as it is one of the few kinds of load that `Conditions` knows. Several
    threads may plan at the same time.

    Args:
        idle: conditions without load, by which passes are weighed; None stands for one instance of each
            engine.
        num_running: function that returns how many queries run now.
    """

    def __init__(
        self,
        profiles: Profiles,
        vocabulary: Vocabulary = DEFAULT,
        idle: Conditions | None = None,
        num_running: Callable[[], int] = lambda: 0,
    ) -> None:
        self.profiles = profiles
        self.vocabulary = vocabulary
        self._idle = idle or Conditions(profiles)
        self._num_running = num_running
        self._plans: dict[object, ExecutionGraph] = {}
        self._of_templates: dict[object, ExecutionGraph] = {}
        self._of_forms: dict[object, tuple[ExecutionGraph, Names]] = {}
        self._adding = threading.Lock()

    def plan(
        self,
        template: Template,
        configuration: Configuration,
        passes: tuple[str, ...],
        *,
        is_running: bool = False,
    ) -> ExecutionGraph:
        """Return the compiled graph of a query with these settings and optimisation passes.

        It comes from the cache if a query with the same steps and passes was compiled before. A template is
        lowered once for each choice of settings.

        Args:
            is_running: whether the query runs already, as a session that the app joins does. It is none of
                the others then that the passes may delay.

        Raises:
            UserError: the configuration does not fit the template.
        """
        num_others = self._num_others(passes, is_running=is_running)
        key = _key_of(template, configuration, passes, num_others)
        found = self._of_templates.get(key)
        if found is None:
            found = self._compiled(template.lower(configuration, self.vocabulary), passes, num_others)
            self._remember(self._of_templates, key, found)
        return found

    def find(
        self, template: Template, configuration: Configuration, passes: tuple[str, ...]
    ) -> ExecutionGraph | None:
        """Return what `plan` would return for a query that does not run yet, if it is in the cache.

        Raises:
            ConfigError: the configuration has no form that a cache can keep.
        """
        num_others = self._num_others(passes, is_running=False)
        return self._of_templates.get(_key_of(template, configuration, passes, num_others))

    def plan_graph(self, graph: Graph, passes: tuple[str, ...]) -> ExecutionGraph:
        """Return the compiled form of a graph that comes from no template and joins a session, from the cache
        if an equal graph was compiled before.

        Raises:
            GraphError: the graph does not verify.
        """
        num_others = self._num_others(passes, is_running=True)
        return self._compiled(graph, passes, num_others, is_verified=False)

    def plan_form(
        self, form: Hashable, build: Callable[[], tuple[Graph, Names]], passes: tuple[str, ...]
    ) -> tuple[ExecutionGraph, Names]:
        """Return the compiled form of a graph that joins a session, and the names of its inputs and outputs.

        The graph is built only if none of this form was compiled before.

        Args:
            form: key that is equal only for equal graphs.
            build: function that returns the graph and the names.

        Raises:
            GraphError: the graph does not verify.
        """
        num_others = self._num_others(passes, is_running=True)
        key = form, passes, num_others
        found = self._of_forms.get(key)
        if found is None:
            graph, names = build()
            found = self._compiled(graph, passes, num_others, is_verified=False), names
            self._remember(self._of_forms, key, found)
        return found

    def expand(self, body: str, inputs: Mapping[str, object], passes: tuple[str, ...]) -> ExecutionGraph:
        """Return the compiled graph that replaces an `expand` primitive, a step that becomes a graph once its
        inputs are known.

        Args:
            body: name of the expansion in the vocabulary.
            inputs: values of the primitive's arguments, by port.

        Raises:
            ConfigError: there is no such expansion, or its graph has neither one output nor two.
            GraphError: the graph does not verify.
        """
        expansions = self.vocabulary.expansions
        if body not in expansions:
            raise ConfigError(
                f"there is no expansion {body!r}; there are {', '.join(expansions) or 'none'}. "
                "An app's own comes with its vocabulary: DEFAULT.with_expansion(name, function)"
            )
        graph = expansions[body](inputs)
        if len(graph.outputs) not in (1, 2):
            raise ConfigError(f"expansion {body!r} made a graph with {len(graph.outputs)} outputs")
        num_others = self._num_others(passes, is_running=True)
        return self._compiled(graph, passes, num_others, is_verified=False)

    def compile(self, graph: Graph, passes: tuple[str, ...], num_others: int = 0) -> ExecutionGraph:
        """Optimise a verified graph with the named passes, or with those that are
        predicted to pay beside `num_others` other queries if `passes` is `WEIGHED`; compile it, and return
        the result without caching it.
        """
        known, ops = self.vocabulary.passes, self.vocabulary.ops
        if passes != WEIGHED:
            chosen = {name: function for name, function in known.items() if name in passes}
            optimised = optimise(graph, self.profiles, chosen, ops)
            return compile_graph(optimised, self.profiles, ops, passes=tuple(chosen))
        optimised, verdicts = weigh(graph, replace(self._idle, num_others=num_others), known, ops)
        left_out = {verdict.name for verdict in verdicts if not verdict.is_kept}
        kept = tuple(name for name in known if name not in left_out)
        return compile_graph(optimised, self.profiles, ops, passes=kept, verdicts=verdicts)

    def _num_others(self, passes: tuple[str, ...], *, is_running: bool) -> int:
        """Return roughly how many other queries run now, if a plan with these passes depends on that."""
        return rounded_load(self._num_running() - is_running) if passes == WEIGHED else 0

    def _compiled(
        self, graph: Graph, passes: tuple[str, ...], num_others: int, *, is_verified: bool = True
    ) -> ExecutionGraph:
        """Return the execution graph of a graph, from the cache if an equal one was compiled before."""
        key = (graph, _types(graph), passes, num_others)
        found = self._plans.get(key)
        if found is None:
            if not is_verified:
                verify(graph, self.vocabulary.ops)
            found = self.compile(graph, passes, num_others)
            self._remember(self._plans, key, found)
        return found

    def _remember(self, plans: dict[object, T], key: object, plan: T) -> None:
        """Add a plan to a cache, in place of the oldest one if it is full."""
        with self._adding:
            if len(plans) >= _MAX_CACHED:
                del plans[next(iter(plans))]
            plans[key] = plan


def _types(graph: Graph) -> tuple[type, ...]:
    """Return the types of a graph's settings: 1 and True are equal, and not the same setting."""
    return tuple(type(value) for primitive in graph for _, value in primitive.config)


def _key_of(
    template: Template, configuration: Configuration, passes: tuple[str, ...], num_others: int
) -> object:
    """Return a key that is equal for queries with the same plan. Raises ConfigError if there is none."""
    if not isinstance(configuration, Mapping) or not all(
        isinstance(chosen, Mapping) for chosen in configuration.values()
    ):
        raise ConfigError(f"{template.name}: a configuration maps components to settings")
    settings = tuple(
        # with types: 1 and True are equal, and not the same setting
        (component, name, type(value), _hashable(value) if name in NAMES else value)
        for component, chosen in configuration.items()
        for name, value in chosen.items()
    )
    key = (template, settings, passes, num_others)
    try:
        hash(key)
    except TypeError as error:
        raise ConfigError(f"a setting of {template.name} is not a plain value: {error}") from error
    return key


def _hashable(choice: object) -> object:
    """Return a choice of a component, lists as tuples."""
    return tuple(choice) if isinstance(choice, list) else choice
