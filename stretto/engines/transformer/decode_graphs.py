"""Runs decode steps as CUDA graphs: hundreds of kernels are enqueued at once instead of one by one.

A graph reads and writes fixed memory, so a step's inputs are copied there. Steps with the same numbers of
sequences and tiles use the same graph, for any lengths of sequences.
"""

# ruff: noqa: N803, N815  (tensors carry their shape as a suffix)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.engines.transformer.attention import StepAttention
from stretto.engines.transformer.paged_decodes import PagedDecodes

MAX_GRAPHS = 64
Forward = Callable[[Tensor, Tensor, StepAttention], Tensor]


@dataclass(slots=True)
class _Step:
    """Fixed inputs of a step, and the function that runs its graph and returns its fixed output, once
    captured.
    """

    tokens_T: Tensor
    positions_T: Tensor
    attention: StepAttention
    decodes: PagedDecodes
    replay: Callable[[], Tensor] | None = None

    def load(self, tokens_T: Tensor, positions_T: Tensor, attention: StepAttention) -> None:
        """Copy a step's inputs into the fixed ones."""
        decodes = _only_part(attention)
        self.tokens_T.copy_(tokens_T)
        self.positions_T.copy_(positions_T)
        self.attention.token_rows.copy_(attention.token_rows)
        self.decodes.tables_BW[:, : decodes.tables_BW.shape[1]].copy_(decodes.tables_BW)
        self.decodes.lengths_B.copy_(decodes.lengths_B)
        self.decodes.num_shared_B.copy_(decodes.num_shared_B)
        self.decodes.tiles_X2.copy_(decodes.tiles_X2)


class DecodeGraphs:
    """The CUDA graphs of one model's decode steps, captured when a kind of step occurs for the second time.

    A graph replays all kernels of a step at once, which takes less time than starting them one by one.
    """

    def __init__(
        self,
        forward: Forward,
        max_blocks: int,
        capture: Callable[[Callable[[], Tensor]], Callable[[], Tensor]] | None = None,
    ) -> None:
        """
        Args:
            forward: computes logits from tokens, positions and attention; enqueues kernels and never waits.
            max_blocks: largest number of blocks of one sequence.
            capture: records the kernels that a function enqueues; returns a function that runs them again.
        """
        self._forward = forward
        self._max_blocks = max_blocks
        self._capture = capture or _cuda_capture()
        self._steps: dict[tuple[int, int, int], _Step] = {}

    @staticmethod
    def takes(attention: StepAttention) -> bool:
        """Return whether a step can run as a CUDA graph: it decodes only and prefills nothing."""
        return len(attention.parts) == 1 and isinstance(attention.parts[0], PagedDecodes)

    def run(self, tokens_T: Tensor, positions_T: Tensor, attention: StepAttention) -> Tensor:
        """Return the logits of a step that only decodes; they are valid until the next step.

        The first step of a kind runs without a graph, and compiles the kernels. The second is captured as a
        graph, which later ones replay.
        """
        decodes = _only_part(attention)
        key = (len(tokens_T), len(decodes.tiles_X2), decodes.tile_rows)
        with torch.cuda.device_of(tokens_T):  # type: ignore[no-untyped-call]
            if (step := self._steps.get(key)) is None:
                step = self._steps[key] = self._make(tokens_T, positions_T, attention)
                step.load(tokens_T, positions_T, attention)
                return self._forward(step.tokens_T, step.positions_T, step.attention)
            step.load(tokens_T, positions_T, attention)
            if step.replay is None:
                fixed = (step.tokens_T, step.positions_T, step.attention)
                step.replay = self._capture(lambda: self._forward(*fixed))
            return step.replay()

    def _make(self, tokens_T: Tensor, positions_T: Tensor, attention: StepAttention) -> _Step:
        if len(self._steps) == MAX_GRAPHS:
            del self._steps[next(iter(self._steps))]
        decodes = _only_part(attention)
        fixed = PagedDecodes(
            0,
            decodes.tables_BW.new_zeros(len(tokens_T), self._max_blocks),
            torch.empty_like(decodes.lengths_B),
            torch.empty_like(decodes.num_shared_B),
            torch.empty_like(decodes.tiles_X2),
            decodes.tile_rows,
        )
        rows = torch.empty_like(attention.token_rows)
        return _Step(
            torch.empty_like(tokens_T),
            torch.empty_like(positions_T),
            StepAttention([fixed], rows, attention.windows, attention.heads),
            fixed,
        )


def _only_part(attention: StepAttention) -> PagedDecodes:
    (part,) = attention.parts
    assert isinstance(part, PagedDecodes)
    return part


def _cuda_capture() -> Callable[[Callable[[], Tensor]], Callable[[], Tensor]]:
    """Make a function that captures CUDA graphs, which share their memory for intermediate results."""
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Threads of other instances may allocate memory during the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            output = work()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    return capture
