"""Native functions: Python functions of the client, called with the values of variables."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from stretto.model.errors import EngineFailure, StrettoError, UserError
from stretto.model.foreign import described, raised
from stretto.model.values import ABSENT, Failure
from stretto.programs.values import checked_value
from stretto.programs.variable import SemanticVariable, needed_client


class NativeFunction:
    """A Python function that runs in the client as soon as the variables among its arguments have values; an
    asynchronous one on the event loop of the runtime, any other in a thread.

    A call returns the variable of the result. If an argument has been skipped, so is the call; what the
    function raises fails the variable.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise UserError(f"a native function must be a function, got {function!r:.80}")
        self.name = getattr(function, "__name__", "native")
        self._function = function
        self._signature = inspect.signature(function)

    def __call__(self, *args: object, **keywords: object) -> SemanticVariable:
        """Submit a call and return the variable of its result.

        Raises:
            UserError: the arguments do not fit the function.
        """
        client = needed_client(self.name)
        try:
            self._signature.bind(*args, **keywords)
        except TypeError as error:
            raise UserError(f"{self.name}: {error}") from error
        given = [*args, *keywords.values()]
        variables = [value for value in given if isinstance(value, SemanticVariable)]

        async def run(values: list[Any]) -> object:
            if any(value is ABSENT for value in values):
                return ABSENT
            known = dict(zip(map(id, variables), values, strict=True))
            return await self._run(
                [known.get(id(value), value) for value in args],
                {name: known.get(id(value), value) for name, value in keywords.items()},
            )

        return client.run_native(self.name, variables, run)

    async def _run(self, args: list[object], keywords: dict[str, object]) -> object:
        try:
            if inspect.iscoroutinefunction(self._function):
                value = await self._function(*args, **keywords)
            else:
                value = await asyncio.to_thread(self._run_in_thread, args, keywords)
            return checked_value(value, f"the result of {self.name}")
        except StrettoError as error:
            return Failure(error.at(self.name))
        except asyncio.CancelledError:
            raise
        except raised() as error:
            return self._failure(error)

    def _run_in_thread(self, args: list[object], keywords: dict[str, object]) -> object:
        try:
            return self._function(*args, **keywords)
        except StopIteration as error:  # a future cannot carry it
            return self._failure(error)

    def _failure(self, error: BaseException) -> Failure:
        return Failure(EngineFailure(f"the function raised {described(error)}", step=self.name))
