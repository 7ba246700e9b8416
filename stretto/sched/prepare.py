"""The preparation of a `Request` for an engine, from a node (step) and its inputs, which have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stretto.core import KV, Prompt, Segment, as_text
from stretto.costs.tokens import num_tokens
from stretto.errors import BadReply
from stretto.graph.compile import Node
from stretto.graph.graph import HINT, Constant
from stretto.references import load, load_inputs
from stretto.sched.demand import Demand
from stretto.sched.request import Request
from stretto.tasks import QueryRecord


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
) -> Request:
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
        return Request(query, node, node.name, lo, hi, inputs, each, record, demand, units)
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
    return tuple(units_of(load_inputs(_row(inputs, each, i))) for i in range(hi - lo))


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
) -> Request:
    rows = [_row(inputs, each, i) for i in range(hi - lo)]
    prompts = tuple(_prompt(node, row) for row in rows)
    held = rows[0].get(HINT, rows[0].get("kv"))
    return Request(
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
        hint=held.instance if isinstance(held, KV) else None,
        num_held_tokens=_num_prompt_tokens(held.prompt) if isinstance(held, KV) else 0,
        hint_nodes=() if isinstance(held, KV) else node.hint_from,
        shows=shows,
        is_alone=is_alone,
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
    if node.op == "decode":
        kv = row["kv"]
        assert isinstance(kv, KV)
        return kv.prompt
    try:
        return tuple(
            Segment(part.text, role=part.role)
            if isinstance(part, Constant)
            else Segment(as_text(load(row[part.port])), part.port)
            for part in node.prompt
        )
    except TypeError as error:
        raise BadReply(str(error), step=node.name) from error


def _num_prompt_tokens(prompt: Prompt) -> int:
    return sum(num_tokens(segment.text) for segment in prompt)
