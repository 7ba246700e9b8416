"""Weighs passes: keeps those that are predicted to save at least as many seconds as they cost.

A pass saves the seconds by which a query becomes shorter, on engines that do nothing else. It costs the
seconds by which a query becomes longer, and those that others wait: a second of further work of an LLM delays
each other query by a second. A pass that a user has added is not weighed, because nothing
is known of its purpose. No pass is weighed for a graph with an engine whose profile is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Conditions, Pass
from stretto.graph.passes.pipeline import PASSES, apply_pass, optimise
from stretto.graph.passes.predict import Prediction, predict
from stretto.graph.passes.steps import Steps
from stretto.model.profile import Profile

WEIGHED = ("weighed",)
"""The choice of those passes that are predicted to pay, in place of names of passes. A pass that is named is
applied in any case."""

_ROUNDING_S = 1e-9
_UNKNOWN = Profile()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision whether a pass is applied to a graph, with the predictions that led to it.

    Attributes:
        saves_s: predicted seconds that it saves; None if it was not weighed.
        costs_s: predicted seconds that it costs.
        reason: why it is kept or left out, as text.
    """

    name: str
    is_kept: bool
    reason: str
    saves_s: float | None = None
    costs_s: float = 0.0


def weigh(
    graph: Graph, conditions: Conditions, passes: Mapping[str, Pass], ops: Ops = OPS
) -> tuple[Graph, tuple[Verdict, ...]]:
    """Optimise a graph with those of the passes that are predicted to pay; return it,
    and a verdict on each pass that has something to change.

    Raises:
        GraphError: a pass broke the graph, or the passes never come to an end; the message names them.
    """
    unknown = _unknown_engine(graph, conditions)
    kept: dict[str, Pass] = dict(passes)
    verdicts: list[Verdict] = []
    before: Prediction | None = None
    steps = Steps(conditions, ops)
    weighed = graph
    for name, run_pass in passes.items():
        is_own = PASSES.get(name) is run_pass
        if is_own:
            changed = run_pass(weighed, conditions.profiles, ops)
        else:
            changed = apply_pass(name, run_pass, weighed, conditions.profiles, ops)
        if changed is weighed or changed == weighed:
            continue
        if unknown is not None:
            verdicts.append(Verdict(name, True, f"not weighed: the profile of {unknown} is unknown"))
        elif not is_own:
            verdicts.append(Verdict(name, True, "not weighed: it is no pass of Stretto's own"))
            before = None
        else:
            before = before or predict(weighed, steps)
            after = predict(changed, steps)
            verdicts.append(_judge(name, before, after, conditions))
            before = after if verdicts[-1].is_kept else before
        if verdicts[-1].is_kept:
            weighed = changed
        else:
            del kept[name]
    return optimise(graph, conditions.profiles, kept, ops, begun=weighed), tuple(verdicts)


def _unknown_engine(graph: Graph, conditions: Conditions) -> str | None:
    for primitive in graph:
        engine = primitive.engine
        if engine is not None and conditions.profiles.get(engine, _UNKNOWN) == _UNKNOWN:
            return engine
    return None


def _judge(name: str, before: Prediction, after: Prediction, conditions: Conditions) -> Verdict:
    for_others_s = min(0.0, before.prefill_s - after.prefill_s) * conditions.num_others
    gains_s = [before.seconds - after.seconds, for_others_s]
    saves_s = sum(gain_s for gain_s in gains_s if gain_s > 0)
    costs_s = -sum(gain_s for gain_s in gains_s if gain_s < 0)
    is_kept = costs_s <= saves_s + _ROUNDING_S
    reason = f"saves {_ms(saves_s)}, costs {_ms(costs_s)}"
    return Verdict(name, is_kept, reason if is_kept else f"left out: {reason}", saves_s, costs_s)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
