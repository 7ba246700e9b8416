"""SamuLLM's form of step costs: one line for each batch size, through two measured points.

Computation, preparation and sampling have a line each. Their variables are the operations of the model, the
padded number of tokens and the unpadded number of tokens. A batch size that was not measured uses the line of
the nearest measured one.

Source: SamuLLM §2, Equations 1, 2 and 5, and the public code, which draws the line through the points with
the smallest and the largest variable, each the faster of its repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import LLMModel, StepShape
from stretto.model.errors import ConfigError

_PARTS = ("forward", "preparation", "sampling")


@dataclass(frozen=True, slots=True)
class PerBatchLines:
    """A prediction of an LLM's step times that has a line for each batch size, through two measured points
    (SamuLLM's form).

    Attributes:
        lines: measured points of each part of a step (such as attention), by (whether it is a prefill, part)
            and batch size; a point is what that part's time grows with (such as tokens), and seconds.
    """

    model: LLMModel
    tensor_parallel: int
    lines: dict[tuple[bool, str], dict[int, tuple[tuple[float, float], tuple[float, float]]]]

    def parts(self, shape: StepShape) -> dict[str, float]:
        """Return the predicted seconds of each part of a step: "forward", "preparation" and "sampling".

        They may be negative.

        Raises:
            ConfigError: the step has both prefills and decodes, or is of a kind that was never measured.
        """
        is_prefill = bool(shape.num_prefills)
        if is_prefill and shape.num_decodes:
            raise ConfigError("per_batch_lines needs a step of prefills alone or of decodes alone, got both")
        num_sequences = shape.num_prefills or shape.num_decodes
        variables = _variables(self.model, self.tensor_parallel, shape)
        found = {}
        for part in _PARTS:
            lines = self.lines.get((is_prefill, part))
            if not lines:
                raise ConfigError(
                    f"per_batch_lines was fitted to no {'prefill' if is_prefill else 'decode'} steps"
                )
            nearest = min(lines, key=lambda size: (abs(size - num_sequences), size))
            (x0, y0), (x1, y1) = lines[nearest]
            slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
            found[part] = y0 + slope * (variables[part] - x0)
        return found

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one step of an LLM instance."""
        return sum(self.parts(shape).values())

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` decode steps in a row, all together.

        They are the mean of the first and the last step, times their number.
        """
        if num_repeats <= 0:
            return 0.0
        return num_repeats * (self.step_s(shape) + self.step_s(shape.after(num_repeats - 1))) / 2


def fit_per_batch_lines(
    model: LLMModel, tensor_parallel: int, steps: Sequence[MeasuredStep]
) -> PerBatchLines:
    """Fit a prediction of an LLM's step times to measured steps: a line for each batch size and part of a
    step.

    Raises:
        ConfigError: a step was measured only as a whole, without its parts.
    """
    points: dict[tuple[bool, str], dict[int, dict[float, float]]] = {}
    for step in steps:
        if not step.parts:
            raise ConfigError("per_batch_lines needs the parts of every step")
        variables = _variables(model, tensor_parallel, step.shape)
        num_sequences = step.shape.num_prefills or step.shape.num_decodes
        for part in _PARTS:
            by_size = points.setdefault((bool(step.shape.num_prefills), part), {})
            fastest = by_size.setdefault(num_sequences, {})
            x, y = variables[part], step.parts[part]
            fastest[x] = min(y, fastest.get(x, y))
    lines = {
        key: {size: (_end(found, min(found)), _end(found, max(found))) for size, found in by_size.items()}
        for key, by_size in points.items()
    }
    return PerBatchLines(model, tensor_parallel, lines)


def _end(points: dict[float, float], x: float) -> tuple[float, float]:
    return x, points[x]


def _variables(model: LLMModel, tensor_parallel: int, shape: StepShape) -> dict[str, float]:
    """Variable of each part's line, for one GPU.

    A multiplication with its addition counts as one operation, and all experts count, as in the public code.
    """
    dense = model.attention_params + model.num_experts * model.expert_params
    if shape.num_prefills:
        tokens = shape.num_prefills * shape.max_prefill_tokens
        attention = 2.0 * model.hidden_size * tokens * shape.max_prefill_tokens
        total = shape.prefill_tokens
    else:
        tokens, total = shape.num_decodes, shape.context_tokens
        attention = 2.0 * model.hidden_size * total
    padded = tokens if shape.num_prefills else tokens * shape.max_context_tokens
    operations = model.num_layers * (dense * tokens + attention) / tensor_parallel
    return {"forward": operations, "preparation": padded, "sampling": total}
