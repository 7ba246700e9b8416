"""The ops that Stretto comes with: one row says all that the rest of the system must know about an op.

A new op is a row (here, or `Vocabulary.with_op`), an engine that runs it, and a component that lowers to it.
Source: Teola Table 1, extended by what its limits section lacks (chunk, web_search, call, select, expand).
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from stretto.costs.mean_output import num_tokens
from stretto.graph import control_ops, op_workloads
from stretto.graph.graph import ANSWER, HINT, RECORD, Primitive
from stretto.graph.ops import ANYTHING, OUTSIDE, Inputs, Ops, OpSpec, Port, Settings
from stretto.graph.types import item_type, list_of
from stretto.model.errors import BadReply
from stretto.model.values import Chunk, Hit, as_text


def _result_setting(primitive: Primitive, _: Sequence[str]) -> str:
    return str(primitive.setting("result") or "any")


def _called_changes(primitive: Primitive) -> str:
    return OUTSIDE if primitive.setting("effects") else ""


def _grown_reads(primitive: Primitive) -> str:
    return "" if primitive.setting("access") == "none" else ANYTHING


def _grown_changes(primitive: Primitive) -> str:
    return "" if primitive.setting("access") in ("none", "reads") else ANYTHING


def generated_type(primitive: Primitive, _: Sequence[str]) -> str:
    """Return the type of what is generated: a text, or a list of them."""
    return "list[text]" if primitive.setting("items") else "text"


def _first(_: Primitive, types: Sequence[str]) -> str:
    return types[0] if types else "any"


def _aggregated(primitive: Primitive, types: Sequence[str]) -> str:
    if primitive.setting("join") is not None:
        return "text"
    if primitive.setting("best") is not None:
        return "list[hit]"
    if not types:
        return "any"
    return types[0] if item_type(types[0]) else list_of(types[0])


def _num_hits(inputs: Inputs) -> int:
    hits = inputs["hits"]
    return max(1, len(hits)) if isinstance(hits, Sequence) else 1


def _text_tokens(inputs: Inputs) -> int:
    return num_tokens(as_text(inputs["texts"]))


def _pair_tokens(inputs: Inputs) -> int:
    hits = inputs["hits"]
    if not isinstance(hits, Sequence):
        return 1
    question = num_tokens(as_text(inputs["question"]))
    return max(1, sum(question + num_tokens(as_text(hit)) for hit in hits))


def _checksum(inputs: Inputs, _: Settings) -> object:
    return (crc32(as_text(inputs["texts"]).encode("utf-8", "replace")),)


def _in_their_order(inputs: Inputs, _: Settings) -> object:
    hits = control_ops.flat_hits(inputs["hits"])
    return [Hit(hit.chunk, 1.0 / (1 + rank)) for rank, hit in enumerate(hits)]


def _pages(inputs: Inputs, settings: Settings) -> object:
    query, pages = inputs["queries"], range(whole_setting(settings, "k", 4))
    return [Hit(Chunk(f"page {n}", 0, f"{query} {n}"), 1.0 / (1 + n)) for n in pages]


def whole_setting(settings: Settings, name: str, default: int) -> int:
    """Return a setting that is a whole number from 1 on. Raises BadReply for another one."""
    value = settings.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise BadReply(f"{name} is {value!r}")
    return value


_SPECS = (
    OpSpec(
        "chunk",
        (Port("files", "document"),),
        "list[chunk]",
        flatten=True,
        workloads=op_workloads.documents_to_cut,
    ),
    OpSpec(
        "embed",
        (Port("texts", "text|chunk|hit"),),
        "vector",
        tokens=_text_tokens,
        synthetic=_checksum,
        workloads=op_workloads.texts_to_embed,
    ),
    OpSpec(
        "ingest",
        (Port("chunks", "chunk"), Port("vectors", "vector"), Port("collection", "text", optional=True)),
        "effect",
        is_idempotent=True,  # a chunk that is there already is replaced
        changes="collection",
        workloads=op_workloads.rows_to_ingest,
    ),
    OpSpec(
        "search",
        (
            Port("queries", "vector"),
            Port("index", "effect", optional=True),
            Port("collection", "text", optional=True),
        ),
        "list[hit]",
        reads="collection",
    ),
    OpSpec(
        "rerank",
        (Port("question", "text"), Port("hits", "list[hit]")),
        "list[hit]",
        units=_num_hits,
        tokens=_pair_tokens,
        synthetic=_in_their_order,
        workloads=op_workloads.pairs_to_score,
    ),
    OpSpec("web_search", (Port("queries", "text"),), "list[hit]", reads=OUTSIDE, synthetic=_pages),
    OpSpec(
        "call",
        (Port("inputs", variadic=True),),
        _result_setting,
        reads=OUTSIDE,
        changes=_called_changes,
        synthetic=lambda inputs, _: tuple(inputs.values()),
    ),
    OpSpec("transform", (Port("value"),), "any", synthetic=lambda inputs, _: inputs["value"]),
    OpSpec(
        "prefill",
        (Port("prompt", variadic=True), Port(HINT, "kv", optional=True)),
        "kv",
        runs_on="llm",
        computes_prompt=True,
    ),
    OpSpec(
        "decode",
        (Port("kv", "kv"),),
        generated_type,
        runs_on="llm",
        optional_outputs=(Port(ANSWER, "kv"),),
        makes_text=True,
    ),
    OpSpec(
        "condition",
        (Port("value"),),
        _first,
        runs_on=None,
        outputs=("yes", "no"),
        evaluate=control_ops.evaluate_condition,
    ),
    OpSpec(
        "select",
        (Port("options", variadic=True, optional=True),),
        _first,
        runs_on=None,
        evaluate=control_ops.evaluate_select,
        passes_over_failures=True,
    ),
    OpSpec(
        "quote",
        (Port("question", "text"), Port("hits", "list[hit]")),
        "text",
        runs_on=None,
        evaluate=control_ops.evaluate_quote,
    ),
    OpSpec(
        "supported",
        (
            Port("question", "text"),
            Port("hits", "list[hit]"),
            Port("quote", "text"),
            Port("drafts", "text", variadic=True, optional=True),
        ),
        "text",
        runs_on=None,
        evaluate=control_ops.evaluate_supported,
        passes_over_failures=True,
    ),
    OpSpec(
        "aggregate",
        (Port("values", variadic=True, optional=True),),
        _aggregated,
        runs_on=None,
        evaluate=control_ops.evaluate_aggregate,
    ),
    OpSpec(
        "agent_run",
        (Port("answer", "text"), Port("turns", variadic=True)),
        "record",
        runs_on=None,
        evaluate=control_ops.evaluate_agent_run,
    ),
    OpSpec(
        "expand",
        (Port("inputs", variadic=True),),
        _result_setting,
        runs_on=None,
        optional_outputs=(Port(RECORD, "record"),),
        reads=_grown_reads,
        changes=_grown_changes,
    ),
)

OPS = Ops(_SPECS)
"""Table of the ops that Stretto comes with."""
