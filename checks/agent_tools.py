"""Tools of agents that misbehave, and write what effects they had into a file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from stretto.components import Tool, tool

_HANG_S = 0.05


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def tools_of(folder: Path) -> list[Tool]:
    """Return the tools, whose effects are lines of a file."""
    lock = threading.Lock()

    def happen(key: str) -> None:
        with lock, (folder / "effects").open("a") as file:
            file.write(f"{json.dumps(key)}\n")
            file.flush()
            os.fsync(file.fileno())

    @tool
    def step(run: int, turn: int) -> str:
        return f"<step {turn} of {run}>"

    @tool
    def look(key: str) -> str:
        return f"{key} is here"

    @tool
    def fail(key: str) -> str:
        raise LookupError(key)

    @tool(timeout_s=_HANG_S)
    def hang(key: str) -> None:
        threading.Event().wait()

    @tool(timeout_s=_HANG_S)
    async def wait(key: str) -> None:
        await asyncio.Event().wait()

    @tool
    def huge(key: str) -> str:
        return key * 250_000

    def acted(key: str, how: str) -> str:
        happen(key)
        if how == "raise":
            raise LookupError(key)
        if how == "hang":
            threading.Event().wait()
        return key * 250_000 if how == "huge" else key

    @tool(effects=True, timeout_s=1.0)
    def act(key: str, how: str) -> str:
        return acted(key, how)

    @tool(effects=True, timeout_s=1.0)
    def choose(key: Literal["a", "b"], how: Literal["well", "raise", "hang", "huge"]) -> str:
        return acted(key, how)

    @tool
    def odd(number: Annotated[int, AfterValidator(_odd)]) -> int:
        return number

    return [step, look, fail, hang, wait, huge, act, choose, odd]
