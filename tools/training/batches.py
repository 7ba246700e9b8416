"""Makes batches of tokens from examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from tools.training.examples import ExampleMaker
from tools.training.tokenizer import PromptEncoder

PROMPT_WEIGHT = 0.3
OPENING_WEIGHTS = (3.0, 2.0, 2.0)  # an answer's first tokens choose its sentence, the rest follow
_PROMPT_SHARE = 0.1  # share of a prompt's tokens that are predicted too
_ROUND = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch.

    Attributes:
        tokens: token ids, (sequences, length).
        chosen: indices in the flattened tokens after which `targets` are to be predicted, with `weights`.
    """

    tokens: Tensor
    chosen: Tensor
    targets: Tensor
    weights: Tensor
    num_tokens: int


def block_of_batches(
    maker: ExampleMaker,
    encoder: PromptEncoder,
    rng: Random,
    *,
    num_examples: int,
    batch_tokens: int,
    max_words: int,
) -> Iterator[Batch]:
    """Yield batches of `num_examples` examples, with similar lengths together, in random order."""
    rows: list[tuple[list[int], list[int]]] = []
    while len(rows) < num_examples:
        example = maker.make(rng, max_words)
        prompt = encoder.prompt(example.prompt, example.values, example.constants)
        answer = encoder.answer(example.answer)
        if len(prompt) + len(answer) <= batch_tokens:
            rows.append((prompt, answer))
    rows.sort(key=lambda row: len(row[0]) + len(row[1]))
    groups: list[list[tuple[list[int], list[int]]]] = [[]]
    for row in rows:
        if (len(groups[-1]) + 1) * _rounded(len(row[0]) + len(row[1])) > batch_tokens:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    for group in groups:
        yield _batch(group, encoder.eos, rng)


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND


def _batch(rows: list[tuple[list[int], list[int]]], filler: int, rng: Random) -> Batch:
    width = _rounded(max(len(prompt) + len(answer) for prompt, answer in rows))
    tokens = torch.full((len(rows), width), filler)
    chosen: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    for number, (prompt, answer) in enumerate(rows):
        tokens[number, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        sampled = sorted(rng.sample(range(1, len(prompt)), int(_PROMPT_SHARE * len(prompt))))
        chosen += [number * width + place - 1 for place in sampled]
        targets += [prompt[place] for place in sampled]
        weights += [PROMPT_WEIGHT] * len(sampled)
        start = number * width + len(prompt) - 1
        chosen += range(start, start + len(answer))
        targets += answer
        weights += [*OPENING_WEIGHTS[: len(answer)], *[1.0] * (len(answer) - len(OPENING_WEIGHTS))]
    num_tokens = sum(len(prompt) + len(answer) for prompt, answer in rows)
    return Batch(tokens, torch.tensor(chosen), torch.tensor(targets), torch.tensor(weights), num_tokens)
