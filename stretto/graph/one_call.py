"""The graph of one LLM call: a prompt of messages, and a decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Constant, Graph, Primitive, Ref, Slot, config_items
from stretto.model.record import record
from stretto.model.tools import ToolPart

_ANSWER_OF = "answer of "
_MOST_KNOWN = 1024
"""Graphs that are kept: where each call has a seed of its own, none is used again."""


@record
class PromptMessage:
    """One message of a prompt, or more of the one before it. `tools` is what servers that take tools get in
    place of `text`.

    The role None is that of the message before it, or else of the user, or of the model's plain text. A
    constant is part of an app's prompt, in which marks of the model count.
    """

    role: str | None
    text: str
    tools: ToolPart | None = None
    is_constant: bool = False


class CallGraphs:
    """The compiled graphs of calls; calls with the same engine, node, roles and settings share one."""

    def __init__(self) -> None:
        self._known: dict[object, ExecutionGraph] = {}

    def of(
        self, engine: str, messages: Sequence[PromptMessage], decode: Mapping[str, Any], node: str = ""
    ) -> ExecutionGraph:
        """Return the graph of a call, whose inputs `inputs_of_call` makes.

        Args:
            node: node of an application that makes the call.
        """
        roles = tuple(message.role for message in messages)
        types = tuple("text" if message.tools is None else "any" for message in messages)
        constants = tuple(message.text if message.is_constant else None for message in messages)
        key = engine, node, roles, types, constants, tuple(decode.items())
        if key not in self._known:
            step = _ANSWER_OF + node if node else "answer"
            if len(self._known) >= _MOST_KNOWN:
                self._known.pop(next(iter(self._known)), None)  # another thread may have been first
            self._known[key] = compile_graph(_graph(engine, step, messages, types, decode), {})
        return self._known[key]


def inputs_of_call(messages: Sequence[PromptMessage]) -> dict[str, object]:
    """Return the inputs of the graph of a call with these messages."""
    return {
        f"message{at}": message.text if message.tools is None else message.tools
        for at, message in enumerate(messages)
        if not message.is_constant
    }


def node_of_step(step: str) -> str:
    """Return the node whose calls have a step of this name."""
    return step.removeprefix(_ANSWER_OF)


def _graph(
    engine: str,
    step: str,
    messages: Sequence[PromptMessage],
    types: Sequence[str],
    decode: Mapping[str, Any],
) -> Graph:
    names: dict[str, str] = {}
    parts: list[Constant | Slot] = []
    for at, (message, type_) in enumerate(zip(messages, types, strict=True)):
        if message.is_constant:
            parts.append(Constant(message.text, message.role))
            continue
        if message.role is not None:
            parts.append(Constant("", message.role))
        names[f"message{at}"] = type_
        parts.append(Slot(f"message{at}"))
    args = tuple(Arg(name, Ref(name)) for name in names)
    prefill = Primitive("kv", "prefill", args, tuple(parts), engine=engine)
    answer = Primitive(step, "decode", (Arg("kv", Ref("kv")),), (), config_items(decode), engine)
    return Graph("call", tuple(names.items()), (prefill, answer), (), (("answer", Ref(step)),))
