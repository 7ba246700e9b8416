"""Engine that runs the tools of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.components.tools import Tool, read_call
from stretto.core import as_text
from stretto.engines.batch.applications import Application, answer_batch
from stretto.errors import EngineFailure
from stretto.foreign import RAISED, described
from stretto.tasks import Task


@dataclass(frozen=True, slots=True)
class ToolsConfig:
    """Configuration of `Tools`, the engine that runs an agent's tools: these tools, and the largest number of
    characters of a result that the LLM reads; the rest is cut off.
    """

    tools: tuple[Tool, ...] = ()
    max_chars: int = 2000


class Tools:
    """A batch engine that runs the tools of an agent, one call after the other.

    It runs the op (kind of step) `call`: input `call`, a text like "search: old maps". It answers with the
    call and the tool's result, as text. A call that fails, or of a tool that there is not, is answered with
    what is wrong, so that the LLM can try something else.

    Tools with an effect run only where the step's setting `result` is "effect": there the others are left
    out, and elsewhere a call of such a tool is answered without running it.
    """

    def __init__(self, config: ToolsConfig) -> None:
        self._tools = {tool.name: tool for tool in config.tools}
        self._max_chars = config.max_chars

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Run the calls of each task, and return their results in order.

        Raises:
            EngineFailure: a tool with an effect raised an error.
        """
        return answer_batch(tasks, {"call": self._call})

    def release(self, query: str) -> None:
        """Do nothing when a query (run of an app) ends, because nothing is kept for it."""

    def close(self) -> None:
        """Do nothing: this engine, which runs tools, holds nothing that has to be freed."""

    def _call(self, applications: Sequence[Application]) -> list[object]:
        return [
            self._act(application)
            if application.task.config.get("result") == "effect"
            else self._answer(application.require("call", str))
            for application in applications
        ]

    def _answer(self, call: str) -> str:
        """Return the call and its result, as text."""
        name, given = read_call(call)
        tool = self._tools.get(name)
        if tool is None:
            return f"{call}\nThere is no such tool; there are {', '.join(self._tools)}."
        if tool.has_effect:
            return f"{call}\nThis has been done."
        try:
            text = as_text(tool.function(given)).strip()
        except RAISED as error:
            return f"{call}\nThis failed: {described(error)}"
        return f"{call}\n{text[: self._max_chars] or 'Nothing was found.'}"

    def _act(self, application: Application) -> object:
        name, given = read_call(application.require("call", str))
        tool = self._tools.get(name)
        if tool is not None and tool.has_effect:
            try:
                tool.function(given)
            except RAISED as cause:
                message = f"tool {name!r} raised {described(cause)}"
                raise EngineFailure(message, step=application.task.step) from cause
        return True
