"""Engine that runs the tools of an agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.batch.python_results import result_text
from stretto.engines.batch.timed_calls import TimedCalls, TookTooLong
from stretto.engines.contract import BatchEngine
from stretto.llm.output.tool_calls import WrittenCall, read_answer, read_tool_call
from stretto.model.errors import BadReply, JournalError
from stretto.model.foreign import described, raised
from stretto.model.nearest_name import check_name
from stretto.model.tasks import Task
from stretto.model.tools import BadArguments, Tool, ToolOutcome, ToolResult
from stretto.model.values import whole_characters

_NO_LIMIT = 2**31
_LEAST_CHARS = 200
"""Largest number of characters of a result where all that results may have together is used up."""


class TurnRecords(Protocol):
    """A memory of the turns of named runs, so that a run that is started again calls nothing twice."""

    def open(self) -> None:
        """Begin to use the memory. Each `open` needs a `close`."""

    def close(self) -> None:
        """End the use."""

    def turn(self, run: tuple[str, ...], calls: Sequence[str], question: str | None) -> list[str]:
        """Return the calls of a turn: those that are recorded, or else `calls`, which are recorded now.

        Args:
            run: tenant, name of the run, number of the turn.
            question: what the run is asked, which is the same in all of its turns.

        Raises:
            JournalError: the run of this name was asked another question.
        """
        ...

    def result(self, run: tuple[str, ...], place: int) -> ToolResult | None:
        """Return what came of a call of a turn; None if that is not recorded."""
        ...

    def begin(self, run: tuple[str, ...], place: int) -> bool:
        """Record that an effect begins. Return False if that is recorded already."""
        ...

    def end(self, run: tuple[str, ...], place: int, result: ToolResult) -> None:
        """Record what came of a call."""


@dataclass(frozen=True, slots=True)
class ToolsConfig:
    """Configuration of `Tools`, the engine that runs an agent's tools.

    Attributes:
        max_chars: largest number of characters of a result that the LLM reads; the rest is cut off.
        records: memory of the turns of named runs; None for none.
    """

    tools: tuple[Tool, ...] = ()
    max_chars: int = 4000
    records: TurnRecords | None = None

    def check_step(self, settings: Mapping[str, object]) -> None:
        """Check that there are all tools that an agent's LLM is told of. Raises ConfigError."""
        names = [tool.name for tool in self.tools]
        for name in str(settings.get("tools", "")).split():
            check_name("tool", name, names, {})


class Tools(BatchEngine):
    """A batch engine that runs the tools of an agent.

    It runs the op `call`, and answers with a `ToolResult` for each call. Input `call` is one
    call, a text like "search: old maps" or a JSON object with a name and arguments. Input `calls` has all
    calls of a turn: those of tools without effects run side by side, the others one after the other in their
    order. Input `run_name` names the run, whose turns are recorded if there are `records`; setting `turn`
    numbers them, and input `question` is what the run is asked. An answer in place of a call is passed on as
    its text.

    All other inputs are results of earlier turns. The results of a run have at most `max_chars` characters
    together (setting); of what is left each of the `max_calls` calls of a turn gets an equal share.

    A call that fails, takes too long, cannot be read, or is of a tool that there is not, is answered with
    what is wrong, so that the LLM can try something else.
    """

    op_names = ("call",)

    def __init__(self, config: ToolsConfig) -> None:
        self._tools = {tool.name: tool for tool in config.tools}
        self._max_chars = config.max_chars
        self._records = config.records
        self._calls = TimedCalls()
        if self._records is not None:
            self._records.open()

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Run the calls of each task, and return their results in order."""
        return answer_batch(tasks, {"call": self._answers})

    def close(self) -> None:
        """End the event loop of tools that are coroutine functions, and the use of the records."""
        self._calls.close()
        if self._records is not None:
            self._records.close()

    def _answers(self, applications: Sequence[OpApplication]) -> list[object]:
        return [
            self._turn(application) if "calls" in application.inputs else self._single(application)
            for application in applications
        ]

    def _single(self, application: OpApplication) -> ToolResult | str:
        limit = self._limit(application)
        return self._result(application.require("call", str), partial(self.call, limit))

    def _turn(self, application: OpApplication) -> list[ToolResult | str] | JournalError:
        calls = application.require("calls", list)
        name, make = application.get("run_name", str), partial(self.call, self._limit(application))
        if self._records is None or not name:
            return self._side_by_side(calls, [make] * len(calls))
        task = application.task
        run = (task.tenant, name, str(setting(task, "turn", int)))
        try:
            calls = self._records.turn(run, calls, application.get("question", str))
        except JournalError as error:  # other tasks of the batch have runs of their own
            return error
        return self._side_by_side(calls, [_Recorded(make, self._records, run, i) for i in range(len(calls))])

    def _limit(self, application: OpApplication) -> int:
        """Return the largest number of characters of a result."""
        task = application.task
        total = setting(task, "max_chars", int, _NO_LIMIT)
        known = [value for value in application.inputs.values() if isinstance(value, list)]
        used = sum(len(one.text) for value in known for one in value if isinstance(one, ToolResult))
        share = (total - used) // max(1, setting(task, "max_calls", int, 1))
        return min(self._max_chars, max(share, _LEAST_CHARS))

    def _side_by_side(
        self, calls: Sequence[str], run: Sequence[Callable[[WrittenCall, Tool], ToolResult]]
    ) -> list[ToolResult | str]:
        """Run the calls of a turn, those with effects one after the other."""
        results: dict[int, ToolResult | str] = {}
        changing = [i for i, call in enumerate(calls) if self._has_effects(call)]
        others = [i for i in range(len(calls)) if i not in changing]
        with ThreadPoolExecutor(max(1, len(others))) as pool:
            running = [pool.submit(self._result, calls[i], run[i]) for i in others]
            for i in changing:
                results[i] = self._result(calls[i], run[i])
            for i, future in zip(others, running, strict=True):
                results[i] = future.result()
        return [results[i] for i in range(len(calls))]

    def _has_effects(self, written: str) -> bool:
        try:
            tool = self._tools.get(read_tool_call(written).name)
        except BadReply:
            return False
        return tool is not None and tool.effects

    def _result(self, written: str, run: Callable[[WrittenCall, Tool], ToolResult]) -> ToolResult | str:
        """Return what comes of a call; or its text, if it is an answer."""
        if (answer := read_answer(written)) is not None:
            return answer
        try:
            call = read_tool_call(written)
        except BadReply as error:
            return ToolResult(
                whole_characters(written), "", f"This was not done: {error.message}.", "refused"
            )
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools)
            return _result_of(call, "refused", f"There is no such tool; there are {known}.")
        return run(call, tool)

    def call(self, max_chars: int, call: WrittenCall, tool: Tool) -> ToolResult:
        """Return what comes of a call of a tool, which is made now; at most `max_chars` characters."""
        given = call.given if tool.schema else _input_in(call.given)
        try:
            value = self._calls.value(lambda: tool.function(given), tool.timeout_s)
            text = result_text(value).strip()
        except BadArguments as error:
            return _result_of(call, "refused", f"This was not done: {error}.")
        except TookTooLong:
            if tool.effects:
                return _in_doubt(call, f"This took longer than {tool.timeout_s:g} s")
            late = f"This took longer than {tool.timeout_s:g} s and was given up."
            return _result_of(call, "timed_out", late)
        except raised() as error:
            return _result_of(call, "failed", _shortened(f"This failed: {described(error)}", max_chars))
        return _result_of(call, "done", _shortened(text or _nothing(tool), max_chars))


class _Recorded:
    """A call of a named run, which is not made again where its result is recorded."""

    def __init__(
        self,
        make: Callable[[WrittenCall, Tool], ToolResult],
        records: TurnRecords,
        run: tuple[str, ...],
        place: int,
    ) -> None:
        self._make = make
        self._records = records
        self._run = run
        self._place = place

    def __call__(self, call: WrittenCall, tool: Tool) -> ToolResult:
        known = self._records.result(self._run, self._place)
        if known is not None:
            return replace(known, id=call.id, said=call.said)
        is_first = not tool.effects or self._records.begin(self._run, self._place)
        if not is_first and not tool.idempotent:
            result = _in_doubt(call, "The run broke off when this had begun")
        else:
            result = self._make(call, tool)
        self._records.end(self._run, self._place, result)
        return result


def _shortened(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[Cut: these are the first {max_chars} of {len(text)} characters.]"


def _result_of(call: WrittenCall, outcome: ToolOutcome, text: str) -> ToolResult:
    name, given, text = map(whole_characters, (call.name, call.given, text))
    return ToolResult(name, given, text, outcome, call.id, call.said)


def _in_doubt(call: WrittenCall, why: str) -> ToolResult:
    return _result_of(call, "in_doubt", f"{why}; it may or may not have happened. It is not repeated.")


def _nothing(tool: Tool) -> str:
    return "This has been done." if tool.effects else "Nothing was found."


def _input_in(given: str) -> str:
    """Return the input of a tool that takes one text, which may be given as an object with that text."""
    if given.startswith("{"):
        try:
            value = json.loads(given, strict=False)
        except (ValueError, RecursionError):
            return given
        if isinstance(value, dict) and [*value] == ["input"] and isinstance(value["input"], str):
            return value["input"]
    return given
