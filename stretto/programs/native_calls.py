"""The native functions that a client runs on the values of its variables, and the variables that are given up
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from stretto.model.errors import StrettoError
from stretto.model.values import Failure
from stretto.programs.connection import ProgramSession
from stretto.programs.ledger import Ledger


class NativeCalls:
    """Calls of native functions. A variable that is given up stays until no such call has to read it.

    Its methods are called on the event loop of the session.

    Args:
        get: waits for the value of a variable.
    """

    def __init__(
        self, ledger: Ledger, session: Callable[[], ProgramSession], get: Callable[[str], Awaitable[object]]
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._get = get
        self._running: dict[str, asyncio.Future[None]] = {}
        self._num_readers: Counter[str] = Counter()
        self._given_up: set[str] = set()

    def begin(
        self, made: str, reads: Sequence[str], run: Callable[[list[Any]], Coroutine[Any, Any, object]]
    ) -> None:
        """Wait for the variables `reads`, run a coroutine function with their values, and set the variable
        `made` to its result.
        """

        async def settle() -> None:
            try:
                value = await run(await asyncio.gather(*(self._get(name) for name in reads)))
            except StrettoError as error:
                value = Failure(error)
            is_wanted = self._ledger.knows(made) or made in self._given_up
            if is_wanted and not self._session().is_closed():
                self._session().provide(made, value)

        self._num_readers.update(reads)
        task = asyncio.ensure_future(settle())
        self._running[made] = task
        task.add_done_callback(lambda _: self._end(made, reads))

    def give_up(self, name: str) -> None:
        """Give a variable up: once no call has to read it, stop the call that makes it, and free it."""
        self._given_up.add(name)
        for one in list(self._given_up):  # what the variable was made of may serve nothing now
            if not self._num_readers[one] and not self._ledger.natives.has_readers(one):
                self._given_up.discard(one)
                if one in self._running:
                    self._running[one].cancel()
                self._free(one)

    def cancel(self) -> None:
        """Stop all calls."""
        for task in self._running.values():
            task.cancel()

    def is_idle(self) -> bool:
        """Return whether no call runs and no variable waits to be freed. For tests."""
        return not (self._running or self._num_readers or self._given_up)

    def _end(self, made: str, reads: Sequence[str]) -> None:
        """Forget a call, and free the variables that were given up while it had to read them."""
        del self._running[made]
        self._ledger.natives.end(made)
        self._num_readers.subtract(reads)
        for name in dict.fromkeys((*reads, made)):
            if not self._num_readers[name]:
                del self._num_readers[name]
                if name in self._given_up:
                    self._given_up.discard(name)
                    if not self._session().is_closed():
                        self.give_up(name)

    def _free(self, name: str) -> None:
        """Give a variable up that no call has to read any more; its name may be used again."""
        self._session().drop(name)
        self._ledger.names.free(name)
