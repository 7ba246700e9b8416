"""Calls of semantic functions, operators and apps as JSON, as a client writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stretto.model.errors import UserError
from stretto.programs.app_function import App
from stretto.programs.fragment import WaitingCall, Work
from stretto.programs.function import Function
from stretto.programs.operators import Operator
from stretto.programs.wire.values import value_to_wire

_SETTINGS = {"join": "separator"}
"""Settings of operators that ops call otherwise."""


def call_to_wire(call: WaitingCall) -> dict[str, object]:
    """Return a call as an object of JSON: what is called, and a placeholder for each input and output.

    Raises:
        UserError: it is a call of something that runs in this process alone.
    """
    found = dict(_work_to_wire(call.work))
    found["placeholders"] = [
        *(_input_to_wire(call, port, variable) for port, variable in call.inputs.items()),
        *(_output_to_wire(call, port, variable) for port, variable in call.outputs.items()),
    ]
    if call.each is not None:
        found["each"] = call.each
    if call.when is not None:
        found["when"] = call.when
    return found


def _work_to_wire(work: Work) -> Mapping[str, object]:
    match work:
        case Function():
            found: dict[str, Any] = {"function": work.name, "prompt": work.prompt, "engine": work.engine}
            return found if work.conversation is None else found | {"conversation": asdict(work.conversation)}
        case Operator():
            settings = {_SETTINGS.get(name, name): value for name, value in work.config.items()}
            return {"operator": work.name, "settings": settings}
        case App():
            return {"app": work.name, "settings": dict(work.configuration)}
    raise UserError(f"{work.name} runs in the same process as its runtime alone")


def _input_to_wire(call: WaitingCall, port: str, variable: str | None) -> dict[str, object]:
    found: dict[str, object] = {"name": port, "in_out": False}
    if variable is None:
        found["value"] = value_to_wire(call.constants[port])
    else:
        found["semantic_var_id"] = variable
    if isinstance(call.work, Function) and (steps := call.work.input_steps.get(port)):
        found["transforms"] = steps
    return found


def _output_to_wire(call: WaitingCall, port: str, variable: str) -> dict[str, object]:
    found: dict[str, object] = {"name": port, "in_out": True, "semantic_var_id": variable}
    if isinstance(call.work, Function):
        output = call.work.outputs[port]
        if output.steps:
            found["transforms"] = output.steps
        if output.given:
            found["settings"] = output.given
    return found
