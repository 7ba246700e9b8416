"""Chooses the next tokens from their logits.

The choice for a sequence depends on its logits, its tokens and its seed. It does not depend on the other
sequences of the batch, or on how the sequence's tokens were divided into steps.
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from stretto.engines.transformer.token_choice import Chosen, TokenChoice, TokenLogprobs
from stretto.llm.output.sampling import noise_seed
from stretto.model.tasks import Decode


def choose(logits_SV: Tensor, choices: list[TokenChoice | None]) -> list[Chosen]:
    """Choose the next token of each row of logits, by the sampling settings in `choices`.

    None in `choices` takes the most likely token.
    """
    best = logits_SV.argmax(1).tolist()
    return [
        Chosen(token) if choice is None else _choose(logits_SV[row], choice)
        for row, (token, choice) in enumerate(zip(best, choices, strict=True))
    ]


def _choose(logits_V: Tensor, choice: TokenChoice) -> Chosen:
    decode = choice.decode
    if choice.scored:
        scored = logits_V.float().log_softmax(-1)[list(choice.scored)].tolist()
        pairs = tuple(zip(choice.scored, scored, strict=True))
        return Chosen(choice.scored[0], TokenLogprobs(*pairs[0], pairs))
    adjusted_V = _penalise(logits_V, choice)
    if decode.temperature == 0:
        token = int(adjusted_V.argmax())
    else:
        token = _sample(adjusted_V / decode.temperature, decode, len(choice.generated))
    return Chosen(token, None if decode.logprobs is None else _logprobs(logits_V, token, decode.logprobs))


def _penalise(logits_V: Tensor, choice: TokenChoice) -> Tensor:
    decode = choice.decode
    logits_V = logits_V.clone()
    if decode.repetition_penalty != 1:
        seen = torch.tensor(sorted({*choice.prompt, *choice.generated}), device=logits_V.device)
        values = logits_V[seen]
        penalty = decode.repetition_penalty
        logits_V[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if choice.generated and (decode.presence_penalty or decode.frequency_penalty):
        counts = Counter(choice.generated)
        tokens = torch.tensor(list(counts), device=logits_V.device)
        times = torch.tensor(list(counts.values()), device=logits_V.device, dtype=logits_V.dtype)
        logits_V[tokens] -= decode.presence_penalty + decode.frequency_penalty * times
    if choice.allowed is not None:
        logits_V = logits_V.masked_fill(~choice.allowed.to(logits_V.device), -torch.inf)
    elif len(choice.generated) < decode.min_tokens:
        logits_V[sorted(choice.ending)] = -torch.inf
    return logits_V


def _sample(logits_V: Tensor, decode: Decode, position: int) -> int:
    """Draw a token with exponential noise: the largest ratio of probability to noise is a fair draw."""
    if decode.top_k:
        kth = logits_V.topk(min(decode.top_k, logits_V.numel())).values[-1]
        logits_V = logits_V.masked_fill(logits_V < kth, -torch.inf)
    probabilities_V = logits_V.softmax(-1)
    if decode.top_p < 1:
        sorted_V, order_V = probabilities_V.sort(descending=True, stable=True)
        is_beyond_V = sorted_V.cumsum(-1) - sorted_V >= decode.top_p
        probabilities_V = probabilities_V.index_fill(0, order_V[is_beyond_V], 0)
    if decode.min_p:
        least = decode.min_p * probabilities_V.max()
        probabilities_V = probabilities_V.masked_fill(probabilities_V < least, 0)
    generator = torch.Generator().manual_seed(noise_seed(decode.seed, position))
    noise_V = torch.empty(logits_V.shape).exponential_(generator=generator).to(logits_V.device)
    return int((probabilities_V / noise_V).argmax())


def _logprobs(logits_V: Tensor, token: int, num_top: int) -> TokenLogprobs:
    logprobs_V = logits_V.log_softmax(-1)
    top = logprobs_V.topk(num_top)
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return TokenLogprobs(token, float(logprobs_V[token]), pairs)
