"""Least squares with nonnegative unknowns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def nnls(matrix: Floats, target: Floats) -> Floats:
    """Solve nonnegative least squares: return the x >= 0 that minimises |matrix @ x - target|.

    Args:
        matrix: rows × unknowns, with few unknowns; columns may be zero or equal.
        target: value of each row.

    Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23 (active sets), on scaled columns.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    gram, moment = scaled.T @ scaled, scaled.T @ target
    num_unknowns = matrix.shape[1]
    x = np.zeros(num_unknowns)
    is_free = np.zeros(num_unknowns, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(moment).max(initial=0.0)))
    for _ in range(10 * num_unknowns):
        slope = moment - gram @ x
        slope[is_free] = -np.inf
        enter = int(slope.argmax())
        if slope[enter] <= tolerance:
            break
        is_free[enter] = True
        while True:
            free = np.flatnonzero(is_free)
            trial = np.zeros(num_unknowns)
            trial[free] = np.linalg.lstsq(gram[np.ix_(free, free)], moment[free], rcond=1e-12)[0]
            if trial[free].min(initial=0.0) >= 0:
                break
            falling = free[trial[free] < 0]
            step = np.min(x[falling] / (x[falling] - trial[falling]))
            x += step * (trial - x)
            is_free &= x > 1e-14
            x[~is_free] = 0.0
        x = trial
    result: Floats = np.maximum(x, 0.0) / scale
    return result
