"""Time to start an LLM instance: a fixed cost, and the weights at the speed of the disk or network.

Source: SamuLLM §2 has a table by model and plan. Differs: the table is used where a start was measured, and a
line fitted to it elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.costs.nnls import nnls
from stretto.costs.shape import LLMModel
from stretto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadingCost:
    """A prediction of the time to start an LLM instance: measured times, and a line fitted to them for other
    models.

    Attributes:
        start_s: seconds for process, libraries and memory, equal for all models.
        group_s: additional seconds if the instance uses several devices.
        byte_s: seconds per byte of weights; several devices load their shares at the same time.
        measured_s: measured seconds by model and number of devices, as in "model|tp1"; preferred to the line.
    """

    start_s: float
    group_s: float
    byte_s: float
    measured_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = {"start_s": self.start_s, "group_s": self.group_s, "byte_s": self.byte_s, **self.measured_s}
        for name, value in times.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"loading: {name} must be finite and not negative, got {value}")

    def seconds(self, model: LLMModel, tensor_parallel: int = 1) -> float:
        """Return the seconds that one start of an instance takes: as measured, or else estimated from the
        model's size.
        """
        known = self.measured_s.get(f"{model.name}|tp{tensor_parallel}")
        return self.estimated_s(model, tensor_parallel) if known is None else known

    def estimated_s(self, model: LLMModel, tensor_parallel: int = 1) -> float:
        """Return the seconds that one start of an instance takes by the fitted line, even if it was
        measured.
        """
        group_s = self.group_s if tensor_parallel > 1 else 0.0
        return self.start_s + group_s + self.byte_s * model.weight_bytes / tensor_parallel


def fit_loading(models: Mapping[str, LLMModel], measured_s: Mapping[str, float]) -> LoadingCost:
    """Fit a prediction of the times to start LLM instances to measured ones, by least squares on relative
    errors.

    Args:
        models: sizes of the models, by name. A measured model that is missing here keeps its measured time,
            and does not influence the fit.
        measured_s: measured seconds by model and number of devices, as in "model|tp1".

    Raises:
        ConfigError: a key is not of the form "model|tpN", or a time is not positive.
    """
    rows = []
    for key, seconds in measured_s.items():
        name, _, devices = key.rpartition("|tp")
        if not name or not devices.isdigit() or not int(devices):
            raise ConfigError(f"loading: {key!r} is not of the form MODEL|tpN")
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"loading: seconds of {key} must be positive, got {seconds}")
        if name in models:
            tp = int(devices)
            row = [1.0, float(tp > 1), models[name].weight_bytes / tp]
            rows.append([value / seconds for value in row])
    if not rows:
        return LoadingCost(0.0, 0.0, 0.0, dict(measured_s))
    start_s, group_s, byte_s = nnls(np.array(rows), np.ones(len(rows)))
    return LoadingCost(float(start_s), float(group_s), float(byte_s), dict(measured_s))
