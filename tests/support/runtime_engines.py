"""Engines that do what their texts say, and the small apps that run on them.

They are importable by name, so that they can be sent to a process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.cluster.kv_events import KVEvent
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineUnavailable
from stretto.model.tasks import Done, LLMEvent, LLMTask, Piece, Started, Task

LET_GO = threading.Event()
"""Hung threads end when it is set."""


def graph(text: str) -> ExecutionGraph:
    """A compiled graph from its text form."""
    return compile_graph(parse_graph(text), {})


SHOUT = graph(
    """
    graph shout(%text: text)
      %loud = call(%text) {result="text"} : text @acting
      return %loud
    """
)
SHOUT_EACH = graph(
    """
    graph shout_each(%texts: list[text])
      %loud = call(text=each %texts) {result="text"} : list[text] @acting
      return %loud
    """
)
COMPLETE = graph(
    """
    graph complete(%text: text)
      %kv     = prefill([c"Say: ", %text]) : kv @llm
      %answer = decode(%kv) {max_tokens=50} : text @llm
      return %answer
    """
)


@dataclass(frozen=True)
class Log:
    """A log of calls and callers; shared with the test unless it crosses to a process."""

    batches: list[list[str]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ActingConfig:
    """Configuration of `Acting`. `folder` remembers what happens once; every constructor calls `makes`."""

    folder: Path | None = None
    log: Log = field(default_factory=Log)
    makes: Callable[[int], None] | None = None


class Acting:
    """A `BatchEngine` that answers in capitals, unless a text says what to do instead ("hang", "once
    hang").
    """

    def __init__(self, config: ActingConfig) -> None:
        self._config = config
        config.log.made.append(os.getpid())
        if config.makes is not None:
            config.makes(len(config.log.made))

    def run(self, tasks: Sequence[Task]) -> Any:
        self._config.log.batches.append([task.query for task in tasks])
        texts = [next(iter(task.inputs.values())) for task in tasks]
        for text in texts:
            if isinstance(text, str) and self._is_time(text):
                act(text)
        if "short" in texts:
            return ["SHORT"] * (len(tasks) - 1)
        if "no list" in texts:
            return (str(text).upper() for text in texts)
        return [self._answer(text) for text in texts]

    def release(self, query: str) -> None:
        self._config.log.released.append(query)

    def close(self) -> None:
        self._config.log.closed.append(os.getpid())

    def _is_time(self, text: str) -> bool:
        if not text.startswith("once "):
            return True
        assert self._config.folder is not None
        mark = self._config.folder / text
        first = not mark.exists()
        mark.touch()
        return first

    def _answer(self, text: Any) -> Any:
        match text:
            case "none":
                return None
            case "lambda":
                return lambda: None
            case "poison":
                return Poison()
            case "huge":
                return "X" * 10_000_000
            case list() | tuple():
                wanted = [self._answer(item) for item in text]
                return wanted[:-1] if "short list" in text else wanted
            case "process":
                return str(os.getpid())
        return str(text).upper()


def act(text: str) -> None:
    """Do what `text` says."""
    match text.removeprefix("once "):
        case "raise":
            raise ValueError("told to")
        case "unavailable":
            raise EngineUnavailable("told to")
        case "exit":
            raise SystemExit(7)
        case "exit at once":
            os._exit(7)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            LET_GO.wait(60)


class Poison:
    """A value that can be pickled and cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("nobody can read this")


def acting(config: ActingConfig | None = None, **settings: Any) -> Deployment:
    """An engine that runs `Acting`."""
    return deploy("acting", Acting, config or ActingConfig(), **settings)


def fake_llm(**settings: Any) -> Deployment:
    """A stepped LLM."""
    return deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", **settings)


class ServerEngine:
    """The methods of an `AsyncLLM` besides `generate`: it is up at once and for ever, and reports nothing."""

    async def start(self) -> None: ...

    def written(self, task: int) -> tuple[int, ...]:
        return ()

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        await asyncio.Event().wait()

    async def probe(self) -> None: ...

    async def aclose(self) -> None: ...


class Server(ServerEngine):
    """An `AsyncLLM` whose words take a second each; it does what prompts say, like `Acting`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        log.made.append(1)

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        text = task.prompt[-1].text
        emit(Started(task.id))
        if task.decode is None:
            emit(Done(task.id, None))
            return
        try:
            match text:
                case "raise":
                    raise ValueError("told to")
                case "say nothing":
                    return
                case "hang":
                    await asyncio.Event().wait()
                case "end twice":
                    emit(Done(task.id, "END"))
                    emit(Done(task.id, "END AGAIN"))
                    return
            words = [word + " " for word in text.upper().split()]
            for word in words:
                await asyncio.sleep(1)
                emit(Piece(task.id, word))
            emit(Done(task.id, "".join(words)))
        except asyncio.CancelledError:
            self._log.released.append(task.query)
            raise

    async def aclose(self) -> None:
        self._log.closed.append(1)


def server(log: Log | None = None, **settings: Any) -> Deployment:
    """An engine that runs `Server`."""
    return deploy("llm", Server, log or Log(), contract="llm", runs_in="loop", **settings)


class AtOnce(ServerEngine):
    """A `SteppedLLM` as an `AsyncLLM`, which emits all events at once."""

    def __init__(self, stepped: Any) -> None:
        self._stepped = stepped

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        await asyncio.sleep(0)
        self._stepped.admit(task, rank)
        while self._stepped.has_work():
            for event in self._stepped.step():
                emit(event)

    async def aclose(self) -> None:
        self._stepped.close()


def on_the_loop(deployment: Deployment) -> Deployment:
    """Return the same engine without threads."""
    if not deployment.engine.is_llm:
        return deployment.changed(runs_in="loop")
    make = deployment.replicas[0].executable
    return deployment.changed(runs_in="loop", executable=lambda config: AtOnce(make(config)))
