"""The fit of the times in which LLM instances start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stretto.costs.loading import LoadingCost
from stretto.costs.nnls import nnls
from stretto.costs.shape import LLMModel
from stretto.model.errors import ConfigError


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
