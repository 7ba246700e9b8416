"""The client whose `with` block is being executed: calls of semantic functions go there.

It is kept for each thread and each task of asyncio, so that programs of several clients run side by side.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from stretto.errors import UserError

if TYPE_CHECKING:
    from stretto.programs.client import Client

CURRENT: ContextVar[Client | None] = ContextVar("current client", default=None)


def current_client() -> Client | None:
    """Return the client in whose `with` block this is called; None outside of any."""
    return CURRENT.get()


def needed_client(function: str) -> Client:
    """Return the client in whose `with` block this is called.

    Raises:
        UserError: there is none; the message names the function that needs it.
    """
    if (client := CURRENT.get()) is None:
        raise UserError(f"{function} is called without a client: write `with Client(runtime):` around it")
    return client
