"""Replays a recorded run with the production scheduler under the rules of the recorded engine.

The recorded engine (vLLM 0.2) differs from ours in three points:

- A prompt is admitted as long as 1 % of the blocks stay free, whatever the running sequences will need next.
- The blocks of a preempted sequence are copied to the host. They are copied back when 1 % of the blocks stays
  free beside them and one block for each running sequence. Until then no new prompt is admitted.
- The log counts contexts in whole blocks.

Source: vLLM 0.2.2, core/scheduler.py and core/block_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.costs.recorded_order import in_order_of
from benchmarks.costs.recorded_runs import RealRun
from benchmarks.costs.shapes import shape_of
from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.llm.cache.prefix_cache import CacheHit
from stretto.llm.local_scheduler import LocalScheduler, SchedulerConfig
from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import Slice

_BLOCK_TOKENS = 16
_MAX_RUNNING = 256
_MAX_PADDING = 256  # the engine's limit for tokens of padding in a prefill step
_KEPT_FREE = 0.01  # share of the blocks
_MANY_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Replay:
    """The steps that the scheduler makes of the requests of a run, without costs.

    Attributes:
        prefills: shapes of the prefill steps.
        decodes: shape of the first of several decode steps, and their number; sequences grow by one token
            each.
        moved_blocks: number of blocks copied to the host and back; each counts twice.
    """

    prefills: tuple[StepShape, ...]
    decodes: tuple[tuple[StepShape, int], ...]
    num_preemptions: int
    moved_blocks: int

    @property
    def num_decode_steps(self) -> int:
        """Number of decode steps."""
        return sum(repeats for _, repeats in self.decodes)

    @property
    def prefill_tokens(self) -> int:
        """Number of prompt tokens computed, recomputations after preemption included."""
        return sum(shape.prefill_tokens for shape in self.prefills)

    def prefill_s(self, cost: StepCost) -> float:
        """Seconds of all prefill steps."""
        return sum(map(cost.step_s, self.prefills))

    def decode_s(self, cost: StepCost) -> float:
        """Seconds of all decode steps, without copies of blocks."""
        return sum(cost.steps_s(shape, repeats) for shape, repeats in self.decodes)


class RecordedScheduler(LocalScheduler):
    """Our scheduler with the recorded engine's admission rule."""

    def _has_room(self, sequence: TokenSequence, hit: CacheHit) -> bool:
        if not self.running:
            return True
        needed = self._tables.num_blocks(len(sequence.tokens))  # cached blocks count as available
        for other in self.running:
            if sequence.num_preemptions or not other.is_decoding:
                needed += self._tables.num_blocks(len(other.tokens)) - len(other.blocks)
        if sequence.num_preemptions:
            needed += 1
        return self.cache.num_available - needed >= int(_KEPT_FREE * self.config.num_blocks)


def replay(run: RealRun, seed: int = 0) -> Replay:
    """Replay a run with the local scheduler and its policy `prefill_first`.

    Requests are submitted in the recorded order or, if that is not the real one, in the order of the prompts
    in the real prefill steps. All requests are there from the beginning, so costs do not change the steps.
    """
    requests = list(run.requests)
    if not run.in_order:
        prefills_then = [step.shape for step in run.steps if step.shape.num_prefills]
        requests = in_order_of(prefills_then, requests, seed)
    config = SchedulerConfig(
        run.num_blocks, _BLOCK_TOKENS, _MAX_RUNNING, run.max_batch_tokens, "prefill_first"
    )
    scheduler = RecordedScheduler(config)
    num_tokens = 0
    for number, (prompt, output) in enumerate(requests):
        scheduler.add(TokenSequence(number, list(range(num_tokens, num_tokens + prompt)), output), 0.0)
        num_tokens += prompt
    moved_blocks = 0
    prompts: list[Slice] = []
    prefills: list[StepShape] = []
    decodes: list[tuple[StepShape, int]] = []
    while scheduler.has_work():
        batch = scheduler.schedule(_MANY_STEPS)
        if batch.slices[0].sequence.is_decoding:
            prefills += _prefill_steps(prompts, run.max_batch_tokens)
            prompts = []
            shape = shape_of((piece.start, 1, True) for piece in batch.slices)
            decodes.append((in_blocks(shape), batch.num_repeats))
        else:
            for piece in batch.slices:
                if run.swaps and piece.sequence.num_preemptions:
                    moved_blocks += 2 * -(-len(piece.sequence.tokens) // _BLOCK_TOKENS)
                else:
                    prompts.append(piece)
        sampled = {piece.sequence.id: [0] * batch.num_repeats for piece in batch.slices if piece.samples}
        scheduler.complete(batch, sampled)
        for piece in batch.slices:
            if not piece.sequence.num_remaining:
                scheduler.finish(piece.sequence)
    prefills += _prefill_steps(prompts, run.max_batch_tokens)
    return Replay(tuple(prefills), tuple(decodes), scheduler.num_preemptions, moved_blocks)


def in_blocks(shape: StepShape) -> StepShape:
    """Round contexts as the log does: half a block longer each, on average over steps."""
    half = (_BLOCK_TOKENS - 1) / 2
    return shape._replace(
        context_tokens=round(shape.context_tokens + half * shape.num_decodes),
        max_context_tokens=round(shape.max_context_tokens + half),
    )


def _prefill_steps(prompts: Sequence[Slice], max_batch_tokens: int) -> Iterator[StepShape]:
    """Yield the prefill steps of an engine that pads prompts to the longest, as long as that adds little."""
    group: list[tuple[int, int, bool]] = []
    for piece in prompts:
        num_tokens = piece.start + piece.num_tokens
        lengths = [length for _, length, _ in group] + [num_tokens]
        padded = len(lengths) * max(lengths)
        if group and (padded > max_batch_tokens or padded - sum(lengths) > _MAX_PADDING):
            yield shape_of(group)
            group = []
        group.append((0, num_tokens, False))
    if group:
        yield shape_of(group)
