"""A task on board of a simulated LLM instance, and how much of its output has been told."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.llm.sequence import Sequence
from stretto.sim.saying import Said
from stretto.tasks import LLMEvent, LLMTask, Piece


@dataclass(slots=True)
class OnBoard:
    """A text is told when its first token exists and when it ends (and in between whenever it is asked),
    items of lists when they are complete.

    Attributes:
        said: the whole output, and `ids` its tokens; None for a prefill.
        stop: the length of the sequence at which there is something to tell.
        told_s: when something was told last.
    """

    task: LLMTask
    sequence: Sequence
    said: Said | None
    ids: list[int]
    stop: int
    told_s: float = 0.0
    num_items_told: int = 0
    num_chars_told: int = 0

    def next_ids(self, num_tokens: int) -> list[int]:
        """The tokens that are sampled next."""
        place = len(self.sequence.tokens) - self.sequence.num_prompt_tokens
        return self.ids[place : place + num_tokens]

    def tell(self, now_s: float, told: list[LLMEvent]) -> bool:
        """Append what there is to say to `told`; whether the output is over. There has to be some of it."""
        said, num_output = self.said, self.sequence.num_generated
        assert said is not None
        is_over = num_output >= said.num_tokens
        self.told_s = now_s
        if isinstance(said.value, list):
            while self.num_items_told < len(said.item_ends) and (
                is_over or said.item_ends[self.num_items_told] <= num_output
            ):
                told.append(Piece(self.task.id, said.value[self.num_items_told]))
                self.num_items_told += 1
            next_stop = (*said.item_ends, said.num_tokens)[self.num_items_told]
        else:
            num_chars = len(said.value) if is_over else len(said.value) * num_output // said.num_tokens
            if num_chars > self.num_chars_told:
                told.append(Piece(self.task.id, said.value[self.num_chars_told : num_chars]))
                self.num_chars_told = num_chars
            next_stop = said.num_tokens
        self.stop = self.sequence.num_prompt_tokens + max(next_stop, num_output + 1)
        return is_over
