"""A request that an emulated LLM instance is answering, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.emulate.replica_counts import ReplicaCounts
from stretto.model.tasks import Done, LLMEvent, Piece, Started


@dataclass(slots=True)
class RunningRequest:
    """A request of which not all has been reported.

    Attributes:
        heard: called with each event.
        on_token: called with the number of each token of the answer when it exists; None if nobody wants
            single tokens.
        lost: called if the replica forgets the request before it has ended.
        arrived_s, first_s, last_s: times of its arrival, its first token and its last report.
        num_prompt, num_output: number of tokens of its prompt and of its answer.
        finish: why the answer ends.
        stream: number of its sequence while `StepTicker` follows it.
    """

    heard: Callable[[LLMEvent], None]
    on_token: Callable[[int], None] | None
    lost: Callable[[], None]
    arrived_s: float
    num_prompt: int
    num_output: int
    finish: str
    last_s: float
    first_s: float | None = None
    stream: int | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether its tokens are reported one by one."""
        return self.on_token is not None

    def count_report(self, now_s: float, counts: ReplicaCounts) -> None:
        """Add a report of new tokens to the counts: the time to the first, or between two."""
        if self.first_s is None:
            self.first_s = now_s
            counts.first_token_s.observe(now_s - self.arrived_s)
            counts.num_prompt_tokens += self.num_prompt
        else:
            counts.between_tokens_s.observe(now_s - self.last_s)
        self.last_s = now_s

    def count(self, event: LLMEvent, now_s: float, counts: ReplicaCounts) -> int:
        """Add an event to the counts; return how many tokens of the prompt were cached, if it is the last."""
        match event:
            case Piece():
                self.count_report(now_s, counts)
            case Started():
                counts.queued_s.observe(now_s - self.arrived_s)
            case Done(usage=usage):
                if self.first_s is None:
                    counts.num_prompt_tokens += self.num_prompt
                if not self.is_streamed:
                    counts.num_output_tokens += self.num_output
                counts.num_finished_by[self.finish] += 1
                counts.request_s.observe(now_s - self.arrived_s)
                return usage.num_cached_tokens
        return 0
