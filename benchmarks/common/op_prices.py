"""The seconds of a batch on an engine whose ops differ in cost, or whose cost depends on the lengths of
texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.costs.mean_output import num_tokens
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.model.profile import Profile
from stretto.model.values import as_text
from stretto.sched.actions import StartBatch


@dataclass(frozen=True, slots=True)
class Prices:
    """A predictor of the seconds of a batch that may contain several ops,
    from a cost profile for each op.

    A batch costs the largest base cost of its ops, and the cost of all its units of work. Units are tokens of
    the value at the port `by_tokens`, a text or a list of hits; if that is empty, the units
    that the op's specification counts.

    Attributes:
        specs: specifications of the ops that the run knows, by name.
    """

    ops: Mapping[str, Profile]
    by_tokens: str = ""
    specs: Ops = field(default_factory=lambda: OPS)

    def base_s(self, op: str) -> float:
        """Return the seconds that a batch with this op takes at least, whatever its size."""
        return self.ops[op].base_s

    def item_s(self, op: str, inputs: Mapping[str, object]) -> float:
        """Return the seconds that one application of an op to `inputs` adds to a batch."""
        if self.by_tokens:
            units = _tokens(inputs[self.by_tokens])
        else:
            units = spec.units(inputs) if (spec := self.specs[op]).units else 1
        return self.ops[op].per_unit_s * units

    def batch_s(self, action: StartBatch) -> float:
        """Return the predicted seconds of the batch that a `StartBatch` action of the schedulers starts."""
        seconds = max(self.base_s(task.op) for task in action.tasks)
        for task in action.tasks:
            if task.num_items is None:
                seconds += self.item_s(task.op, task.inputs)
                continue
            for i in range(task.num_items):
                row = {port: v[i] if port in task.each else v for port, v in task.inputs.items()}  # type: ignore[index]
                seconds += self.item_s(task.op, row)
        return seconds


def _tokens(value: object) -> int:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sum(num_tokens(as_text(hit)) for hit in value)
    return num_tokens(as_text(value))
