"""Token ids of prompts that come as texts, for a look-up in what workers report of their caches.

Texts are tokenised in threads, beside the event loop. A request waits for its ids a few milliseconds only: a
placement without them is a good guess, and a late one delays the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of

_NUM_THREADS = 2
_MAX_PENDING = 8
"""Texts that are being tokenised or wait for it; with more, a further one gets no ids."""

Then: TypeAlias = Callable[[Sequence[int]], None]
"""Is called with the token ids of a prompt; with none if they are late."""


class TokenReader:
    """A tokenizer of prompts that leaves the event loop free.

    Args:
        folder: directory with the model's `tokenizer.json`.
        timeout_s: seconds after which ids are late.

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
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "tokenizer")
        self._num_pending = 0

    def encode(self, text: str, *, is_prompt: bool = True) -> list[int]:
        """Return the token ids of a text; those of a whole prompt may begin with a special one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=is_prompt).ids
        return ids

    def read(self, text: str, then: Then) -> None:
        """Tokenise a prompt; `then` is called once, at the latest when the ids are late."""
        if self._num_pending >= _MAX_PENDING:
            then(())
            return
        loop = asyncio.get_running_loop()
        self._num_pending += 1
        task = loop.run_in_executor(self._threads, self.encode, text)
        is_late = False  # known from the call alone: the clocks of event loops round

        def late() -> None:
            nonlocal is_late
            is_late = True
            then(())

        timer = loop.call_later(self._timeout_s, late)

        def encoded(done: asyncio.Future[list[int]]) -> None:
            self._num_pending -= 1
            has_failed = done.cancelled() or done.exception() is not None
            if not is_late:
                timer.cancel()
                then(() if has_failed else done.result())

        task.add_done_callback(encoded)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
