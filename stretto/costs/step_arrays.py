"""The predicted times of many LLM steps at once, over arrays; the same formula as `LLMStepCost`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.costs.shape import StepShape
from stretto.costs.step import LLMStepCost, StepCost
from stretto.costs.step_features import StepFeatures
from stretto.costs.step_terms import (
    ALL_REDUCE,
    FEW,
    HIDDEN,
    HOST,
    KV,
    LAUNCH,
    LONGEST,
    MATRIX,
    MULTIPLYING,
    NUMBERS,
    PREFILL_ATTENTION,
    PREPARATION,
    SAMPLING,
    WEIGHTS,
)

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShapeArrays:
    """Sizes of many steps: the fields of `StepShape`, one number per interval, and how often each repeats."""

    num_prefills: Ints
    prefill_tokens: Ints
    max_prefill_tokens: Ints
    prefill_pairs: Ints
    num_decodes: Ints
    context_tokens: Ints
    max_context_tokens: Ints
    repeats: Ints

    def after(self, num_steps: Ints) -> ShapeArrays:
        """Return the sizes that many steps later; only decodes grow."""
        return ShapeArrays(
            self.num_prefills,
            self.prefill_tokens,
            self.max_prefill_tokens,
            self.prefill_pairs,
            self.num_decodes,
            self.context_tokens + num_steps * self.num_decodes,
            self.max_context_tokens + num_steps,
            self.repeats,
        )

    def where(self, chosen: NDArray[np.bool_]) -> ShapeArrays:
        """Return the intervals for which `chosen` is true."""
        return ShapeArrays(*(getattr(self, name)[chosen] for name in self.__slots__))

    @staticmethod
    def joined(parts: Sequence[ShapeArrays]) -> ShapeArrays:
        """Return the intervals of all parts, one part after the other."""
        names = ShapeArrays.__slots__
        return ShapeArrays(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def rows(self) -> list[tuple[StepShape, int]]:
        """Return the sizes of each interval's first step, and how often it repeats."""
        columns = (getattr(self, name).tolist() for name in StepShape._fields)
        return list(
            zip((StepShape(*row) for row in zip(*columns, strict=True)), self.repeats.tolist(), strict=True)
        )


def steps_s(cost: StepCost, shapes: ShapeArrays) -> Floats:
    """Return the predicted seconds of each interval: all its repeats together."""
    if not isinstance(cost, LLMStepCost):
        rows = shapes.rows()
        return np.array([cost.step_s(s) if n == 1 else cost.steps_s(s, n) for s, n in rows], np.float64)
    first, last = np.zeros(len(shapes.repeats), np.int64), shapes.repeats - 1
    seconds, places = np.zeros(len(first)), np.arange(len(first))
    begin_s, begin = _times(cost, shapes)
    end_s, end = begin_s.copy(), begin.copy()
    several = last > 0
    end_s[several], end[several] = _times(cost, shapes.where(several).after(last[several]))
    while True:
        is_even = (last - first < 2) | (begin == end)
        whole_s = np.where(last == first, begin_s, (last - first + 1) * (begin_s + end_s) / 2)
        np.add.at(seconds, places[is_even], whole_s[is_even])
        left = ~is_even
        if not left.any():
            return seconds
        shapes, middle = shapes.where(left), (first + last)[left] // 2
        before_s, before = _times(cost, shapes.after(middle))
        after_s, after = _times(cost, shapes.after(middle + 1))
        begin_s, begin = np.concatenate([begin_s[left], after_s]), np.concatenate([begin[left], after])
        end_s, end = np.concatenate([before_s, end_s[left]]), np.concatenate([before, end[left]])
        first, last = np.concatenate([first[left], middle + 1]), np.concatenate([middle, last[left]])
        places, shapes = np.concatenate([places[left]] * 2), ShapeArrays.joined([shapes, shapes])


def _times(cost: LLMStepCost, shapes: ShapeArrays) -> tuple[Floats, Ints]:
    """Return the seconds of each step, and a number that tells which terms decide them."""
    features = _features(cost, shapes)
    products = {name: feature * cost.numbers[name] for feature, name in zip(features, NUMBERS, strict=True)}

    def total(*names: str) -> Floats:
        seconds = np.zeros(len(shapes.repeats))
        for name in names:
            seconds += products[name]
        return seconds

    launch, reading, longest = total(*LAUNCH), total(*KV), total(*LONGEST)
    hidden = HIDDEN * np.minimum(total(*WEIGHTS), total(*MULTIPLYING))
    device = total(*WEIGHTS, *MATRIX, *ALL_REDUCE, *PREFILL_ATTENTION) - hidden
    device = device + np.maximum(reading, longest)
    seconds = np.maximum(launch, device) + total(*PREPARATION, *SAMPLING, *HOST)
    kernels = cost.features.kernels
    parts = -(-shapes.max_context_tokens // kernels.partition_tokens)
    if cost.features.model.max_context_tokens <= kernels.unsplit_tokens:
        parts = np.minimum(parts, 2)
    regime = parts * 4 + (launch > device) * 2 + (longest > reading)
    return np.where(shapes.num_prefills + shapes.num_decodes > 0, seconds, 0.0), regime


def _read_s_of_experts(features: StepFeatures, tokens: NDArray[np.float64]) -> NDArray[np.float64] | float:
    """Return the seconds to read the weights of a mixture of experts, of which a step reads those in use."""
    model, kernels = features.model, features.kernels
    unused = (1 - model.active_experts / model.num_experts) ** tokens
    used = model.active_experts if kernels.tokens_alike else model.num_experts * (1 - unused)
    weights = model.num_layers * (model.attention_params + used * model.expert_params)
    return weights * model.dtype_bytes * features._rates.byte_s


def _features(cost: LLMStepCost, shapes: ShapeArrays) -> list[NDArray[Any] | float]:
    """Return what `StepFeatures.of` returns, for each step; one number if it is the same for all steps."""
    features = cost.features
    rates, kernels, model = features._rates, features.kernels, features.model
    layers = float(model.num_layers)
    prefills, decodes = shapes.num_prefills.astype(np.float64), shapes.num_decodes.astype(np.float64)
    longest = shapes.max_context_tokens
    prompts = prefills * shapes.max_prefill_tokens if kernels.pads_prompts else shapes.prefill_tokens
    tokens = prompts + decodes
    read_s = rates.read_s or _read_s_of_experts(features, tokens)
    parts = np.ones(len(prefills), np.int64)
    if model.max_context_tokens > kernels.unsplit_tokens:
        parts = np.maximum(1, -(-longest // kernels.partition_tokens))
    is_cut = (parts > 1) | (decodes * rates.heads <= kernels.split_blocks)
    cut = np.where(is_cut, np.minimum(longest, kernels.partition_tokens), longest)
    activation_s = rates.activation_s * tokens
    devices = features.tensor_parallel
    is_group = float(devices > 1)
    num_sequences = prefills + decodes
    launches = layers * (model.kernels_per_layer + 2 * is_group)
    tiles_s = features.multiplication.all_seconds(tokens.astype(np.int64))
    return [
        layers,
        layers * (prefills > 0),
        launches,
        launches * (prefills > 0),
        read_s,
        np.ceil(tokens / 128) * 128 * rates.token_s,
        np.ceil(tokens / 256) * 256 * rates.token_s,
        tiles_s,
        np.where(tokens <= 64, 64, np.ceil(tokens / 128) * 128) * rates.token_s,
        activation_s * (1 - is_group),
        activation_s,
        layers * model.kernels_per_layer,
        layers * is_group,
        activation_s * is_group,
        2 * activation_s / devices * is_group,
        rates.blocks * (prefills + shapes.prefill_tokens / 64),
        rates.pair_s * shapes.prefill_pairs,
        rates.blocks * decodes,
        rates.blocks * decodes * (parts - 1),
        rates.kv_s * shapes.context_tokens,
        rates.longest * cut,
        1.0,
        num_sequences,
        prompts + decodes * shapes.max_context_tokens,
        is_group,
        1.0,
        num_sequences,
        np.maximum(0, num_sequences - FEW),
        rates.words_s * num_sequences,
        rates.output_s,
        1.0,
        num_sequences,
        is_group,
        num_sequences,
    ]
