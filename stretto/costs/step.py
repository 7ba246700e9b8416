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
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple, Protocol

from stretto.costs.shape import Hardware, LLMModel, StepShape
from stretto.costs.step_terms import FEW, FOR_ALL, HIDDEN, NUMBERS, StepTerms
from stretto.costs.tiles import Multiplication
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


_USUAL_HEAD = 128


@dataclass(frozen=True, slots=True)
class Kernels:
    """Properties of an engine's attention kernels that decide how long its LLM steps take.

    Attributes:
        pads_prompts: whether prompts of a step are padded to the longest of them.
        split_blocks: largest number of (sequence, head) pairs with which contexts are split among workers.
        partition_tokens: tokens of one part of a split context.
        unsplit_tokens: models that allow longer contexts than this always split them.
        tokens_alike: whether all tokens choose the same experts, as the equal tokens of a profile do.
    """

    pads_prompts: bool = False
    split_blocks: int = 512
    partition_tokens: int = 512
    unsplit_tokens: int = 8192
    tokens_alike: bool = False


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """The features of an LLM step of a model on some hardware: quantities such as bytes to read, of which its
    predicted time is a combination.

    The predicted time is made of the features, each multiplied with a fitted number.
    """

    model: LLMModel
    hardware: Hardware
    tensor_parallel: int = 1
    kernels: Kernels = Kernels()
    multiplication: Multiplication = field(init=False, repr=False, compare=False)
    _rates: _Rates = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rates", _rates(self.model, self.hardware, self.tensor_parallel))
        parts = self.model, self.hardware, self.tensor_parallel, self.kernels.tokens_alike
        object.__setattr__(self, "multiplication", Multiplication(*parts))

    def of(self, shape: StepShape) -> list[float]:
        """Return the features (quantities that the time depends on) of a step of this shape, in the order of
        the fitted numbers (`NUMBERS`).
        """
        rates, kernels, layers = self._rates, self.kernels, self.model.num_layers
        prefills, prefill_tokens, longest_prefill, pairs, decodes, context, max_context = shape
        prompt_tokens = prefills * longest_prefill if kernels.pads_prompts else prefill_tokens
        tokens = prompt_tokens + decodes
        if not tokens:
            return [0.0] * len(NUMBERS)
        read_s = rates.read_s or self.model.read_bytes(tokens, alike=kernels.tokens_alike) * rates.byte_s
        longest, parts = self.longest(decodes, max_context)
        activation_s = rates.activation_s * tokens
        devices = self.tensor_parallel
        is_alone = devices == 1
        num_sequences = prefills + decodes
        launches = layers * (self.model.kernels_per_layer + (0 if is_alone else 2))
        return [
            layers,
            layers if prefills else 0.0,
            launches,
            launches if prefills else 0.0,
            read_s,
            -(-tokens // 128) * 128 * rates.token_s,
            -(-tokens // 256) * 256 * rates.token_s,
            self.multiplication.seconds(tokens),
            (64 if tokens <= 64 else -(-tokens // 128) * 128) * rates.token_s,
            activation_s if is_alone else 0.0,
            activation_s,
            layers * self.model.kernels_per_layer,
            0.0 if is_alone else layers,
            0.0 if is_alone else activation_s,
            0.0 if is_alone else 2 * activation_s / devices,
            rates.blocks * (prefills + prefill_tokens / 64),
            rates.pair_s * pairs,
            rates.blocks * decodes,
            rates.blocks * decodes * (parts - 1),
            rates.kv_s * context,
            rates.longest * longest,
            1.0,
            num_sequences,
            prompt_tokens + decodes * max_context,
            0.0 if is_alone else 1.0,
            1.0,
            num_sequences,
            max(0, num_sequences - FEW),
            rates.words_s * num_sequences,
            rates.output_s,
            1.0,
            num_sequences,
            0.0 if is_alone else 1.0,
            num_sequences,
        ]

    def longest(self, num_decodes: int, max_context: int) -> tuple[int, int]:
        """Return how many tokens of the longest context one worker follows, and the number of its parts."""
        kernels, parts = self.kernels, 1
        if self.model.max_context_tokens > kernels.unsplit_tokens:
            parts = max(1, -(-max_context // kernels.partition_tokens))
        if parts > 1 or num_decodes * self._rates.heads <= kernels.split_blocks:
            max_context = min(max_context, kernels.partition_tokens)
        return max_context, parts


class _Rates(NamedTuple):
    """Rates of one device at its peak, in seconds.

    They are: per byte of weights; for all weights (0 if that depends on the tokens); per token in matrices
    and in the operations between them; per pair of tokens; per token of KV. Also the number of heads, and of
    (layer, head) pairs.
    """

    byte_s: float
    read_s: float
    token_s: float
    activation_s: float
    pair_s: float
    kv_s: float
    words_s: float
    output_s: float
    heads: float
    blocks: float
    longest: float


def _rates(model: LLMModel, hardware: Hardware, tensor_parallel: int) -> _Rates:
    byte_s = 1 / tensor_parallel / hardware.bandwidth_bytes_s
    heads = model.num_heads / tensor_parallel
    blocks = model.num_layers * heads
    head_bytes = 2 * model.head_size * model.dtype_bytes
    kv_bytes = model.kv_bytes_per_token / min(tensor_parallel, model.num_kv_heads)
    wide = max(1.0, model.head_size / _USUAL_HEAD)
    kv_s = max(kv_bytes / hardware.bandwidth_bytes_s, blocks * head_bytes / hardware.cache_bandwidth_bytes_s)
    return _Rates(
        byte_s=byte_s,
        read_s=model.read_bytes(1) * byte_s if model.active_experts == model.num_experts else 0.0,
        token_s=2 * model.token_params / tensor_parallel / hardware.flops,
        activation_s=model.num_layers * model.hidden_size * model.dtype_bytes / hardware.bandwidth_bytes_s,
        pair_s=4 * blocks * model.head_size / hardware.flops,
        kv_s=kv_s * wide,
        words_s=4 * model.vocab_size / hardware.bandwidth_bytes_s,
        output_s=model.vocab_size * model.hidden_size * model.dtype_bytes * byte_s,
        heads=heads,
        blocks=blocks,
        longest=model.num_layers * wide**2,
    )


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
