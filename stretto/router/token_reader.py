"""Token ids of prompts that come as texts or chats, for a look-up in what workers report of their caches.

They are tokenised in threads, beside the event loop. A request waits for its ids a few milliseconds only: a
placement without them is a good guess, and a late one delays the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.router.chat_tokens import ChatTokens, has_template
from stretto.router.chats import Chat

_log = logging.getLogger(__name__)
_NUM_THREADS = 2
_MAX_PENDING = 8
"""Prompts that are being tokenised or wait for it; with more, a further one gets no ids."""

Then: TypeAlias = Callable[[Sequence[int]], None]
"""Is called with the token ids of a prompt; with none if they are late."""


class TokenReader:
    """A tokenizer of prompts that leaves the event loop free.

    Args:
        folder: directory with the model's `tokenizer.json`.
        timeout_s: seconds after which ids are late.

    Attributes:
        chats: template of chats; None without one that can be used.
        reads_chats: whether a worker is known to have the same one.

    Raises:
        ConfigError: the directory has no tokenizer that can be used, or the package tokenizers is missing.
    """

    def __init__(self, folder: Path, timeout_s: float = 0.005) -> None:
        with imports_of("local", "tokenizer"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # whatever the loader raises, it is about this file
            raise ConfigError(f"cannot load the tokenizer in {folder}: {error}") from error
        self.chats, self.reads_chats = _chats_in(folder), False
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "tokenizer")
        self._num_pending = 0

    def encode(self, text: str, *, is_prompt: bool = True) -> list[int]:
        """Return the token ids of a text; those of a whole prompt may begin with a special one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=is_prompt).ids
        return ids

    def read(self, prompt: str | Chat, then: Then) -> None:
        """Tokenise a prompt; `then` is called once, at the latest when the ids are late. A chat that is no
        plain text has none.
        """
        if self._num_pending >= _MAX_PENDING:
            then(())
            return
        loop = asyncio.get_running_loop()
        self._num_pending += 1
        task = loop.run_in_executor(self._threads, self._ids_of, prompt)
        is_late = False  # known from the call alone: the clocks of event loops round

        def late() -> None:
            nonlocal is_late
            is_late = True
            then(())

        timer = loop.call_later(self._timeout_s, late)

        def encoded(done: asyncio.Future[Sequence[int]]) -> None:
            self._num_pending -= 1
            has_failed = done.cancelled() or done.exception() is not None
            if not is_late:
                timer.cancel()
                then(() if has_failed else done.result())

        task.add_done_callback(encoded)

    def _ids_of(self, prompt: str | Chat) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        return () if self.chats is None else self.chats.ids_of(prompt)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _chats_in(folder: Path) -> ChatTokens | None:
    """Return the chat template in a directory; None without one, or, with a warning, if it cannot be used."""
    if not has_template(folder):
        return None
    try:
        return ChatTokens(folder)
    except ConfigError as error:
        _log.warning("%s: chats are not looked up in what workers report", error.message)
        return None
