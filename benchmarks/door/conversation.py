"""The messages of an agent's session, as its client sends them."""

from __future__ import annotations

from typing import TypeAlias

from benchmarks.programs.room.sessions import BLOCK_TOKENS, Opened

Message: TypeAlias = dict[str, str]

_BLOCK_CHARS = 4 * BLOCK_TOKENS
_SYSTEM_SHARE = 0.4
"""Part of the first prompt that is the system prompt: instructions and tools."""


class Conversation:
    """The messages of a session, request by request. Answers are those that the servers gave."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._prompt = ""
        self._answer = ""
        self._messages: list[Message] = []
        first = opened.prompt(0)
        self._system = first[: _whole_blocks(_SYSTEM_SHARE * len(first))]

    def messages(self, turn: int) -> list[Message]:
        """Return the messages of a request.

        A prompt that goes on from the one before keeps its messages, with the answer and what the tools gave
        behind them. Another one, whose history was rewritten, begins anew behind the system prompt.
        """
        prompt = self._opened.prompt(turn)
        if self._prompt and prompt.startswith(self._prompt):
            rest = prompt[len(self._prompt) + len(self._answer) :] or prompt[-_BLOCK_CHARS:]
            self._messages = [
                *self._messages,
                {"role": "assistant", "content": self._answer},
                {"role": "user", "content": rest},
            ]
        else:
            system = self._system if prompt.startswith(self._system) else prompt[:_BLOCK_CHARS]
            self._messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": prompt[len(system) :] or prompt},
            ]
        self._prompt = prompt
        return self._messages

    def answered(self, text: str) -> None:
        """Note the answer to the last request."""
        self._answer = text


def _whole_blocks(num_chars: float) -> int:
    return max(1, int(num_chars / _BLOCK_CHARS)) * _BLOCK_CHARS
