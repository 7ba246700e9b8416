"""The requests of a run, with their texts: the lines that `stretto plan` reads, or an OpenAI Batch file.

The `model` of a line of a Batch file names the node that the request is for, or a model that one node alone
has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.deciding.app_file import query_request
from stretto.planner.deciding.nodes import DrawnApplication
from stretto.planner.plan_files import checked_lines, parse_request
from stretto.planner.running.batch_lines import BatchLines, check_texts, is_batch_line
from stretto.planner.running.request_lines import check_any, read_store, refusing
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.run_request import RefusedLine, RunRequest
from stretto.planner.running.sent_lines import ReadLine
from stretto.planner.token_counts import TextTokens


def read_run_requests(
    path: Path, app: Application, hands_on: bool = False, door: ReadLine | None = None
) -> RequestStore:
    """Read the requests of a run from a file of JSON lines.

    Args:
        hands_on, door: see `BatchLines`.

    Raises:
        ConfigError: it cannot be read, has no requests that can be run, or a line is wrong that is none of a
            Batch file; the message has its number.
    """
    if isinstance(app, DrawnApplication):
        return read_store(path, partial(_of_query, app), lambda found: False)
    batch = BatchLines(lambda model: _node_for(model, app), hands_on, door)

    def read(found: Any) -> RunRequest:
        return batch.read(found) if is_batch_line(found) else _checked(_of_plan(found), app)

    return read_store(path, read, is_batch_line)


def read_planned_requests(
    path: Path, app: Application, tokens: TextTokens | None = None, door: ReadLine | None = None
) -> tuple[list[AppRequest], list[RefusedLine]]:
    """Read requests to plan for, which may be numbers of tokens; and lines of a Batch file that no run takes.

    Args:
        tokens: what counts texts; None estimates by their characters.
        door: see `BatchLines`.

    Raises:
        ConfigError: as `read_run_requests`.
    """
    is_drawn = isinstance(app, DrawnApplication)
    counts = TextTokens(()) if tokens is None else tokens
    batch = BatchLines(lambda model: _node_for(model, app), False, door)
    refused: list[RefusedLine] = []

    def read(found: Any) -> AppRequest:
        if isinstance(app, DrawnApplication):
            return query_request(found, app)
        return counted(batch.read(found), counts) if is_batch_line(found) else parse_request(found, counts)

    is_refused = refusing(lambda found: not is_drawn and is_batch_line(found), refused)
    try:
        with path.open("rb") as file:
            lines = checked_lines(file, path, read, lambda request: request.id, is_refused)
            requests = [request for _, _, request in lines]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    check_any(requests, refused, path)
    return requests, refused


def counted(request: RunRequest, tokens: TextTokens) -> AppRequest:
    """Return a line of a Batch file as planners see it, with its prompt counted."""
    return replace(request.planned, prompt_tokens=tokens.of_prompt(*request.segments()))


def _of_query(app: DrawnApplication, found: Any) -> RunRequest:
    return RunRequest(query_request(found, app), ())


def _checked(request: RunRequest, app: Application) -> RunRequest:
    """Return a request that every node which it is for can run. Raises ConfigError."""
    names = [node.name for node in app.nodes]
    if unknown := [name for name in request.planned.nodes if name not in names]:
        raise ConfigError(f"there is no node {unknown[0]!r}; there are {', '.join(names)}")
    wanted = request.planned.nodes or names
    for name in wanted:
        node = app.node(name)
        if node.is_by_chunk and not request.chunks:
            raise ConfigError(f"it has no chunks, which node {name!r} needs")
        has_input = any(source in wanted for source in node.inputs)
        if not (node.is_by_chunk or has_input or request.messages or node.prompt):
            raise ConfigError(f"it has no prompt, which node {name!r} needs")
    return request


def _of_plan(found: Any) -> RunRequest:
    planned = parse_request(found)
    if "prompt_tokens" in found:
        raise ConfigError("it has prompt_tokens; a run needs the text, as `prompt`")
    chunks = found.get("chunks", [])
    if not all(isinstance(chunk, str) for chunk in chunks):
        raise ConfigError("chunks must be texts; numbers of tokens can be planned, but not run")
    prompt = found.get("prompt", "")
    check_texts([prompt, *chunks, planned.id])
    return RunRequest(planned, (PromptMessage(None, prompt),) if prompt else (), tuple(chunks))


def _node_for(model: str, app: Application) -> ModelNode:
    named = [node for node in app.nodes if node.name == model]
    having = named or [node for node in app.nodes if node.model == model]
    if len(having) != 1:
        names = ", ".join(node.name for node in app.nodes)
        raise ConfigError(
            f"body: model is {model!r}; it must name a node ({names}), or the model of one node alone"
        )
    if having[0].is_by_chunk:
        raise ConfigError(f"body: node {having[0].name!r} is called by chunk, so its requests need chunks")
    return having[0]
