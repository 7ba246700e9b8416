"""`stretto check-prompts`: which programs of a recording send prompts that change before text that stays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options
from stretto.model.errors import UserError
from stretto.model.extras import imports_of
from stretto.model.wording import counted

if TYPE_CHECKING:
    from stretto.router.prompt_check import PromptCheck

_SUMMED = ("requests", "lost_tokens", "lost_s")
_TOLD = {
    *_SUMMED,
    "model",
    "path",
    "shape",
    "program",
    "changes",
    "place",
    "line",
    "at_tokens",
    "sample",
    "advice",
}
"""Fields of a fault in a record."""
_MOST = 1e15


def check_prompts(
    file: Annotated[
        Path,
        typer.Argument(
            help="File that `stretto route --record` wrote; or a trace of agents with the texts of their "
            "prompts, as `stretto load` takes it.",
            metavar="RECORD",
        ),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Say where prompts change before text that stays, so that caches are of no use to it, and how many
    tokens that has cost.

    A record of the router has no texts: it tells what the router has found when the requests passed.
    """
    with imports_of("route", "check-prompts"):
        from stretto.operate.prefix.shown import fault_text

    num_requests, faults = _found(file)
    if as_json:
        print(json.dumps({"requests": num_requests, "faults": faults}, indent=2))
        return
    for one in faults:
        print(fault_text(one) + "\n")
    print(f"{counted(num_requests, 'request')}, {counted(len(faults), 'fault')}")


def _found(file: Path) -> tuple[int, list[Any]]:
    """Return the number of requests of a file, and the faults that lose most first. Raises UserError."""
    from stretto.trace.lines import json_lines

    first = next(json_lines(file), None)
    if first is None:
        raise UserError(f"{file}: there are no requests")
    if "attempts" in first.fields and "path" in first.fields:
        num_requests, found = _told(line.fields for line in json_lines(file))
    else:
        num_requests, found = _looked(file)
    return num_requests, sorted(found, key=lambda one: -one["lost_tokens"])


def _looked(file: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of requests of a trace of agents, and its faults. Raises UserError."""
    from stretto.cli.agent_replay import is_agent_trace
    from stretto.operate.prefix.fault import Loss
    from stretto.operate.prefix.shown import fault_json

    if not is_agent_trace(file):
        raise UserError(f"{file}: neither a record of the router nor a trace of agents")
    check = _checked(file)
    found = [
        fault_json(kind, one, Loss(one.num_requests, one.lost_tokens, one.lost_s))
        for kind, one in check.faults()
    ]
    return check.num_requests, found


def _checked(file: Path) -> PromptCheck:
    """Return the check of a trace of agents. Raises UserError."""
    from stretto.router.prompt_check import PromptCheck
    from stretto.trace.agents.formats import read_agent_trace
    from stretto.trace.agents.known_prompts import made_up_answer
    from stretto.trace.agents.prompts import Conversations
    from stretto.trace.agents.requests import ChatPrompt
    from stretto.wire.errors import RequestRefused

    trace, check = read_agent_trace(file), PromptCheck()
    conversations = Conversations(trace)
    for request in trace.requests:
        if not isinstance(request.prompt, ChatPrompt):
            raise UserError(f"{file}, line {request.line}: the trace has only lengths of prompts, no texts")
        fields: dict[str, Any] = {**request.extra, "model": request.model or ""}
        if request.prompt.tools:
            fields["tools"] = list(request.prompt.tools)
        fields["messages"] = list(conversations.messages(request))
        path = "/v1/messages" if "system" in fields else "/v1/chat/completions"
        try:
            program = check.add(path, fields)
        except RequestRefused as error:
            raise UserError(f"{file}, line {request.line}: {error}") from error
        if program is not None:
            program.end(was_answered=True)
        conversations.add(request, made_up_answer(request))
    return check


def _told(lines: Iterable[Mapping[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of requests of a router's record, and the faults that it tells, each with the sum of
    what was lost. A fault that no router writes is left out.
    """
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    num_requests = 0
    for line in lines:
        num_requests += 1
        fault = line.get("prompt_fault")
        if (
            isinstance(fault, dict)
            and fault.keys() >= _TOLD
            and all(_is_count(fault[name]) for name in _SUMMED)
        ):
            names = ("tenant", "model", "path", "shape", "place", "changes")
            key = tuple(str(fault.get(name)) for name in names)
            before = found.get(key)
            sums = {name: fault[name] + (before[name] if before else 0) for name in _SUMMED}
            found[key] = {**fault, **sums}
    return num_requests, list(found.values())


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < _MOST
