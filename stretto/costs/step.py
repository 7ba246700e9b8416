"""How long one step of an LLM instance takes: a physical formula with few fitted numbers.

    step    = preparation + sampling + host + max(launch, device)
    device  = weights + matrix + all_reduce + prefill_attention + max(kv, longest)

The host launches kernels ahead of the device, so the slower of the two decides. Weights are read once. Matrix
time grows in stairs, because kernels work on tiles of tokens (`tiles.py`, and stairs of fixed sizes). Half of
the shorter of reading weights and multiplying is hidden behind the longer. Attention of decodes is limited
either by the whole device (`kv`: bytes to read, and a start-up per sequence and head) or by the longest
sequence, whose few heads cannot keep the device busy unless the kernel splits the context. Heads wider than
128 are slower: they read slower in proportion, and follow one sequence slower by the square of their width.
Sampling has a higher price beyond 64 sequences. `stalls` is the mean time of rare pauses of the host.

One set of numbers serves any number of devices. Files of earlier fits have one for each number of devices:
numbers of layers (`launch`, `prefill_launch`), tiles of a fixed size (`matrix_128`), and
activations and all-reduces that are either of one device or of several (`activations`, `all_reduce`). Each
form leaves the other's numbers at 0.

Every number is nonnegative and every feature grows with tokens, so no time is negative and more tokens never
take less time. Features are in seconds at the hardware's peak where a peak is known; the fitted number is
then the factor by which the engine is slower than the peak.

Source of the parts (computation, preparation, sampling): SamuLLM §2. Differs: one form for all batch sizes,
instead of a line for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import mul
from typing import NamedTuple, Protocol

from stretto.costs.shape import StepShape
from stretto.costs.step_features import StepFeatures
from stretto.costs.step_terms import FOR_ALL, HIDDEN, NUMBERS, StepTerms
from stretto.model.errors import ConfigError


class StepCost(Protocol):
    """The interface of a model that predicts how long a step of an LLM instance takes.

    It is used for simulation, routing and planning.
    """

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one step of this shape (numbers of sequences and tokens)."""
        ...

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` decode steps in a row, all together.

        Each sequence grows by one token in each step.

        Args:
            shape: sizes of the first of these steps.
        """
        ...


class _Decodes(NamedTuple):
    """The seconds of a step with so many decodes that do not depend on their contexts.

    Attributes:
        device: sum of `before`.
        before: terms from `weights` to `prefill_attention`.
        blocks: part of `kv`.
        preparation, groups: parts of `preparation`.
        after: terms from `sampling` on.
    """

    launch: float
    device: float
    before: tuple[float, ...]
    blocks: float
    preparation: float
    groups: float
    after: tuple[float, ...]


class LLMStepCost:
    """A prediction of an LLM's step times by a physical formula (launching, weights, matrices, attention…).

    `features` are the quantities that the formula combines, `numbers` the fitted factors, by name.

    Raises:
        ConfigError: a number is missing, unknown, negative or not finite.
    """

    def __init__(self, features: StepFeatures, numbers: Mapping[str, float]) -> None:
        if unknown := (set(numbers) | set(FOR_ALL)) ^ set(NUMBERS):
            raise ConfigError(f"numbers of a step cost: unknown or missing: {', '.join(sorted(unknown))}")
        for name, value in numbers.items():
            if not 0 <= value < math.inf:
                raise ConfigError(
                    f"numbers of a step cost: {name} must be finite and not negative, got {value}"
                )
        self.features = features
        self.numbers = {name: float(numbers.get(name, 0.0)) for name in NUMBERS}
        self._values = list(self.numbers.values())
        self._decodes: dict[int, _Decodes] = {}

    def terms(self, shape: StepShape) -> StepTerms:
        """Return the predicted seconds of an LLM step, split by cause."""
        return StepTerms(*self._terms(shape))

    def _terms(self, shape: StepShape) -> tuple[float, ...]:
        """Return the numbers of `terms` as a plain tuple, which is faster to make.

        What depends on the number of decodes alone is kept, as most steps of a simulation have decodes only.
        """
        if shape.num_prefills or not shape.num_decodes:
            return self._all_terms(shape)
        _, _, _, _, num, context, max_context = shape
        known = self._decodes.get(num)
        if known is None:
            known = self._decodes[num] = self._decodes_of(num)
        values, rates = self._values, self.features._rates
        longest, parts = self.features.longest(num, max_context)
        reading = (
            known.blocks + rates.blocks * num * (parts - 1) * values[18] + rates.kv_s * context * values[19]
        )
        followed = rates.longest * longest * values[20]
        return (
            max(0.0, known.launch - (known.device + max(reading, followed))),
            *known.before,
            reading,
            max(0.0, followed - reading),
            known.preparation + num * max_context * values[23] + known.groups,
            *known.after,
        )

    def _decodes_of(self, num: int) -> _Decodes:
        shape = StepShape(num_decodes=num)
        products = list(map(mul, self.features.of(shape), self._values))
        before, after = self._all_terms(shape)[1:5], self._all_terms(shape)[8:]
        launch = products[0] + products[1] + products[2] + products[3]
        return _Decodes(
            launch, sum(before), before, products[17], products[21] + products[22], products[24], after
        )

    def _all_terms(self, shape: StepShape) -> tuple[float, ...]:
        products = list(map(mul, self.features.of(shape), self._values))
        launch = products[0] + products[1] + products[2] + products[3]
        weights, matrix_128, matrix_256, tiles, stairs, activations, elementwise, gaps = products[4:12]
        matrix = matrix_128 + matrix_256 + tiles + stairs + activations + elementwise + gaps
        matrix -= HIDDEN * min(weights, tiles + stairs)
        all_reduce = products[12] + products[13] + products[14]
        prefill = products[15] + products[16]
        reading = products[17] + products[18] + products[19]
        longest = products[20]
        device = weights + matrix + all_reduce + prefill + max(reading, longest)
        return (
            max(0.0, launch - device),
            weights,
            matrix,
            all_reduce,
            prefill,
            reading,
            max(0.0, longest - reading),
            products[21] + products[22] + products[23] + products[24],
            products[25] + products[26] + products[27] + products[28] + products[29],
            products[30] + products[31] + products[32] + products[33],
        )

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one step of an LLM instance."""
        return sum(self._terms(shape))

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` decode steps in a row, all together.

        Each sequence grows by one token in each step, and `shape` is that of the first.

        Consecutive steps that the same terms decide are summed in closed form.
        """
        if num_repeats <= 0:
            return 0.0
        return self._sum(shape, 0, num_repeats - 1)

    def _sum(self, shape: StepShape, first: int, last: int) -> float:
        """Seconds of repeats [first, last]. Time grows linearly between repeats that the same terms
        decide."""
        a, b = self.terms(shape.after(first)), self.terms(shape.after(last))
        if last == first:
            return sum(a)
        if last == first + 1:
            return sum(a) + sum(b)
        if self._regime(shape, a, first) == self._regime(shape, b, last):
            return (last - first + 1) * (sum(a) + sum(b)) / 2
        middle = (first + last) // 2
        return self._sum(shape, first, middle) + self._sum(shape, middle + 1, last)

    def _regime(self, shape: StepShape, terms: StepTerms, repeat: int) -> tuple[bool, bool, int]:
        partition = self.features.kernels.partition_tokens
        parts = -(-(shape.max_context_tokens + repeat) // partition)
        if self.features.model.max_context_tokens <= self.features.kernels.unsplit_tokens:
            parts = min(parts, 2)
        return terms.launch > 0, terms.longest > 0, parts
