"""What `stretto plan` shows: a plan (table, chart, JSON) with its predicted time, or the graph of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from stretto.costs.length_belief import likely_interval
from stretto.planner.deciding.nodes import DrawnApplication, in_short
from stretto.planner.execution import Execution, ReplicaSpan
from stretto.planner.gantt import gantt, letters
from stretto.planner.plan import Plan
from stretto.planner.problem import Problem
from stretto.planner.token_counts import CountedBy

_NUM_TEXTS = 4
"""Columns of texts; those of numbers follow."""


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """A plan, and what is known of it.

    Attributes:
        done: the plan carried out with the draw whose makespan is nearest to the mean.
        predicted_s: makespans with draws that may be the true ones.
        bound_s: lower bound of the makespan of any plan.
        counted_by: where the lengths of prompts come from.
    """

    problem: Problem
    plan: Plan
    search_s: float
    done: Execution
    predicted_s: list[float]
    bound_s: float
    counted_by: CountedBy

    def as_json(self) -> dict[str, Any]:
        """Return all of it as a value of JSON."""
        return {
            "planner": self.plan.planner,
            "machine": self.problem.machine.name,
            "actions": [
                {
                    "when": action.when,
                    "do": action.verb,
                    "model": self.problem.sizes[action.replica.model].name,
                    "nodes": self.problem.nodes_of(action.replica.model),
                    "tp": action.replica.tp,
                    "devices": action.replica.devices,
                    "weight": action.replica.weight,
                }
                for action in self.plan.actions()
            ],
            "spans": [
                {
                    "model": self.problem.sizes[span.replica.model].name,
                    "nodes": self.problem.nodes_of(span.replica.model),
                    "devices": span.replica.devices,
                    "start_s": span.start_s,
                    "ready_s": span.ready_s,
                    "end_s": span.end_s,
                    "waits_s": sum(end_s - begin_s for begin_s, end_s in span.waits_s),
                    "is_estimated": is_estimated(self.problem, span),
                }
                for span in self.done.spans
            ],
            "predicted_s": self.predicted_s,
            "interval_s": likely_interval(self.predicted_s),
            "lower_bound_s": self.bound_s,
            "search_s": self.search_s,
            "prompt_tokens": self.counted_by,
            "answers": {name: dict(one.shares) for name, one in self.problem.deciding.items()},
        }


def print_plan(found: FoundPlan) -> None:
    """Print a plan as a table and a chart, with its prediction."""
    problem = found.problem
    console = Console(markup=False, emoji=False)
    table = Table(box=None, pad_edge=False)
    headings, *rows = plan_rows(found)
    for place, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", justify="left" if place < _NUM_TEXTS else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in (*gantt(found.done, problem.models, problem.machine), *plan_notes(found)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def plan_notes(found: FoundPlan) -> Iterator[str]:
    """Yield the prediction of a plan, and what it rests on."""
    problem, predicted_s = found.problem, found.predicted_s
    low_s, high_s = likely_interval(predicted_s)
    yield (
        f"predicted: {sum(predicted_s) / len(predicted_s):.1f} s on {problem.machine.name} "
        f"({low_s:.1f} to {high_s:.1f} s with 90 %, from {len(predicted_s)} draws); "
        f"lower bound: {found.bound_s:.1f} s; searched for {found.search_s:.1f} s, by {found.plan.planner}"
    )
    if any(is_estimated(problem, span) for span in found.done.spans):
        yield "* not measured: step times, time to start or lengths of answers are those of others"
    for name, belief in problem.deciding.items():
        yield f"answers of {name}: {belief.words}"
    if found.counted_by == "estimated":
        yield (
            "tokens of prompts are estimated, four characters each: no model of the application is a folder "
            "or a GGUF file with a tokenizer"
        )


def is_estimated(problem: Problem, span: ReplicaSpan) -> bool:
    """Return whether a replica's times, or the lengths of its nodes' answers, were not measured."""
    one = span.replica
    nodes = problem.nodes_of(one.model)
    return not problem.workload.estimated.isdisjoint(nodes) or problem.costs[one.model][one.tp].is_estimated


def plan_rows(found: FoundPlan) -> Iterator[Sequence[str]]:
    """Yield the headings, then a row for each replica, by start."""
    problem, done = found.problem, found.done
    yield "", "model", "nodes", f"{problem.machine.device}s", "share", "start, s", "loaded, s", "end, s"
    names = letters(problem.models)
    named = in_short if isinstance(problem.app, DrawnApplication) else ", ".join
    totals: dict[str, float] = {}
    for span in done.spans:
        totals[span.replica.model] = totals.get(span.replica.model, 0.0) + span.busy_s * span.replica.tp
    for span in sorted(done.spans, key=lambda span: (span.start_s, span.replica.devices)):
        model = span.replica.model
        share = span.busy_s * span.replica.tp / max(1e-9, totals[model])
        yield (
            names[model],
            problem.sizes[model].name + "*" * is_estimated(problem, span),
            named(problem.nodes_of(model)),
            ",".join(map(str, span.replica.devices)),
            f"{share:.0%}",
            *(f"{seconds:.1f}" for seconds in (span.start_s, span.ready_s, span.end_s)),
        )


def model_graph(problem: Problem) -> Iterator[str]:
    """Yield a line for each node, in topological order: an arrow names the nodes that take its answers."""
    nodes = problem.app.nodes
    takers = {node.name: [other.name for other in nodes if node.name in other.inputs] for node in nodes}
    for node in nodes:
        num_calls = len(problem.workload.calls[node.name].requests)
        line = f"{node.name} ({problem.workload.models[node.name].name}, {num_calls} calls"
        order = "one after the other" if node.chain else "one for each chunk"
        line += f", {order})" if node.is_by_chunk else ")"
        if takers[node.name]:
            line += f" -> {', '.join(takers[node.name])}"
        yield line
