"""An LLM engine without a model, whose text is scripted.

Its text is a function of the task, and it spends steps, slots and cached prefixes on it as a model
would, a word counting as a token, and its number in the text as the token's id. The stand-in and the fake
engine are two such functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from operator import eq
from typing import TypeAlias

from stretto.cluster.kv_events import KVEvent
from stretto.engines.decoding import BASIC, refuse_others, without_wishes
from stretto.engines.scripted.task_queue import TaskQueue
from stretto.llm.output.output import DecodeOutput
from stretto.model.errors import StrettoError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started, Usage
from stretto.model.values import Prompt, Segment, answer_segment

AnswerFunction: TypeAlias = Callable[[LLMTask, Decode], str]

_CHUNK_TOKENS = 512
_TOKEN = re.compile(r"\s*\S+")
_END = ""  # stands for the end-of-text token


class ScriptedLLM:
    """An LLM engine without a model, for tests and demonstrations: its output is the text that `answer(task,
    decode)` returns.

    A word counts as a token. A step gives every running sequence one chunk of prefill or one token of output.
    Prefixes are cached for each query until its release. A `StrettoError` of `answer` fails the task; any
    other exception leaves `step`, like a crash of the instance.
    """

    def __init__(self, answer: AnswerFunction, max_running: int) -> None:
        self._answer = answer
        self._max_running = max_running
        self._waiting = TaskQueue()
        self._running: dict[int, Iterator[list[LLMEvent]]] = {}
        self._num_written: dict[int, int] = {}
        self._held: dict[str, list[list[str]]] = {}

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Add a task to the engine's waiting queue; tasks with smaller ranks start first."""
        self._waiting.push(task, rank)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank (priority, smallest first) of a waiting task."""
        self._waiting.reprioritise(task, rank)

    def cancel(self, task: int) -> None:
        """Stop a waiting or running task; it sends no further event."""
        self._running.pop(task, None)
        self._num_written.pop(task, None)
        self._waiting.discard(task)

    def suspend(self) -> list[tuple[int, tuple[int, ...]]]:
        """Stop all tasks, so that they can go on at another instance; return the id of each with its
        generated tokens, which are the numbers 0, 1… of its words.
        """
        started = [(task, tuple(range(num_written))) for task, num_written in self._num_written.items()]
        self._running.clear()
        self._num_written.clear()
        return [*started, *((task.id, task.generated) for task in self._waiting.take_all())]

    def has_work(self) -> bool:
        """Return whether any task waits or runs, so that `step` has something to do."""
        return bool(self._waiting or self._running)

    def step(self) -> list[LLMEvent]:
        """Start waiting tasks in free slots, smallest rank first, then advance every running task by one turn
        (a chunk of prefill or one token).

        Returns what happened to the tasks: started, gave output, ended.
        """
        events: list[LLMEvent] = []
        while self._waiting and len(self._running) < self._max_running:
            task = self._waiting.pop()
            self._running[task.id] = self.sequence(task)
            self._num_written[task.id] = len(task.generated)
            events.append(Started(task.id))
        for task_id, sequence in list(self._running.items()):
            turn = next(sequence)
            if turn and isinstance(turn[-1], Done | Failed):
                del self._running[task_id], self._num_written[task_id]
            events += turn
        return events

    def release(self, query: str) -> None:
        """Drop the prefixes that are cached for a query, which has ended."""
        self._held.pop(query, None)

    def take_kv_events(self) -> Sequence[KVEvent]:
        """Return nothing, because changes of this engine's prefix cache are not recorded."""
        return ()

    def close(self) -> None:
        """Do nothing: this engine has no model and holds nothing that has to be freed."""

    def sequence(self, task: LLMTask) -> Iterator[list[LLMEvent]]:
        """Run a task: yield the events of each of its turns; the last event is `Done` or `Failed`.

        A turn is a chunk of prefill or one token of output.
        """
        try:
            tokens = _tokens(task.prompt)
            num_cached = self._num_cached(task.query, tokens)
            for _ in range(num_cached + _CHUNK_TOKENS, len(tokens), _CHUNK_TOKENS):
                yield []
            self._hold(task.query, tokens)
            if task.decode is None:
                yield [Done(task.id, None, Usage(len(tokens), num_cached))]
                return
            refuse_others(without_wishes(task.decode), BASIC, "an engine without a model")
            output = DecodeOutput(task.decode, task.prompt)
            text = [*_TOKEN.findall(self._answer(task, task.decode)), _END][: task.decode.max_tokens]
            pieces: list[str] = []
            for num_output, token in enumerate(text, start=1):
                new_pieces, finished = output.feed(token)
                pieces += new_pieces
                if finished or num_output == len(text):
                    break
                if num_output > len(task.generated):
                    self._num_written[task.id] = num_output
                    yield [Piece(task.id, piece) for piece in pieces]
                    pieces = []
            last, value = output.finish("stop" if finished or text[-1] == _END else "length")
            usage = Usage(len(tokens), num_cached, num_output)
            written: Segment | None = None
            if task.is_continued and (said := output.written) is not None:
                written = answer_segment(said)
                self._hold(task.query, [*tokens, *said.split()])
            done = Done(task.id, value, usage, written, output.finish_reason)
            yield [*(Piece(task.id, piece) for piece in pieces + last), done]
        except StrettoError as error:
            yield [Failed(task.id, error.at(task.step))]

    def _num_cached(self, query: str, tokens: list[str]) -> int:
        """Length of the longest kept prefix, without the last token, which is computed as in a model."""
        shared = (_num_shared(tokens, held) for held in self._held.get(query, ()))
        return max(0, min(max(shared, default=0), len(tokens) - 1))

    def _hold(self, query: str, tokens: list[str]) -> None:
        """Keep `tokens` as a prefix; it replaces the prefixes that it extends."""
        held = self._held.get(query, ())
        self._held[query] = [*(old for old in held if _num_shared(old, tokens) < len(old)), tokens]


def _tokens(prompt: Prompt) -> list[str]:
    return [word for segment in prompt for word in segment.text.split()]


def _num_shared(a: list[str], b: list[str]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(bool, map(eq, a, b)))
