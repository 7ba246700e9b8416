"""The replay of a recorded run: the production scheduler under the rules of the engine that was recorded.

The engine (vLLM 0.2) differs from ours in three things, which the replay has to know:

- A prompt is admitted as long as 1 % of the blocks stay free, whatever those on board will need next.
- A preempted sequence does not lose its blocks: they are copied to the host, and back when 1 % stays free
  next to them and to a block for everybody on board. Until then no new prompt is admitted.
- The log counts contexts in whole blocks.

Source: vLLM 0.2.2, core/scheduler.py and core/block_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.costs.recorded_order import in_order_of
from benchmarks.costs.recorded_runs import RealRun
from stretto.costs.shape import StepShape, shape_of
from stretto.costs.step import StepCost
from stretto.llm.cache.prefix_cache import CacheHit
from stretto.llm.local_scheduler import LocalScheduler, SchedulerConfig
from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import Slice

_BLOCK_TOKENS = 16
_MAX_RUNNING = 256
_MAX_PADDING = 256  # of the engine: tokens of padding in a prefill step
_KEPT_FREE = 0.01  # of the blocks
_MANY_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Replay:
    """What the scheduler makes of the requests of a run; no cost is in it.

    Attributes:
        prefills: steps.
        decodes: the first of so many steps, each a token longer than the one before.
        moved_blocks: copied to the host and back, each counted twice.
    """

    prefills: tuple[StepShape, ...]
    decodes: tuple[tuple[StepShape, int], ...]
    num_preemptions: int
    moved_blocks: int

    @property
    def num_decode_steps(self) -> int:
        """Of all sequences together."""
        return sum(repeats for _, repeats in self.decodes)

    @property
    def prefill_tokens(self) -> int:
        """Computed for prompts, and for what was preempted and lost."""
        return sum(shape.prefill_tokens for shape in self.prefills)

    def prefill_s(self, cost: StepCost) -> float:
        """Of all prefill steps."""
        return sum(map(cost.step_s, self.prefills))

    def decode_s(self, cost: StepCost) -> float:
        """Of all decode steps, without the copying."""
        return sum(cost.steps_s(shape, repeats) for shape, repeats in self.decodes)


class RecordedScheduler(LocalScheduler):
    """Ours, with the engine's rule of who has room."""

    def _has_room(self, sequence: TokenSequence, hit: CacheHit) -> bool:
        if not self.running:
            return True
        needed = self._tables.num_blocks(len(sequence.tokens))  # what is cached of them counts as available
        for other in self.running:
            if sequence.num_preemptions or not other.is_decoding:
                needed += self._tables.num_blocks(len(other.tokens)) - len(other.blocks)
        if sequence.num_preemptions:
            needed += 1
        return self.cache.num_available - needed >= int(_KEPT_FREE * self.config.num_blocks)


def replay(run: RealRun, seed: int = 0) -> Replay:
    """The run again, by the local scheduler with policy `prefill_first`.

    Requests go in as recorded, or, if the recorded order is not the real one, as the real prefill steps have
    their prompts. As all are there from the beginning, what the steps cost changes nothing.
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
    """Contexts as the log has them: half a block longer each, on average over steps."""
    half = (_BLOCK_TOKENS - 1) / 2
    return shape._replace(
        context_tokens=round(shape.context_tokens + half * shape.num_decodes),
        max_context_tokens=round(shape.max_context_tokens + half),
    )


def _prefill_steps(prompts: Sequence[Slice], max_batch_tokens: int) -> Iterator[StepShape]:
    """The steps of an engine which pads prompts to the longest, as long as that adds little."""
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
