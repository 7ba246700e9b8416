"""A roofline with 12 numbers for decodes, as a comparison.

    computation = max(a, b + c·B + d·[B > 64]·ceil128(B)) + max(e·S, f·s)
    preparation = g + h·B + i·B·s        sampling = j + k·B + l·S

B is the number of sequences, S their tokens, s the tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stretto.costs.fit import MeasuredStep
from stretto.costs.largest_sum import fit_largest
from stretto.costs.nnls import Floats
from stretto.costs.shape import StepShape

_GUESS = np.array([1e-2, 7e-3, 2.5e-5, 3.6e-5, 2.8e-7, 8e-7])
_BRANCHES = ((0, 4), (0, 5), (1, 2, 3, 4), (1, 2, 3, 5))


def fit_roofline(steps: Sequence[MeasuredStep]) -> Callable[[Sequence[StepShape]], Mapping[str, Floats]]:
    """Fit to `steps` with known parts; returns a function that predicts the parts of decodes."""
    parts = {
        part: np.array([(step.parts or {})[part] for step in steps])
        for part in ("forward", "preparation", "sampling")
    }
    shapes = [step.shape for step in steps]
    numbers = {
        "forward": fit_largest(_forward(shapes), parts["forward"], [_GUESS]),
        "preparation": fit_largest(_preparation(shapes), parts["preparation"], []),
        "sampling": fit_largest(_sampling(shapes), parts["sampling"], []),
    }

    def predict(shapes: Sequence[StepShape]) -> Mapping[str, Floats]:
        tables = {
            "forward": _forward(shapes),
            "preparation": _preparation(shapes),
            "sampling": _sampling(shapes),
        }
        return {part: np.max(table @ numbers[part], axis=0) for part, table in tables.items()}

    return predict


def _sizes(shapes: Sequence[StepShape]) -> tuple[Floats, Floats, Floats]:
    sizes = np.array([(s.num_decodes, s.context_tokens, s.max_context_tokens) for s in shapes], float)
    return sizes[:, 0], sizes[:, 1], sizes[:, 2]


def _forward(shapes: Sequence[StepShape]) -> Floats:
    b, total, longest = _sizes(shapes)
    tiles = np.where(b > 64, np.ceil(b / 128) * 128, 0.0)
    columns = np.stack([np.ones_like(b), np.ones_like(b), b, tiles, total, longest], axis=1)
    masks = np.array([[float(column in branch) for column in range(6)] for branch in _BRANCHES])
    branches: Floats = columns[None] * masks[:, None]
    return branches


def _preparation(shapes: Sequence[StepShape]) -> Floats:
    b, _, longest = _sizes(shapes)
    return np.stack([np.ones_like(b), b, b * longest], axis=1)[None]


def _sampling(shapes: Sequence[StepShape]) -> Floats:
    b, total, _ = _sizes(shapes)
    return np.stack([np.ones_like(b), b, total], axis=1)[None]
