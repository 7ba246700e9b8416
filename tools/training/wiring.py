"""Sets initial weights with a circuit for copying, so that training need not discover it.

A transformer learns to look things up and copy them in a sudden step after millions of tokens (Olsson et al.
2022, "In-context Learning and Induction Heads"). That takes too long on two CPU cores, so the first weights
have a rough circuit, which training then refines together with all other weights:

    layer 0   each token fetches the three tokens before it, and learns in which part of the prompt it is
    layer 1   a context token that also stands in the question is marked with its rarity;
              each token fetches the first three tokens of its sentence
    layer 2   tokens of the answer fetch, from marked tokens, how the best sentence begins
    layer 3+  tokens of the answer find the place that follows the same three tokens in the sentence that
              begins so, and copy the token there ("induction")

The residual stream is divided into the parts that `ResidualLayout` names. Training may mix them later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import Parameter

from tools.training.network import Attention, Network
from tools.training.questions import STOP_WORDS
from tools.training.tokenizer import BOS, EOS, MARKERS, token_id

_STEM_CHARS = 5
_SLOW_PAIR = 10  # from here on, a turn takes longer than the context
_BIAS_PAIRS = 5  # the slowest are for single dimensions
_ANSWER_MARKERS = ("\nAnswer:", "\nJSON:", "\nSummary:")


class ResidualLayout(NamedTuple):
    """Parts of the residual stream, as half-open ranges of dimensions."""

    lexical: slice = slice(0, 120)
    feature: slice = slice(120, 128)  # space, capital, capitals, digit, mark, sentence end, stop word, rarity
    sentence_end: int = 125
    rarity: int = 127
    constant: int = 128
    begin: int = 129
    marker: slice = slice(130, 138)
    matched: int = 138
    in_text: int = 139
    in_question: int = 140
    in_source: int = 141
    in_answer: int = 142
    after_end: tuple[int, int, int] = (143, 144, 145)
    before: tuple[slice, slice, slice] = (slice(146, 194), slice(194, 222), slice(222, 242))
    first: tuple[slice, slice, slice] = (slice(242, 270), slice(270, 290), slice(290, 304))
    filler: int = 304


LAYOUT = ResidualLayout()


def token_vectors(
    tokenizer: Tokenizer, rarity: Sequence[float], hidden: int, generator: torch.Generator
) -> Tensor:
    """Make embeddings in which forms of a word are near each other, (vocabulary, hidden).

    A vector consists of the word in lower case, the word's stem, and how the word is written.
    """
    at = LAYOUT
    size = at.lexical.stop - at.lexical.start
    known: dict[str, Tensor] = {}

    def random_unit(key: str) -> Tensor:
        if key not in known:
            vector = torch.randn(size, generator=generator)
            known[key] = vector / vector.norm()
        return known[key]

    vectors = 0.01 * torch.randn(tokenizer.get_vocab_size(), hidden, generator=generator)
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        raw = tokenizer.id_to_token(token) or ""
        if text == "\ufffd" or raw in (BOS, *MARKERS):
            text = raw
        word = text.strip()
        key = word.casefold()
        vectors[token, at.lexical] += 0.65 * random_unit(f"word {key}") + 0.65 * random_unit(
            f"stem {key[:_STEM_CHARS]}"
        )
        written = (
            raw.startswith("Ġ"),
            word[:1].isupper(),
            word.isupper() and len(word) > 1,
            word[:1].isdigit(),
            not word[:1].isalnum(),
            word[:1] in (".", "!", "?") or "\n" in text,
            key in STOP_WORDS,
        )
        for place, holds in enumerate(written):
            vectors[token, at.feature.start + place] += 0.35 if holds else -0.05
        vectors[token, at.sentence_end] = 1.0 if written[5] or raw in (BOS, *MARKERS) else 0.0
        vectors[token, at.rarity] = 0.0 if raw in (BOS, EOS, *MARKERS) else rarity[token]
        vectors[token, at.constant] = 1.0
    # A query without a match attends to BOS, which must carry nothing.
    vectors[token_id(tokenizer, BOS), at.lexical] = 0.0
    vectors[token_id(tokenizer, BOS), at.feature] = 0.0
    vectors[token_id(tokenizer, BOS), at.begin] = 1.0
    for number, marker in enumerate(MARKERS):
        vectors[token_id(tokenizer, marker), at.marker.start + number] = 1.0
    # All vectors have the same length, so that the norm before a layer keeps the constant equal in all.
    vectors[:, at.filler] = (_LENGTHS[0] ** 2 - vectors.square().sum(1)).clamp(min=0).sqrt()
    return vectors


def rarities(counts: Mapping[int, int], vocabulary: int) -> list[float]:
    """Rarity of each token by the number of sentences with it: 0 if in every tenth, 1 if in hardly any."""
    total = max(counts.values(), default=1) * 10
    top = math.log(total)
    return [
        max(0.0, min(1.0, math.log(total / (10.0 * (1 + counts.get(n, 0)))) / (top - 4)))
        for n in range(vocabulary)
    ]


class _Wiring:
    """Sets the projections of one attention; the norm before it multiplies vectors by `scale`."""

    def __init__(
        self, attention: Attention, scale: float, rope_theta: float, generator: torch.Generator
    ) -> None:
        self._attention, self._scale, self._generator = attention, scale, generator
        self._dim = attention.head_dim
        self._theta = rope_theta
        half = self._dim // 2
        stop = half - _BIAS_PAIRS
        self._slow = [*range(_SLOW_PAIR, stop), *range(half + _SLOW_PAIR, half + stop)]
        self._biases = [0] * attention.heads

    def _rows(self, projection: Tensor, head: int) -> Tensor:
        return projection[head * self._dim : (head + 1) * self._dim]

    def clear(self, head: int) -> None:
        with torch.no_grad():
            for linear in (self._attention.q_proj, self._attention.k_proj, self._attention.v_proj):
                self._rows(linear.weight, head).mul_(0.1)
            self._attention.o_proj.weight[:, head * self._dim : (head + 1) * self._dim].mul_(0.1)

    def _strength(self, logit: float) -> float:
        """Weight on both sides that gives this logit for two parts of length 1."""
        return math.sqrt(logit * math.sqrt(self._dim)) / self._scale

    def position(self, head: int, offset: int, logits: Mapping[int, float]) -> None:
        """Prefer the token `offset` back; `logits` has the added logit for each pair of dimensions."""
        q, k = (self._rows(p.weight, head) for p in (self._attention.q_proj, self._attention.k_proj))
        for pair, logit in logits.items():
            angle = offset * self._theta ** (-2 * pair / self._dim)
            weight = self._strength(logit)
            q[pair, LAYOUT.constant] += weight * math.cos(angle)
            q[pair + self._dim // 2, LAYOUT.constant] -= weight * math.sin(angle)
            k[pair, LAYOUT.constant] += weight

    def recency(self, head: int, logits: Mapping[int, float]) -> None:
        """Prefer near tokens; `logits` has, for each pair of dimensions, the loss a quarter of its turn
        away."""
        q, k = (self._rows(p.weight, head) for p in (self._attention.q_proj, self._attention.k_proj))
        for pair, logit in logits.items():
            weight = self._strength(logit)
            q[pair + self._dim // 2, LAYOUT.constant] += weight
            k[pair, LAYOUT.constant] += weight

    def bias(self, head: int, query: int | slice, key: int | slice, logit: float) -> None:
        """Let queries with dimension `query` attend to keys with dimension `key`; uses one of the slowest
        pairs."""
        q, k = (self._rows(p.weight, head) for p in (self._attention.q_proj, self._attention.k_proj))
        pair = self._dim // 2 - 1 - self._biases[head]
        self._biases[head] += 1
        assert self._biases[head] <= _BIAS_PAIRS
        weight = self._strength(abs(logit))
        q[pair, query] += math.copysign(weight, logit)
        k[pair, key] += weight

    def match(self, head: int, pairs: Sequence[tuple[slice, slice, Tensor | None, float]]) -> None:
        """Let queries attend to keys with the same content.

        Args:
            pairs: (part of the query, part of the key, projection before the comparison, logit) of each
                content.
        """
        q, k = (self._rows(p.weight, head) for p in (self._attention.q_proj, self._attention.k_proj))
        for in_query, in_key, projection, logit in pairs:
            size = in_key.stop - in_key.start
            mix = torch.empty(len(self._slow), size)
            torch.nn.init.orthogonal_(mix, generator=self._generator)
            mix *= math.sqrt(max(1.0, size / len(self._slow)))
            weight = self._strength(logit)
            q[self._slow, in_query] += weight * (mix if projection is None else mix @ projection)
            k[self._slow, in_key] += weight * mix

    def carry(self, head: int, parts: Sequence[tuple[slice, slice, Tensor | None, float]]) -> None:
        """Copy parts of attended tokens: (from, to, projection, gain)."""
        v = self._rows(self._attention.v_proj.weight, head)
        o = self._attention.o_proj.weight[:, head * self._dim : (head + 1) * self._dim]
        used = 0
        for source, target, projection, gain in parts:
            size = target.stop - target.start
            window = slice(used, used + size)
            v[window, source] += (torch.eye(size) if projection is None else projection) / math.sqrt(
                self._scale
            )
            o[target, window] += gain * torch.eye(size) / math.sqrt(self._scale)
            used += size
        assert used <= self._dim


def wire(network: Network, vectors: Tensor, generator: torch.Generator) -> None:
    """Overwrite fresh weights with the circuit."""
    at, config = LAYOUT, network.config
    with torch.no_grad():
        network.embed_tokens.weight.copy_(vectors)
        network.norm.weight.fill_(1.6)
        for layer in network.layers:
            for parameter in layer.parameters():
                if parameter.ndim == 2:
                    parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
        sizes = [120, *(part.stop - part.start for part in at.before)]
        folds = [
            torch.randn(small, large, generator=generator) / math.sqrt(small)
            for large, small in pairwise(sizes)
        ]
        heights = 120, sizes[2], sizes[3]
        shorter = [
            torch.randn(part.stop - part.start, height, generator=generator)
            / math.sqrt(part.stop - part.start)
            for part, height in zip(at.first, heights, strict=True)
        ]
        wirings = [
            _Wiring(layer.self_attn, math.sqrt(config.hidden) / length, config.rope_theta, generator)
            for layer, length in zip(network.layers, _LENGTHS, strict=True)
        ]
        _wire_neighbours(wirings[0], (folds[0], folds[1] @ folds[0], folds[2] @ folds[1] @ folds[0]))
        _wire_sentences(wirings[1], shorter)
        _wire_choice(wirings[2])
        _wire_induction(wirings[3], folds)


_LENGTHS = (2.1, 2.8, 3.2, 3.8, 4.2)


def wired_parameters(network: Network) -> list[Parameter]:
    """Parameters that the circuit uses: all up to the attention of the last layer but one."""
    *lower, inducing, _ = network.layers
    modules = [network.embed_tokens, *lower, inducing.input_layernorm, inducing.self_attn]
    return [parameter for module in modules for parameter in module.parameters()]


def _one(place: int) -> slice:
    return slice(place, place + 1)


def _wire_neighbours(wiring: _Wiring, hashes: Sequence[Tensor]) -> None:
    at = LAYOUT
    for head, (offset, target) in enumerate(zip((1, 2, 3), at.before, strict=True)):
        wiring.clear(head)
        wiring.position(head, offset, {0: 12, 1: 12, 2: 12, 3: 12})
        wiring.carry(
            head,
            [
                (at.lexical, target, hashes[head], 1.0),
                (_one(at.sentence_end), _one(at.after_end[head]), None, 1.0),
            ],
        )
    section = 3
    wiring.clear(section)
    wiring.bias(section, at.constant, at.marker, 14)
    kinds = {name: at.marker.start + n for n, name in enumerate(MARKERS)}
    # Attention is spread over all markers so far: each takes back what the one before it has said.
    to_section: dict[int, Tensor] = {}
    for name, place in kinds.items():
        text, question, source, answer = torch.eye(4)
        if name == "\nQuestion: ":
            change = question
        elif name in _ANSWER_MARKERS:
            change = answer - source
        elif name == "\nText: ":
            change = source - question + text
        elif name == "\nDraft: ":
            change = torch.zeros(4)
        else:
            change = source - question
        to_section[place] = change
    projection = torch.stack([to_section[place] for place in range(at.marker.start, at.marker.stop)], dim=1)
    wiring.carry(section, [(at.marker, slice(at.in_text, at.in_answer + 1), projection, 1.0)])


def _wire_sentences(wiring: _Wiring, shorter: Sequence[Tensor]) -> None:
    at = LAYOUT
    for head in (0, 2, 3):
        wiring.clear(head)
        wiring.match(head, [(at.lexical, at.lexical, None, 18)])
        wiring.bias(head, at.constant, at.in_question, 16)
        wiring.bias(head, at.constant, at.begin, 18)
        wiring.carry(head, [(_one(at.in_question), _one(at.matched), None, 0.4)])
    wiring.clear(1)
    wiring.bias(1, at.constant, at.after_end[0], 60)
    wiring.bias(1, at.constant, at.sentence_end, -80)
    wiring.bias(1, at.in_answer, at.begin, 900)
    wiring.recency(1, {6: 25, 7: 40, 8: 60, 9: 60})
    sources = at.lexical, at.before[1], at.before[2]
    wiring.carry(1, [(s, t, p, 1.0) for s, t, p in zip(sources, at.first, shorter, strict=True)])


def _wire_choice(wiring: _Wiring) -> None:
    at = LAYOUT
    wiring.clear(0)
    wiring.bias(0, at.in_answer, at.matched, 24)
    wiring.bias(0, at.in_answer, at.rarity, 16)
    wiring.bias(0, at.in_answer, at.in_source, 60)
    parts = [(part, part, None, 2.5) for part in at.first]
    wiring.carry(0, parts)


def _wire_induction(wiring: _Wiring, folds: Sequence[Tensor]) -> None:
    at = LAYOUT
    half = slice(0, 60), slice(60, 120)
    opening = slice(at.first[0].start, at.first[-1].stop)
    for head in range(2):
        wiring.clear(head)
        pairs = [
            (at.lexical, at.before[0], folds[0], 10.0),
            (at.before[0], at.before[1], folds[1], 5.0),
            (at.before[1], at.before[2], folds[2], 3.0),
            (opening, opening, None, 1.0),
        ]
        wiring.match(head, pairs)
        parts: list[tuple[slice, slice, Tensor | None, float]] = [(half[head], half[head], None, 4.0)]
        if head == 0:
            parts.append(
                (
                    slice(at.feature.start, at.feature.start + 4),
                    slice(at.feature.start, at.feature.start + 4),
                    None,
                    4.0,
                )
            )
        wiring.carry(head, parts)
    for head in (2, 3):
        wiring.clear(head)
        wiring.match(head, [(opening, opening, None, 12.0)])
        wiring.bias(head, at.constant, at.in_source, 50)
        wiring.bias(head, at.constant, at.begin, 80)
        wiring.bias(head, at.constant, at.sentence_end, -120)
        wiring.bias(head, at.marker.start + MARKERS.index("\nAnswer:"), at.after_end[0], 100)
        # A verdict opens no sentence.
        wiring.bias(head, at.in_text, at.begin, 500)
        carried: list[tuple[slice, slice, Tensor | None, float]] = [
            (half[head - 2], half[head - 2], None, 4.0)
        ]
        if head == 2:
            written = slice(at.feature.start, at.feature.start + 4)
            carried.append((written, written, None, 4.0))
        wiring.carry(head, carried)
