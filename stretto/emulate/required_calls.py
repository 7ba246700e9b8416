"""Made-up calls of tools, for requests whose answer must call one."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from stretto.emulate.formed_text import formed_text
from stretto.emulate.scripted_replies import ScriptedReply
from stretto.wire.errors import unacceptable
from stretto.wire.output_form import OutputForm
from stretto.wire.requests import ChatRequest, GenerateRequest
from stretto.wire.tool_calls import CallPart


def required_call(
    request: GenerateRequest, source: Random, fits: Callable[[str], bool]
) -> ScriptedReply | None:
    """Return a reply with a call of the tool that `tool_choice` names, or of any tool if it is "required";
    None if the request requires none. The arguments are valid under the tool's schema.

    Args:
        fits: whether arguments are short enough, as `formed_text` has it.

    Raises:
        RequestRefused: it requires a call of a tool that is not there, or of whose schema there is no text.
    """
    if not isinstance(request, ChatRequest):
        return None
    choice = request.extra.get("tool_choice")
    if choice in (None, "auto", "none"):
        return None
    named = _function(choice).get("name")
    functions = map(_function, request.tools)
    able = [one for one in functions if choice == "required" or one.get("name") == named]
    if not able:
        raise unacceptable("tool_choice", f"There is no tool for tool_choice {json.dumps(choice)[:200]}.")
    function = source.choice(able)
    form = OutputForm("json", function.get("parameters") or {"type": "object"})
    arguments = formed_text(form, source, fits)
    return ScriptedReply("", calls=(CallPart(0, "call_0", str(function.get("name")), arguments),))


def _function(tool: object) -> dict[str, Any]:
    """Return the function that a tool, or a choice of one, names."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}
