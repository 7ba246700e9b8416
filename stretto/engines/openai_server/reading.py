"""Reads an answer of an LLM server, which comes as a stream or whole, and checks that it is one."""

from __future__ import annotations

from collections.abc import Callable

from stretto.engines.openai_server.prompt import CHARS_PER_TOKEN
from stretto.model.errors import BadServer
from stretto.model.tasks import Finish, Usage
from stretto.wire.answers import AnswerChoice, ModelAnswer, TokenCounts
from stretto.wire.tool_calls import CallPart

_NOTHING = AnswerChoice()


class AnswerReader:
    """A reader of one answer, which passes its text to `feed` until that returns True.

    Attributes:
        counts: token counts that the server has reported; None until then.
        num_deltas: number of chunks with output.
        has_begun: whether the first token has come.
        has_finished: whether the server has said that the answer has ended.
        has_reasoning: whether the server has sent thoughts apart from the answer.
        tool_calls: pieces of calls of tools.
        finish: how the answer has ended, as far as the server has said.
    """

    def __init__(self, max_tokens: int, feed: Callable[[str], bool]) -> None:
        self.counts: TokenCounts | None = None
        self.num_deltas = 0
        self.has_begun = False
        self.has_finished = False
        self.has_reasoning = False
        self.tool_calls: list[CallPart] = []
        self.finish: Finish = "stop"
        self._max_tokens = max_tokens
        self._feed = feed
        self._num_read = 0
        self._num_choices = 0
        self._num_chars = 0

    @property
    def num_output(self) -> int:
        """Number of tokens of the answer so far: as reported, else the chunks, or an estimate from the text
        where there are fewer of them.
        """
        if self.counts is not None:
            return self.counts.num_output
        return max(self.num_deltas, self._num_chars // CHARS_PER_TOKEN)

    def read(self, part: ModelAnswer) -> bool:
        """Read the whole answer or the next chunk of it; return whether no more of it is wanted.

        Raises:
            BadServer: the server writes on beyond the limit.
        """
        self.counts = part.counts or self.counts
        choice = part.choices[0] if part.choices else _NOTHING
        self._num_read += 1
        self._num_choices += len(part.choices)
        self.num_deltas += choice.has_output
        self._num_chars += len(choice.text) + sum(len(call.arguments) for call in choice.tool_calls)
        self.tool_calls += choice.tool_calls
        if choice.finish is not None:
            self.has_finished = True
            self.finish = _finish(choice.finish)
        self.has_reasoning = self.has_reasoning or bool(choice.reasoning)
        self.has_begun = self.has_begun or choice.has_output or self.has_finished
        limit = self._max_tokens
        if self._num_read > 4 * limit + 64 or self._num_chars > 64 * (limit + 16):
            raise BadServer(f"the server writes on beyond max_tokens={limit}")
        return self._feed(choice.text)

    def usage(self, num_prompt_tokens: int) -> Usage:
        """Return the token counts of the answer, with `num_prompt_tokens` where the server tells none."""
        if self.counts is None:
            return Usage(num_prompt_tokens, 0, self.num_output)
        return Usage(self.counts.num_prompt, self.counts.num_cached or 0, self.counts.num_output)

    def check_end(self) -> None:
        """Check that there has been an answer. Raises BadServer."""
        if not self._num_choices:
            raise BadServer("the server's answer has no choice")


def _finish(said: str) -> Finish:
    """Return how an answer has ended, from the word of a server."""
    if said in ("length", "max_tokens", "model_length"):
        return "length"
    return "content_filter" if said.startswith(("content_filter", "safety", "SAFETY")) else "stop"
