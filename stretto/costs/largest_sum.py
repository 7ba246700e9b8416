"""Fits the largest of several sums to measured seconds, as a step takes as long as the slowest of its parts.

Which sum decides a row is not known beforehand. The fit therefore iterates: assume one for each row, solve
nonnegative least squares on relative errors, then let the solution say which one decides each row. Rows with
large errors weigh less in each round, so that outliers of a measurement do not distort the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stretto.costs.nnls import Floats, nnls

Deciding: TypeAlias = npt.NDArray[np.int64]

_ROUNDS = 30
_SETTLED = 1e-5
_FAIR = 0.02  # relative errors below it have equal weight
_NEAR = 0.25  # relative distances from known numbers below it have equal weight
_FIRM = 1e3  # weight of a sum that must hold


@dataclass(frozen=True, slots=True)
class Pull:
    """A penalty in a least-squares fit: it keeps each unknown near a known value, which decides where the
    data do not.

    Attributes:
        target: known value of each unknown, near which it is kept.
        scale: unit in which the distance to `target` is counted.
        strength: weight of the penalty; 0 means none.
    """

    target: Floats
    scale: Floats
    strength: Floats


def fit_largest(
    branches: Floats,
    seconds: Floats,
    guesses: Sequence[Floats],
    pull: Pull | None = None,
    floors: Floats | None = None,
    together: Floats | None = None,
) -> Floats:
    """Fit a maximum of sums: return the nonnegative unknowns for which the largest of several sums comes
    nearest to the measured `seconds`.

    Each sum, called a branch, is a combination of the unknowns.

    Args:
        branches: factors of the unknowns, branch × row × unknown.
        seconds: measured time of each row.
        guesses: starting values of the unknowns; each decides which branch is the largest in which row.
        pull: penalty that keeps the unknowns near known values; None for none.
        floors: least value of each unknown; None for 0.
        together: 1 for each unknown of a group whose sum is at least 1, 0 for the others; None for no group.
    """
    seconds = np.maximum(seconds, 1e-6)
    rows = np.arange(len(seconds))
    least = np.zeros(branches.shape[2]) if floors is None else floors
    held = np.flatnonzero(pull.strength) if pull else np.zeros(0, dtype=np.int64)
    strength, target, holding = np.zeros(0), np.zeros(0), np.zeros((0, branches.shape[2]))
    if pull:
        strength, target = pull.strength[held], pull.target[held] / pull.scale[held]
        holding = (np.eye(branches.shape[2]) / np.where(pull.scale > 0, pull.scale, 1.0))[held]
    best, best_error = np.zeros(branches.shape[2]), math.inf
    for chosen in _starts(branches, seconds, guesses):
        weights, trust, last_error = np.ones(len(seconds)), strength, math.inf
        for _ in range(_ROUNDS):
            measured = branches[chosen, rows] / seconds[:, None] * weights[:, None]
            held_rows = holding * trust[:, None]
            matrix = np.vstack([measured, held_rows])
            goal = np.concatenate([weights, target * trust])
            values = least + nnls(matrix, goal - matrix @ least)
            if together is not None and together.any() and together @ values < 1:
                matrix = np.vstack([matrix, _FIRM * together])
                values = least + nnls(matrix, np.append(goal, _FIRM) - matrix @ least)
            predicted = branches @ values
            errors = np.abs(predicted.max(axis=0) / seconds - 1)
            if errors.mean() < best_error:
                best, best_error = values, float(errors.mean())
            weights = np.sqrt(_FAIR / np.maximum(errors, _FAIR))
            trust = strength * np.sqrt(_NEAR / np.maximum(np.abs(holding @ values - target), _NEAR))
            decides = predicted.argmax(axis=0)
            if np.array_equal(decides, chosen) and abs(errors.mean() - last_error) < _SETTLED:
                break
            chosen, last_error = decides, float(errors.mean())
    return best


def _starts(branches: Floats, seconds: Floats, guesses: Sequence[Floats]) -> list[Deciding]:
    """First guesses of which branch is the largest in each row; one of them gives the fastest rows to the
    first branch."""
    if len(branches) == 1:
        return [np.zeros(len(seconds), dtype=np.int64)]
    starts = [(branches @ values).argmax(axis=0) for values in guesses]
    fast = seconds <= 1.15 * np.quantile(seconds, 0.05)
    return [*starts, np.where(fast, 0, starts[0])]
