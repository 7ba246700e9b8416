"""The command line in this process, and an LLM server for it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from stretto.cli.main import main
from support.openai_stub import OpenAIStub, Reply


@dataclass(frozen=True)
class Ended:
    """The end of a command: exit code and output."""

    code: object
    out: str
    err: str


class CommandLine:
    """`stretto ...` as a function: without a process, so that models stay loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *args: object) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["stretto", *map(str, args)])
        # Help would name `python -m pytest`, where the tests were started so.
        self._monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        self._capsys.readouterr()
        with _handlers_kept(), pytest.raises(SystemExit) as end:
            main()
        out, err = self._capsys.readouterr()
        return Ended(end.value.code, out, err)

    def refuses(self, *args: object, code: int = 2) -> str:
        """Run a command that must be refused; return its one line of error."""
        ended = self(*args)
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert ended.code == code, ended.err
        lines = [line for line in ended.err.splitlines() if not line.startswith("The LLM is SmolLM2")]
        assert len(lines) == 1, ended.err
        return lines[0]


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Give this process its signals and its logs back, which a command that was interrupted turns off."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logging.getLogger("asyncio").disabled = False


@contextmanager
def serving(answer: Callable[[Mapping[str, Any]], Reply]) -> Iterator[str]:
    """Run an OpenAI-compatible server on a thread; yield its URL."""
    with running(OpenAIStub(answer)) as url:
        yield url


@contextmanager
def running(stub: OpenAIStub) -> Iterator[str]:
    """Run `stub` on a thread; yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(stub.__aenter__(), loop).result(5)
        yield stub.url
    finally:
        asyncio.run_coroutine_threadsafe(_end(stub), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def _end(stub: OpenAIStub) -> None:
    await stub.__aexit__()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
