"""Engine that runs the tools of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.batch.python_results import Awaiter, result_text
from stretto.llm.output.tool_calls import read_tool_call
from stretto.model.errors import BadReply, EngineFailure
from stretto.model.foreign import described, raised
from stretto.model.tasks import Task
from stretto.model.tools import Tool
from stretto.model.values import whole_characters


@dataclass(frozen=True, slots=True)
class ToolsConfig:
    """Configuration of `Tools`, the engine that runs an agent's tools: these tools, and the largest number of
    characters of a result that the LLM reads; the rest is cut off.
    """

    tools: tuple[Tool, ...] = ()
    max_chars: int = 2000


class Tools:
    """A batch engine that runs the tools of an agent, one call after the other.

    It runs the op (kind of step) `call`: input `call`, a text like "search: old maps", or a JSON object with
    a name and arguments. It answers with the call and the tool's result, as text. A call that fails, cannot
    be read, or is of a tool that there is not, is answered with what is wrong, so that the LLM can try
    something else.

    Tools with an effect run only where the step's setting `result` is "effect": there the others are left
    out, and elsewhere a call of such a tool is answered without running it.
    """

    def __init__(self, config: ToolsConfig) -> None:
        self._tools = {tool.name: tool for tool in config.tools}
        self._max_chars = config.max_chars
        self._awaiter = Awaiter()

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Run the calls of each task, and return their results in order.

        Raises:
            EngineFailure: a tool with an effect raised an error.
        """
        return answer_batch(tasks, {"call": self._call})

    def release(self, query: str) -> None:
        """Do nothing when a query (run of an app) ends, because nothing is kept for it."""

    def close(self) -> None:
        """End the event loop of tools that are coroutine functions."""
        self._awaiter.close()

    def _call(self, applications: Sequence[OpApplication]) -> list[object]:
        return [
            self._act(application)
            if application.task.config.get("result") == "effect"
            else whole_characters(self._answer(application.require("call", str)))
            for application in applications
        ]

    def _answer(self, written: str) -> str:
        """Return the call and its result, as text."""
        try:
            call = read_tool_call(written)
        except BadReply as error:
            return f"{written}\nThis was not done: {error.message}."
        tool = self._tools.get(call.name)
        if tool is None:
            return f"{written}\nThere is no such tool; there are {', '.join(self._tools)}."
        if tool.has_effect:
            return f"{written}\nThis has been done."
        try:
            text = result_text(self._awaiter.value(tool.function(call.given))).strip()
        except raised() as error:
            return f"{written}\nThis failed: {described(error)}"
        return f"{written}\n{text[: self._max_chars] or 'Nothing was found.'}"

    def _act(self, application: OpApplication) -> object:
        try:
            call = read_tool_call(application.require("call", str))
        except BadReply:
            return True  # `_answer` tells the LLM
        tool = self._tools.get(call.name)
        if tool is not None and tool.has_effect:
            try:
                self._awaiter.value(tool.function(call.given))
            except raised() as cause:
                message = f"tool {call.name!r} raised {described(cause)}"
                raise EngineFailure(message, step=application.task.step) from cause
        return True
