"""Applies a function to items, each on one thread, and to several at once while cores are free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class SideBySide(Generic[T, R]):
    """A function that is applied to the items of a list, by the calling thread and by helpers.

    Helpers join and leave between items, so that an item is never computed by a changing number of threads.

    Args:
        function: applied to each item.
        num_helpers: number of threads that may help the calling one.
        prepare: called once on each helper before its first item.
    """

    def __init__(self, function: Callable[[T], R], num_helpers: int, prepare: Callable[[], None]) -> None:
        self._function = function
        self._num_helpers = num_helpers
        self._pool = ThreadPoolExecutor(num_helpers, initializer=prepare) if num_helpers else None

    def map(self, items: Sequence[T], may_help: Callable[[], bool]) -> list[R]:
        """Apply the function to every item and return the results in order.

        Args:
            may_help: asked before each item whether helpers may work.

        Raises:
            Exception: whatever the function raises; the other items are given up then.
        """
        results: dict[int, R] = {}
        places = iter(
            range(len(items))
        )  # each thread takes the next place; the interpreter lock makes it safe
        helpers: list[Future[None]] = []

        def help_out() -> None:
            while may_help() and (place := next(places, None)) is not None:
                results[place] = self._function(items[place])

        try:
            for place in places:
                if place < len(items) - 1 and self._pool is not None and may_help():
                    helpers = self._invited(helpers, self._pool, help_out)
                results[place] = self._function(items[place])
        finally:
            for _ in places:
                pass
            for helper in helpers:
                helper.exception()
        for helper in helpers:
            helper.result()
        return [results[place] for place in range(len(items))]

    def close(self) -> None:
        """End the helpers' threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _invited(
        self, helpers: list[Future[None]], pool: ThreadPoolExecutor, help_out: Callable[[], None]
    ) -> list[Future[None]]:
        """Return the helpers that work or have failed, and new ones in place of those that have left."""
        kept = [one for one in helpers if not one.done() or one.exception() is not None]
        return [*kept, *(pool.submit(help_out) for _ in range(self._num_helpers - len(kept)))]
