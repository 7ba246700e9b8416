"""`stretto check-prompts`: which programs of a recording send prompts that change before text that stays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options
from stretto.model.errors import UserError
from stretto.model.extras import imports_of

if TYPE_CHECKING:
    from stretto.router.prompt_check import PromptCheck

_SUMMED = ("requests", "lost_tokens", "lost_s")


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
    print(f"{num_requests} requests, {len(faults)} faults")


def _found(file: Path) -> tuple[int, list[Any]]:
    """Return the number of requests of a file, and the faults that lose most first. Raises UserError."""
    from stretto.cli.agent_replay import is_agent_trace
    from stretto.trace.lines import json_lines

    if is_agent_trace(file):
        from stretto.operate.prefix.fault import Loss
        from stretto.operate.prefix.shown import fault_json

        check = _checked(file)
        found = [
            fault_json(kind, one, Loss(one.num_requests, one.lost_tokens, one.lost_s))
            for kind, one in check.faults()
        ]
        num_requests = check.num_requests
    else:
        lines = [line.fields for line in json_lines(file)]
        if not any("attempts" in line and "path" in line for line in lines[:1]):
            raise UserError(f"{file}: neither a record of the router nor a trace of agents")
        found, num_requests = list(_told(lines)), len(lines)
    return num_requests, sorted(found, key=lambda one: -one["lost_tokens"])


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


def _told(lines: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the faults that a router's record tells, each with the sum of what was lost."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for line in lines:
        fault = line.get("prompt_fault")
        if isinstance(fault, dict) and all(isinstance(fault.get(name), int | float) for name in _SUMMED):
            names = ("tenant", "model", "path", "shape", "place", "changes")
            key = tuple(str(fault.get(name)) for name in names)
            before = found.get(key)
            sums = {name: fault[name] + (before[name] if before else 0) for name in _SUMMED}
            found[key] = {**fault, **sums}
    yield from found.values()
