"""The execution of steps: from a `StepBatch` to the chosen tokens."""

# ruff: noqa: N803, N806, N815  (tensors carry their shape as a suffix)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stretto.engines.transformer.attention import AttentionPart, Decodes, Keys, PrefillChunk, StepAttention
from stretto.engines.transformer.config import ModelConfig, read_config
from stretto.engines.transformer.decode_graphs import DecodeGraphs
from stretto.engines.transformer.device import device_of, has_kernels
from stretto.engines.transformer.kv_cache import KVCache
from stretto.engines.transformer.model import Transformer
from stretto.engines.transformer.paged_decodes import Group, PagedDecodes
from stretto.engines.transformer.sampler import choose
from stretto.engines.transformer.token_choice import Chosen, TokenChoice
from stretto.engines.transformer.weights import load_weights
from stretto.llm.sequence import TokenSequence
from stretto.llm.shared_prefixes import group_by_prefix
from stretto.llm.step_batch import Slice, StepBatch
from stretto.model.errors import ConfigError

MIN_SHARED_TOKENS = 128
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    """The tensors of a step. A token is chosen after each row in `sample_rows`, for the slices in
    `sampling`."""

    tokens_T: Tensor
    positions_T: Tensor
    attention: StepAttention
    sample_rows: list[int]
    sampling: list[TokenSequence]


def dtype_of(name: str) -> torch.dtype:
    """Return torch's type for the name "float32", "bfloat16" or "float16".

    Raises:
        ConfigError: the name is another one.
    """
    if name not in _DTYPES:
        raise ConfigError(f"unknown dtype {name!r}: {', '.join(_DTYPES)}")
    return _DTYPES[name]


class Runner:
    """A loaded model with the memory of its KV cache; it computes the steps that an LLM instance's scheduler
    has planned.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        device: str,
        kv_bytes: int,
        block_tokens: int,
        shares_attention: bool,
    ) -> None:
        """Load a model and allocate its KV cache.

        Raises:
            ConfigError: the checkpoint, dtype or device cannot be used, or `kv_bytes` is too small.
        """
        kind = dtype_of(dtype)
        where = device_of(device)
        self.config: ModelConfig = read_config(folder)
        self.num_blocks = kv_bytes // self._block_bytes(block_tokens, kind)
        if self.num_blocks < 1:
            raise ConfigError(
                f"kv_bytes must be at least {self._block_bytes(block_tokens, kind)} (one block), "
                f"got {kv_bytes}"
            )
        self._has_kernels = has_kernels(where)
        try:
            weights = load_weights(folder, self.config, kind, where)
            self.model = Transformer(self.config, weights, self._has_kernels)
            self.kv = KVCache(self.config, self.num_blocks, block_tokens, kind, where)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise ConfigError(
                f"{folder} with kv_bytes {kv_bytes} does not fit on {where}: {error}"
            ) from error
        self._graphs: DecodeGraphs | None = None
        if self._has_kernels:
            self._graphs = DecodeGraphs(self._logits, -(-self.config.context_tokens // block_tokens))
        # A sequence with a window does not see the whole prefix, and what it sees moves.
        self._is_plain = set(self.config.windows) == {None}
        self._shares_attention = shares_attention and self._is_plain
        self._last: _Inputs | None = None
        self._next_key: list[tuple[int, int, int]] = []

    def _block_bytes(self, block_tokens: int, dtype: torch.dtype) -> int:
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * block_tokens * dtype.itemsize

    @torch.inference_mode()
    def run(
        self, batch: StepBatch, choice_of: Callable[[TokenSequence], TokenChoice | None]
    ) -> Mapping[int, Chosen]:
        """Compute one step on the model; return the token chosen for each sequence that samples, by its id.

        Args:
            choice_of: function that returns how to choose a sequence's next token; None for the most likely
                token.
        """
        self.kv.copy_blocks(batch.copies)
        slices = [piece for piece in batch.slices if piece.num_tokens]
        inputs = self.prepare(slices) if slices else None
        logits_SV = self.forward(inputs) if inputs else None
        if inputs is None or logits_SV is None:
            return {}
        choices = [choice_of(sequence) for sequence in inputs.sampling]
        made = choose(logits_SV, choices)
        return {sequence.id: one for sequence, one in zip(inputs.sampling, made, strict=True)}

    def forward(self, inputs: _Inputs) -> Tensor | None:
        """Run a prepared step through the model, and return the logits of the next tokens.

        They are (sequences that need a token, vocabulary); None if the step only prefills and no next token
        is needed.
        """
        step = (inputs.tokens_T, inputs.positions_T, inputs.attention)
        if self._graphs is not None and self._graphs.takes(inputs.attention):
            return self._graphs.run(*step)
        hidden_TE = self.model.forward(*step, self.kv)
        if not inputs.sampling:
            return None
        if len(inputs.sampling) == len(hidden_TE):
            return self.model.logits(hidden_TE)
        return self.model.logits(hidden_TE[inputs.sample_rows])

    def _logits(self, tokens_T: Tensor, positions_T: Tensor, attention: StepAttention) -> Tensor:
        return self.model.logits(self.model.forward(tokens_T, positions_T, attention, self.kv))

    def prepare(self, slices: list[Slice]) -> _Inputs:
        """Return the input tensors of a step: rows of prompt chunks first, then decodes group by group."""
        key = [(piece.sequence.id, piece.start, piece.sequence.num_preemptions) for piece in slices]
        inputs = self._advance(key) or self._prepare(slices)
        can_advance = self._is_plain and all(
            isinstance(part, Decodes | PagedDecodes) for part in inputs.attention.parts
        )
        self._last = inputs if can_advance else None
        self._next_key = [(number, start + 1, times) for number, start, times in key]
        return inputs

    def _prepare(self, slices: list[Slice]) -> _Inputs:
        decodes: list[Slice] = []
        chunks: list[Slice] = []
        for piece in slices:
            (decodes if _is_decode(piece) else chunks).append(piece)
        tokens: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        parts: list[AttentionPart] = []
        groups: list[Group] = []
        rows: list[Slice] = []
        sample_rows: list[int] = []
        size, kv, windows = self.kv.block_tokens, self.kv, self.config.windows
        for piece in chunks:
            start, end = len(tokens), piece.start + piece.num_tokens
            table = piece.sequence.blocks
            tokens += piece.sequence.tokens[piece.start : end]
            positions += range(piece.start, end)
            blocks += [table[position // size] for position in range(piece.start, end)]
            parts.append(
                PrefillChunk.of(start, len(tokens), Keys(table[: -(-end // size)], end, kv), windows)
            )
            if piece.samples:
                rows.append(piece)
                sample_rows.append(len(tokens) - 1)
        first_decode = len(tokens)
        for group, num_shared in self._groups(decodes):
            start = len(tokens)
            ends = [piece.start + 1 for piece in group]
            tables = [
                piece.sequence.blocks[: -(-end // size)] for piece, end in zip(group, ends, strict=True)
            ]
            tokens += [piece.sequence.tokens[-1] for piece in group]
            positions += [end - 1 for end in ends]
            blocks += [table[-1] for table in tables]
            groups.append(Group(tables, ends, num_shared))
            rows += group
            sample_rows += range(start, len(tokens))
        parts += self._decode_parts(first_decode, groups)
        tokens_T, positions_T = kv.tensor(np.array([tokens, positions]))
        attention = StepAttention(parts, kv.token_rows(blocks, positions), windows, self.config.heads)
        return _Inputs(tokens_T, positions_T, attention, sample_rows, [piece.sequence for piece in rows])

    def _decode_parts(self, start: int, groups: list[Group]) -> list[AttentionPart]:
        """Parts of the decodes: one for all if kernels are used, else one for each group."""
        if self._has_kernels and groups:
            return [PagedDecodes.of(start, groups, self.config.heads, self.kv)]
        parts: list[AttentionPart] = []
        kv, windows = self.kv, self.config.windows
        for tables, lengths, num_shared in groups:
            if len(tables) > 1:
                parts.append(Decodes.of(start, tables, lengths, num_shared, kv, windows))
            else:
                parts.append(PrefillChunk.of(start, start + 1, Keys(tables[0], lengths[0], kv), windows))
            start += len(tables)
        return parts

    def _advance(self, key: list[tuple[int, int, int]]) -> _Inputs | None:
        """The last step's inputs with each position advanced by one, if nothing else changes; else None.

        This applies while the same sequences decode and none of them starts a block. That is so in most
        steps, and takes a fraction of the time of new inputs.
        """
        size = self.kv.block_tokens
        if self._last is None or key != self._next_key or any(start % size == 0 for _, start, _ in key):
            return None
        inputs = self._last
        tokens = [sequence.tokens[-1] for sequence in inputs.sampling]
        attention = inputs.attention
        for part in attention.parts:
            assert isinstance(part, Decodes | PagedDecodes)
            part.advance()
        attention.token_rows.add_(1)
        inputs.positions_T.add_(1)
        return replace(inputs, tokens_T=self.kv.tensor(np.array(tokens)))

    def _groups(self, decodes: list[Slice]) -> list[tuple[list[Slice], int]]:
        """Group decodes that are attended together: those that share a prefix, and others by similar
        length."""
        size = self.kv.block_tokens
        groups: list[tuple[list[Slice], int]] = []
        if self._shares_attention and sum(piece.start > MIN_SHARED_TOKENS for piece in decodes) > 1:
            # All blocks before the one that a decode writes to are full.
            tables = [piece.sequence.blocks[: piece.start // size + 1] for piece in decodes]
            sharers = group_by_prefix(tables, -(-MIN_SHARED_TOKENS // size))
            groups = [([decodes[member] for member in found.members], found.num_blocks) for found in sharers]
            taken = {member for found in sharers for member in found.members}
            decodes = [piece for index, piece in enumerate(decodes) if index not in taken]
        by_length: dict[int, list[Slice]] = {}
        for piece in decodes:
            by_length.setdefault(max(4, piece.start // size).bit_length(), []).append(piece)
        return groups + [(members, 0) for members in by_length.values()]


def _is_decode(piece: Slice) -> bool:
    return piece.samples and piece.num_tokens == 1
