"""Executes steps: everything between a `StepBatch` and the tokens chosen in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stretto.engines.transformer.attention import Chunk, Decodes, Keys, KVCache, StepAttention
from stretto.engines.transformer.config import ModelConfig, read_config
from stretto.engines.transformer.model import Transformer
from stretto.engines.transformer.sampler import Choice, Chosen, choose
from stretto.engines.transformer.weights import load_weights
from stretto.errors import ConfigError
from stretto.llm.sequence import Sequence
from stretto.llm.shared_prefixes import group_by_prefix
from stretto.llm.step_batch import Slice, StepBatch

MIN_SHARED_TOKENS = 128
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    """A step as tensors. Row i of the samples belongs to `sampling[i]`."""

    tokens_T: Tensor
    positions_T: Tensor
    attention: StepAttention
    sample_rows_S: Tensor
    sampling: list[Sequence]


class Runner:
    """A model, its KV cache, and the way through them."""

    def __init__(
        self, folder: Path, *, dtype: str, device: str, kv_bytes: int, block_tokens: int, shares_attention: bool
    ) -> None:
        """Raises ConfigError for a checkpoint, dtype or device that cannot be used, or too few `kv_bytes`."""
        if dtype not in _DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}: {', '.join(_DTYPES)}")
        try:
            where = torch.device(device)
            torch.empty(0, device=where)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device {device!r} cannot be used: {error}") from error
        self.config: ModelConfig = read_config(folder)
        self.num_blocks = kv_bytes // self._block_bytes(block_tokens, _DTYPES[dtype])
        if self.num_blocks < 1:
            raise ConfigError(f"kv_bytes is {kv_bytes}: one block takes {self._block_bytes(block_tokens, _DTYPES[dtype])}")
        weights = load_weights(folder, self.config, _DTYPES[dtype], where)
        self.model = Transformer(self.config, weights)
        self.kv = KVCache(self.config, self.num_blocks, block_tokens, _DTYPES[dtype], where)
        # Through a window no sequence sees a whole prefix.
        self._shares_attention = shares_attention and set(self.config.windows) == {None}

    def _block_bytes(self, block_tokens: int, dtype: torch.dtype) -> int:
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * block_tokens * dtype.itemsize

    @torch.inference_mode()
    def run(self, batch: StepBatch, choice_of: Callable[[Sequence, list[int]], Choice | None]) -> Mapping[int, list[Chosen]]:
        """Compute a step; by sequence id the tokens chosen, one for each repeat.

        Args:
            choice_of: how to choose a sequence's next token, given what it generated in this very batch.
        """
        self.kv.copy_blocks(batch.copies)
        chosen: dict[int, list[Chosen]] = {piece.sequence.id: [] for piece in batch.slices if piece.samples}
        slices = [piece for piece in batch.slices if piece.num_tokens]
        for repeat in range(batch.num_repeats if slices else 0):
            inputs = self.prepare(slices, repeat, chosen)
            logits_SV = self.forward(inputs)
            if logits_SV is None:
                break
            choices = [
                choice_of(sequence, [before.token for before in chosen[sequence.id]])
                for sequence in inputs.sampling
            ]
            for sequence, made in zip(inputs.sampling, choose(logits_SV, choices), strict=True):
                chosen[sequence.id].append(made)
        return chosen

    def forward(self, inputs: _Inputs) -> Tensor | None:
        """The logits of the rows that sample, (S, V), if there are any."""
        hidden_TE = self.model.forward(inputs.tokens_T, inputs.positions_T, inputs.attention, self.kv)
        if not inputs.sampling:
            return None
        if len(inputs.sampling) == len(hidden_TE):
            return self.model.logits(hidden_TE)
        return self.model.logits(hidden_TE[inputs.sample_rows_S])

    def prepare(self, slices: list[Slice], repeat: int, chosen: Mapping[int, list[Chosen]]) -> _Inputs:
        """Rows in the order chunks, then decodes group by group; and how they attend."""
        chunks = [piece for piece in slices if piece.num_tokens > 1 or not _is_decode(piece)]
        decodes = [piece for piece in slices if piece.num_tokens == 1 and _is_decode(piece)]
        tokens: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        sample_rows: list[int] = []
        sampling: list[Sequence] = []
        parts: list[Chunk | Decodes] = []
        size = self.kv.block_tokens

        def add(piece: Slice) -> None:
            sequence, first = piece.sequence, piece.start + repeat
            if repeat:
                tokens.append(chosen[sequence.id][-1].token)
            else:
                tokens.extend(sequence.tokens[first : first + piece.num_tokens])
            positions.extend(range(first, first + piece.num_tokens))
            blocks.extend(sequence.blocks[p // size] for p in range(first, first + piece.num_tokens))
            if piece.samples:
                sample_rows.append(len(tokens) - 1)
                sampling.append(sequence)

        for piece in chunks:
            start, end = len(tokens), piece.start + repeat + piece.num_tokens
            add(piece)
            keys = Keys(piece.sequence.blocks[: -(-end // size)], end, self.kv)
            parts.append(Chunk.of(start, len(tokens), keys, self.config.windows))
        for members, num_shared in self._groups(decodes):
            start = len(tokens)
            lengths = [piece.start + repeat + 1 for piece in members]
            tables = [
                piece.sequence.blocks[: -(-length // size)] for piece, length in zip(members, lengths, strict=True)
            ]
            for piece in members:
                add(piece)
            if len(members) == 1:
                keys = Keys(tables[0], lengths[0], self.kv)
                parts.append(Chunk.of(start, start + 1, keys, self.config.windows))
            else:
                parts.append(Decodes.of(start, tables, lengths, num_shared, self.kv, self.config.windows))
        device = self.kv.device
        positions_T = torch.tensor(positions, device=device)
        rows = self.kv.token_rows(torch.tensor(blocks, device=device), positions_T % size)
        return _Inputs(
            torch.tensor(tokens, device=device),
            positions_T,
            StepAttention(parts, rows, self.config.windows, self.config.heads),
            torch.tensor(sample_rows, device=device),
            sampling,
        )

    def _groups(self, decodes: list[Slice]) -> list[tuple[list[Slice], int]]:
        """Decodes that are attended together: those that share a prefix, the others by like length."""
        if not decodes:
            return []
        groups: list[tuple[list[Slice], int]] = []
        rest = decodes
        if self._shares_attention and len(decodes) > 1:
            min_blocks = -(-MIN_SHARED_TOKENS // self.kv.block_tokens)
            tables = [piece.sequence.blocks[: -(-(piece.start + 1) // self.kv.block_tokens)] for piece in decodes]
            sharers = group_by_prefix(tables, min_blocks)
            groups += [([decodes[m] for m in found.members], found.num_blocks) for found in sharers]
            taken = {member for found in sharers for member in found.members}
            rest = [piece for index, piece in enumerate(decodes) if index not in taken]
        by_length: dict[int, list[Slice]] = {}
        for piece in rest:
            by_length.setdefault(max(4, piece.start // self.kv.block_tokens).bit_length(), []).append(piece)
        return groups + [(members, 0) for members in by_length.values()]


def _is_decode(piece: Slice) -> bool:
    return piece.samples and piece.start + 1 == len(piece.sequence.tokens)
