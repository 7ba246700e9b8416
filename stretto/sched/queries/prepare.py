"""The preparation of a `StepRequest` for an engine, from a node and its inputs, which have come."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence

from stretto.costs.mean_output import num_tokens
from stretto.graph.execution_graph import Node
from stretto.graph.graph import HINT, Constant
from stretto.model.errors import BadReply
from stretto.model.references import load_inputs, load_references
from stretto.model.tasks import QueryRecord
from stretto.model.tools import ToolPart, ToolResult
from stretto.model.values import KV, Prompt, Segment, as_text
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import StepRequest

_MAX_UNITS = 2**53


def prepare_request(
    query: str,
    node: Node,
    decode_node: Node | None,
    inputs: Mapping[str, object],
    lo: int,
    hi: int,
    each: tuple[str, ...],
    record: QueryRecord,
    *,
    demand: Demand,
    shows: bool = False,
    is_alone: bool = False,
) -> StepRequest:
    """Return the request to an engine for items `lo` to `hi` of `node`, a step whose inputs have come.

    A step that runs once for each element of a list has that many items; any other step has one. `inputs` has
    the value of each port. At ports in `each` that is a list, whose first element belongs to item `lo`.

    Args:
        decode_node: the decode that is fused with `node`, if that is a prefill.
        demand: how urgently its result is needed.
        shows: whether parts of its answer are passed on before its end.
        is_alone: whether its query makes no other request, ever.

    Raises:
        BadReply: a value cannot stand in a prompt.
    """
    if node.spec.runs_on != "llm":
        units = None if node.spec.units is None else _units(node.spec.units, inputs, lo, hi, each)
        return StepRequest(query, node, node.name, lo, hi, inputs, each, record, demand, units)
    return _prepare_llm(
        query, node, decode_node or node, inputs, lo, hi, each, record, demand, shows, is_alone
    )


def _units(
    units_of: Callable[[Mapping[str, object]], int],
    inputs: Mapping[str, object],
    lo: int,
    hi: int,
    each: tuple[str, ...],
) -> tuple[int, ...]:
    units = tuple(units_of(load_inputs(_row(inputs, each, i))) for i in range(hi - lo))
    for given in units:
        if type(given) is not int or not 0 <= given <= _MAX_UNITS:
            raise BadReply(f"its units of work must be a whole number from 0 on, got {reprlib.repr(given)}")
    return units


def _prepare_llm(
    query: str,
    node: Node,
    last: Node,
    inputs: Mapping[str, object],
    lo: int,
    hi: int,
    each: tuple[str, ...],
    record: QueryRecord,
    demand: Demand,
    shows: bool,
    is_alone: bool,
) -> StepRequest:
    rows = [_row(inputs, each, i) for i in range(hi - lo)]
    prompts = tuple(_prompt(node, row) for row in rows)
    held = _held(rows[0])
    return StepRequest(
        query,
        node,
        last.name,
        lo,
        hi,
        inputs,
        each,
        record,
        demand,
        tuple(map(_num_prompt_tokens, prompts)),
        prompts=prompts,
        decode=last.decode,
        hint=None if held is None else held.instance,
        num_held_tokens=0 if held is None else _num_held_tokens(held),
        hint_nodes=() if held is not None else node.hint_from,
        shows=shows,
        is_alone=is_alone,
        is_continued=last.decode is not None and len(last.outs) > 1,
    )


def _row(inputs: Mapping[str, object], each: tuple[str, ...], i: int) -> Mapping[str, object]:
    """Return the inputs of one application: item `i` of the `each` ports, the others as they are."""
    if not each:
        return inputs
    row = dict(inputs)
    for port in each:
        column = inputs[port]
        assert isinstance(column, Sequence)
        row[port] = column[i]
    return row


def _prompt(node: Node, row: Mapping[str, object]) -> Prompt:
    if node.spec.makes_text:
        kv = row["kv"]
        assert isinstance(kv, KV)
        return kv.prompt
    try:
        return tuple(
            Segment(part.text, role=part.role)
            if isinstance(part, Constant)
            else value_segment(load_references(row[part.port]), part.port)
            for part in node.prompt
        )
    except TypeError as error:
        raise BadReply(str(error), step=node.name) from error


def value_segment(value: object, port: str) -> Segment:
    """Return a value as a part of a prompt: an answer as it was generated, or else the text of the value,
    named after its port.

    Raises:
        TypeError: the value has no textual form.
    """
    if isinstance(value, KV) and value.answer is not None:
        return value.answer
    text = as_text(value)
    calls = value if isinstance(value, list | tuple) else ()
    if calls and all(isinstance(call, ToolResult) for call in calls):
        return Segment(text, port, tools=ToolPart(text, calls=tuple(calls)))
    return Segment(text, port, tools=value if isinstance(value, ToolPart) else None)


def _held(row: Mapping[str, object]) -> KV | None:
    """Return the KV of the longest beginning of a prompt that is known to be computed. A hint is longer than
    any answer that the prompt goes on from.
    """
    if isinstance(hint := row.get(HINT), KV):
        return hint
    held = [value for value in row.values() if isinstance(value, KV)]
    return held[-1] if held else None


def _num_held_tokens(held: KV) -> int:
    num_prompt_tokens = _num_prompt_tokens(held.prompt)
    return num_prompt_tokens if held.answer is None else num_prompt_tokens + num_tokens(held.answer.text)


def _num_prompt_tokens(prompt: Prompt) -> int:
    return sum(num_tokens(segment.text) for segment in prompt)
