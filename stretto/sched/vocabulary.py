"""The vocabulary of a runtime: ops, types, passes, expansions, policies and placements, by name.

A vocabulary is a value. What adds to one makes another, so that two runtimes in one process may use the same
names for different things:

    vocabulary = DEFAULT.with_op(OpSpec("translate", (Port("texts", "text"),), "text"))
    app = Template("translate", translation, outputs, vocabulary)
    runtime = Runtime([engine], vocabulary=vocabulary)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from stretto.cluster.placement import Placement
from stretto.cluster.placements.table import PLACEMENTS
from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops, OpSpec
from stretto.graph.passes.base import Pass
from stretto.graph.passes.pipeline import PASSES
from stretto.graph.passes.weigh import WEIGHED
from stretto.model.errors import ConfigError
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import NewOrder

Expansion: TypeAlias = Callable[[Mapping[str, object]], Graph]
"""A function that makes the graph of an `expand` from its input values and settings, by name. The graph reads
any of these as its inputs and has one output."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names that apps, queries and engines may use in a runtime (of kinds of steps, optimisation passes,
    queue policies and more), and what they mean.

    Each table is in the order in which names were added.

    Attributes:
        ops: specifications of ops, and the names of types of values (`Ops.types`).
        passes: functions that rewrite graphs before they run, in pipeline order.
        expansions: functions that an `expand` step may name as its `body`, each of which makes a subgraph.
        policies: orders in which a queue may be served, the choices for `Engine.policy`.
        placements: rules that choose the instance of a request, the choices for `Engine.placement`.
    """

    ops: Ops = field(default_factory=lambda: OPS)
    passes: Mapping[str, Pass] = field(default_factory=lambda: PASSES)
    expansions: Mapping[str, Expansion] = field(default_factory=dict)
    policies: Mapping[str, NewOrder] = field(default_factory=lambda: ORDERS)
    placements: Mapping[str, Callable[[], Placement]] = field(default_factory=lambda: PLACEMENTS)

    def __post_init__(self) -> None:
        for table in ("passes", "expansions", "policies", "placements"):
            object.__setattr__(self, table, MappingProxyType(dict(getattr(self, table))))

    def with_type(self, name: str) -> Vocabulary:
        """Return a copy of this vocabulary with one more type of value. The type has
        no textual form for prompts.

        Raises:
            ConfigError: the name is taken, or is no name.
        """
        return replace(self, ops=Ops(self.ops.values(), _added(self.ops.types, "type", name)))

    def with_op(self, spec: OpSpec) -> Vocabulary:
        """Return a copy of this vocabulary with one more op.

        Raises:
            ConfigError: its name is taken or is no name, or it names a type that there is not.
        """
        if not isinstance(spec, OpSpec):
            raise ConfigError(f"an op is an OpSpec, got {spec!r:.80}")
        _added(self.ops, "op", spec.name)
        return replace(self, ops=Ops([*self.ops.values(), spec], self.ops.types))

    def with_pass(self, name: str, function: Pass, *, before: str | None = None) -> Vocabulary:
        """Return a copy of this vocabulary with one more pass, a function that
        rewrites graphs before they run.

        The pass goes to the end of the pipeline, or `before` another pass.

        Raises:
            ConfigError: the name is taken or is no name, or there is no pass `before`.
        """
        _check_callable("pass", name, function)
        order = _added(self.passes, "pass", name)
        if name in ("all", "none", *WEIGHED):
            raise ConfigError(f"pass {name!r}: the name stands for a choice of passes")
        if before is not None:
            if before not in self.passes:
                raise ConfigError(f"there is no pass {before!r}; there are {', '.join(self.passes)}")
            order.insert(order.index(before), order.pop())
        passes = {**self.passes, name: function}
        return replace(self, passes={pass_: passes[pass_] for pass_ in order})

    def with_expansion(self, name: str, function: Expansion) -> Vocabulary:
        """Return a copy of this vocabulary with one more expansion, a function that
        makes the graph by which an `expand` step is replaced while a query runs.

        Raises:
            ConfigError: the name is taken, or is no name.
        """
        _check_callable("expansion", name, function)
        _added(self.expansions, "expansion", name)
        return replace(self, expansions={**self.expansions, name: function})

    def with_policy(self, name: str, policy: NewOrder) -> Vocabulary:
        """Return a copy of this vocabulary with one more policy, an order in which the
        queue of an engine may be served.

        Raises:
            ConfigError: the name is taken, or is no name.
        """
        _check_callable("policy", name, policy)
        _added(self.policies, "policy", name)
        return replace(self, policies={**self.policies, name: policy})

    def with_placement(self, name: str, placement: Callable[[], Placement]) -> Vocabulary:
        """Return a copy of this vocabulary with one more placement policy, a rule that
        chooses the instance of a request.

        Raises:
            ConfigError: the name is taken, or is no name.
        """
        _check_callable("placement", name, placement)
        _added(self.placements, "placement", name)
        return replace(self, placements={**self.placements, name: placement})

    def select_passes(self, names: str | Collection[str]) -> tuple[str, ...]:
        """Return the chosen names of passes, in pipeline order; or `WEIGHED`.

        `names` is "weighed", "all", "none", "a,b,c" or a collection of names.

        Raises:
            ConfigError: there is no such pass.
        """
        if names == "all":
            return tuple(self.passes)
        if names == "none":
            return ()
        if not isinstance(names, Collection):
            raise ConfigError(f"passes must be names of passes, got {names!r:.80}")
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        if tuple(names) == WEIGHED:
            return WEIGHED
        if unknown := [name for name in names if name not in self.passes]:
            raise ConfigError(f"there is no pass {unknown[0]!r}; there are {', '.join(self.passes)}")
        return tuple(name for name in self.passes if name in names)


def _added(taken: Iterable[str], kind: str, name: Any) -> list[str]:
    """The names `taken`, and `name` behind them."""
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ConfigError(f"{kind} {name!r}: a name is letters, digits and underscores")
    names = list(taken)
    if name in names:
        raise ConfigError(f"the {kind} {name!r} is there already")
    return [*names, name]


def _check_callable(kind: str, name: object, function: object) -> None:
    if not callable(function):
        raise ConfigError(f"{kind} {name!r} must be a function, got {function!r:.80}")


STANDARD = Vocabulary()
"""The ops, passes, policies and placements of Stretto, without expansions."""
