"""An application that answers each request in a task of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from stretto.http import ClientLeft
from stretto.http.byte_budget import ByteBudget
from stretto.http.client_request import ClientRequest, RequestLimits
from stretto.http.refusals import Refused
from stretto.http.request import HttpRequest
from stretto.http.served import Answerable, WholeAnswer

R = TypeVar("R", bound=HttpRequest)


class TaskApplication(ABC, Generic[R]):
    """An application of an `HttpServer` whose handlers are coroutines.

    Args:
        budget: count of the bytes held for all clients.

    Attributes:
        num_open: number of requests that are being answered.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.num_open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def admit(self, request: ClientRequest) -> RequestLimits:
        """Return the limits of a request whose head has come. Raises Refused."""

    @abstractmethod
    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer | None:
        """Return the answer to a request that is refused before it is served; None to close the connection
        without one.
        """

    @abstractmethod
    def request_of(self, connection: Answerable, received: ClientRequest) -> R:
        """Return the request that a handler gets."""

    @abstractmethod
    async def handle(self, request: R) -> None:
        """Answer a request. Raises ClientLeft if its client has left."""

    @abstractmethod
    async def fail(self, request: R, error: Exception) -> None:
        """Answer a request whose handler has raised an error."""

    def serve(self, connection: Answerable, received: ClientRequest) -> R:
        """Begin to answer a request."""
        request = self.request_of(connection, received)
        self.num_open += 1
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return request

    async def _answer(self, request: R) -> None:
        try:
            await self.handle(request)
        except ClientLeft:
            pass
        except Exception as error:
            await self.fail(request, error)
        finally:
            request.close()
            self.num_open -= 1
