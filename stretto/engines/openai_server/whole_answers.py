"""A policy that decides which answers an LLM server is asked for whole, instead of as a stream.

Reading a stream costs several times the processor time of reading a whole answer: an event for each token.
But a server says nothing until a whole answer has ended, so an answer that may take long is streamed all the
same: its parts show that the server works. How long it may take is learned from the answers before it.
"""

from __future__ import annotations

_MARGIN = 4.0
"""Least ratio of the silence allowed to the predicted seconds of an answer that is asked for whole."""
_DECAY = 0.95
"""Factor by which a slow answer counts less with each later one."""
_LEAST_TOKENS = 16
"""Shortest answer whose time is divided by its tokens: those of shorter ones are mostly the prompt's."""
_STREAMED_EVERY = 16
"""Number of answers of which at most one is streamed to learn what prompts cost."""


class WholeAnswers:
    """The decisions about the answers of one server.

    Streams also tell what prompts cost, by the time to their first token. So while somebody wants to know
    that (`want_prompt_time`), one answer in 16 is streamed for it.

    Args:
        token_s: predicted seconds of a token of an answer, until some are known; None to stream the first.
    """

    def __init__(self, token_s: float | None = None) -> None:
        self._token_s = token_s
        self._num_whole = 0
        self._wants_prompt_time = False

    def want_prompt_time(self) -> None:
        """Ask for one of the next answers to be streamed."""
        self._wants_prompt_time = True

    def decide(self, max_tokens: int, silence_s: float) -> bool:
        """Return whether to ask for an answer of at most `max_tokens` tokens whole.

        Args:
            silence_s: seconds for which the server may be silent.
        """
        if self._token_s is None or _MARGIN * max_tokens * self._token_s > silence_s:
            return False
        self._num_whole += 1
        if self._wants_prompt_time and self._num_whole >= _STREAMED_EVERY:
            self._wants_prompt_time, self._num_whole = False, 0
            return False
        return True

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from an answer of `num_tokens` tokens, which took `seconds` from its request to its end."""
        token_s = seconds / max(num_tokens, _LEAST_TOKENS)
        self._token_s = token_s if self._token_s is None else max(token_s, _DECAY * self._token_s)

    def observe_stopped(self, max_tokens: int, seconds: float) -> None:
        """Learn from an answer of at most `max_tokens` tokens, which had not come when its request was given
        up or broke off, after `seconds`.
        """
        token_s = seconds / max(max_tokens, _LEAST_TOKENS)
        self._token_s = token_s if self._token_s is None else max(token_s, self._token_s)
