"""The table of op specifications: one row says all that the rest of the system must know about an op.

A new op is a row (here, or `Vocabulary.with_op`), an engine that runs it, and a component that lowers to it.
Source: Teola Table 1, extended by what its limits section lacks (chunk, web_search, call, select, expand).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from stretto.costs.tokens import num_tokens
from stretto.documents.support import best_supported, is_answered, nearest, quote
from stretto.graph.graph import ANSWER, HINT, RECORD, Primitive
from stretto.graph.types import NAMES, is_type, item_type, list_of
from stretto.model.errors import BadReply, ConfigError, GraphError
from stretto.model.tools import AgentRun, RunEnd, ToolResult
from stretto.model.values import ABSENT, Hit, as_text, document_order

Inputs: TypeAlias = Mapping[str, object]
Settings: TypeAlias = Mapping[str, object]

OUTSIDE = "outside"
"""State that functions of the user, and searches of the web, read or change; nothing more is known of it."""
ANYTHING = "*"
"""All states: what a step may read or change whose work is not known before it runs."""


@dataclass(frozen=True, slots=True)
class Port:
    """One in port of an op: the name and type of an argument that the op takes.

    `type` is that of one application: if the op is applied to each item of a list, it is the item's type. A
    `variadic` port stands for any number of ports of any name (prompt variables, arguments of a call). An
    `optional` port may be left unconnected, and its value may be absent.
    """

    name: str
    type: str = "any"
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class OpSpec:
    """The specification of one op: its inputs, its result, and where it runs.

    An op is a kind of step, such as "embed".

    Attributes:
        ports: the in ports, in the order of the text form.
        result: type of one application's value, or a function of the primitive and its argument types.
        runs_on: kind of engine, "batch" or "llm"; None when the graph scheduler evaluates the op itself.
        outputs: names of the out ports; ("",) is the single unnamed one.
        optional_outputs: further out ports with their types, which a step has where something reads them.
        flatten: one application yields a list; a mapped op yields the lists joined into one.
        units: function from the inputs of one application to its work (for example pairs to score);
            None counts 1.
        tokens: function from the inputs of one application to the estimated tokens of its texts, where the
            op's time depends on them; None where it does not.
        passes_over_failures: failures at optional ports count as absent, unless nothing is present.
        is_idempotent: running the effect again with the same inputs changes nothing more. Only means
            something for effects; a `call` is idempotent where its setting `idempotent` says so.
        reads: name of the state outside the graph that the op reads, such as "collection"; "" for none,
            `ANYTHING` for all. It may be a function of the primitive.
        changes: name of the state that the op changes, likewise. An effect that names none changes `OUTSIDE`.
        evaluate: pure function of a control flow op, from (inputs, settings) to {out port: value}.
    """

    name: str
    ports: tuple[Port, ...]
    result: str | Callable[[Primitive, Sequence[str]], str]
    runs_on: str | None = "batch"
    outputs: tuple[str, ...] = ("",)
    optional_outputs: tuple[Port, ...] = ()
    flatten: bool = False
    units: Callable[[Inputs], int] | None = None
    tokens: Callable[[Inputs], int] | None = None
    is_idempotent: bool = False
    evaluate: Callable[[Inputs, Settings], Mapping[str, object]] | None = None
    passes_over_failures: bool = False
    reads: str | Callable[[Primitive], str] = ""
    changes: str | Callable[[Primitive], str] = ""

    def port(self, name: str) -> Port | None:
        """Return the port of the op that takes an argument called `name`; None if the op
        takes no such argument.
        """
        return self._by_name.get(name, self.variadic)

    @cached_property
    def _by_name(self) -> Mapping[str, Port]:
        return {port.name: port for port in self.ports}

    @cached_property
    def variadic(self) -> Port | None:
        """The port of the op that takes any number of arguments; None if the op has none."""
        return next((port for port in self.ports if port.variadic), None)


class Ops(Mapping[str, OpSpec]):
    """An immutable table of the specifications of ops, by name, and the names of the types
    that values may have.

    Raises:
        ConfigError: two specifications have the same name, or one names an unknown type.
    """

    def __init__(self, specs: Iterable[OpSpec], types: Iterable[str] = NAMES) -> None:
        self.types = frozenset(types)
        self._specs: dict[str, OpSpec] = {}
        for spec in specs:
            if spec.name in self._specs:
                raise ConfigError(f"the op {spec.name!r} is there already")
            self._check_types(spec)
            self._specs[spec.name] = spec

    def __getitem__(self, name: str) -> OpSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def spec(self, primitive: Primitive) -> OpSpec:
        """Return the specification of a primitive's op, that is, of its kind.

        Raises:
            GraphError: the table has no such op.
        """
        spec = self._specs.get(primitive.op)
        if spec is None:
            raise GraphError(
                f"%{primitive.name}: there is no op {primitive.op!r}; there are {', '.join(self)}"
            )
        return spec

    def is_effect(self, primitive: Primitive) -> bool:
        """Return whether a primitive changes something outside the graph: its result has the type
        `effect`.

        An effect is never removed as dead code. Steps that must come after it read its value. So a `call`
        that saves something has `result="effect"`.
        """
        result = self.spec(primitive).result
        return (result if isinstance(result, str) else primitive.setting("result")) == "effect"

    def reads(self, primitive: Primitive) -> str:
        """Return the name of the state outside the graph that a primitive reads; "" for none."""
        reads = self.spec(primitive).reads
        return reads if isinstance(reads, str) else reads(primitive)

    def changes(self, primitive: Primitive) -> str:
        """Return the name of the state outside the graph that a primitive changes; "" for none."""
        changes = self.spec(primitive).changes
        named = changes if isinstance(changes, str) else changes(primitive)
        return named or (OUTSIDE if self.is_effect(primitive) else "")

    def keep_order(self, one: Primitive, other: Primitive) -> bool:
        """Return whether two primitives must run in the order in which they are written: both change
        something, or one changes what the other reads.
        """
        changed, changed_too = self.changes(one), self.changes(other)
        if changed and changed_too:
            return True
        return _overlap(changed, self.reads(other)) or _overlap(self.reads(one), changed_too)

    def is_type(self, type_: str) -> bool:
        """Return whether a text is a valid type of values, made of the types that this table knows."""
        return is_type(type_, self.types)

    def _check_types(self, spec: OpSpec) -> None:
        named = [(f"port {port.name!r}", port.type) for port in spec.ports]
        if isinstance(spec.result, str):
            named.append(("result", spec.result))
        for what, type_ in named:
            if not self.is_type(type_):
                raise ConfigError(f"op {spec.name!r}: its {what} has the unknown type {type_!r}")


def _overlap(state: str, other: str) -> bool:
    return bool(state and other) and (state == other or ANYTHING in (state, other))


def _result_setting(primitive: Primitive, _: Sequence[str]) -> str:
    return str(primitive.setting("result") or "any")


def _called_changes(primitive: Primitive) -> str:
    return OUTSIDE if primitive.setting("effects") else ""


def _grown_reads(primitive: Primitive) -> str:
    return "" if primitive.setting("access") == "none" else ANYTHING


def _grown_changes(primitive: Primitive) -> str:
    return "" if primitive.setting("access") in ("none", "reads") else ANYTHING


def _decoded(primitive: Primitive, _: Sequence[str]) -> str:
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


def _condition(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    value = inputs["value"]
    wanted = settings.get("equals")
    if wanted is None:
        holds = bool(value)
    elif isinstance(value, str):
        said, word = value.lstrip(" \t\r\n\"'*`").casefold(), str(wanted).casefold()
        holds = said.startswith(word) and not said[len(word) : len(word) + 1].isalnum()
    else:
        holds = value == wanted
    return {"yes": value if holds else ABSENT, "no": ABSENT if holds else value}


def _select(inputs: Inputs, _: Settings) -> Mapping[str, object]:
    return {"": next((value for value in inputs.values() if value is not ABSENT), ABSENT)}


def _quote(inputs: Inputs, _: Settings) -> Mapping[str, object]:
    """Return the sentence of the hits that answers the question best."""
    passages = [as_text(hit) for hit in _flat_hits(inputs["hits"])]
    return {"": quote(as_text(inputs["question"]), passages) or ABSENT}


def _supported(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Choose the first present draft that the quote supports, else the quote. Say that there is no answer if
    the hits do not answer the question.
    """
    fixed = ("question", "hits", "quote")
    drafts = [as_text(value) for name, value in inputs.items() if name not in fixed and value is not ABSENT]
    share = settings["share"]
    assert isinstance(share, int | float)
    question, quoted = as_text(inputs["question"]), as_text(inputs["quote"])
    if not is_answered(question, [as_text(hit) for hit in _flat_hits(inputs["hits"])]):
        return {"": nearest(question, quoted)}
    return {"": best_supported(question, quoted, drafts, share)}


def _flat_hits(value: object) -> list[Hit]:
    if isinstance(value, Hit):
        return [value]
    assert isinstance(value, list | tuple)
    return [hit for item in value if item is not ABSENT for hit in _flat_hits(item)]


def _best_hits(values: Sequence[object], best: int, distinct: bool) -> list[Hit]:
    """Return the `best` highest-scoring hits of all lists; with `distinct`, each chunk once, with its best
    score.
    """
    ranked = document_order(_flat_hits(values))
    if distinct:
        first: dict[tuple[str, int], Hit] = {}
        for hit in ranked:
            first.setdefault((hit.chunk.source, hit.chunk.index), hit)
        ranked = list(first.values())
    return ranked[:best]


def _aggregate(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Combine the present values as the settings say; the order is by port and index, never by arrival."""
    values = [value for value in inputs.values() if value is not ABSENT]
    if not values:
        return {"": ABSENT}
    best, join = settings.get("best"), settings.get("join")
    if best is not None:
        assert isinstance(best, int)
        return {"": _best_hits(values, best, bool(settings.get("distinct")))}
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    items = [item for item in items if item is not ABSENT]
    if join is not None:
        return {"": _joined(items, str(join)) if items else ABSENT}
    return {"": items}


def _joined(items: Sequence[object], separator: str) -> str:
    try:
        return separator.join(map(as_text, items))
    except TypeError as error:
        raise BadReply(f"{error}; the transform to_json makes one") from error


def _agent_run(inputs: Inputs, settings: Settings) -> Mapping[str, object]:
    """Make the record of an agent's run of its answer and the results of its turns."""
    turns = [value for port, value in inputs.items() if port != "answer" and isinstance(value, list)]
    calls = tuple(tuple(one for one in turn if isinstance(one, ToolResult)) for turn in turns)
    ended: RunEnd = "max_turns" if settings.get("ended") == "max_turns" else "answered"
    return {"": AgentRun(str(inputs["answer"]), ended, calls)}


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


_SPECS = (
    OpSpec("chunk", (Port("files", "document"),), "list[chunk]", flatten=True),
    OpSpec("embed", (Port("texts", "text|chunk|hit"),), "vector", tokens=_text_tokens),
    OpSpec(
        "ingest",
        (Port("chunks", "chunk"), Port("vectors", "vector"), Port("collection", "text", optional=True)),
        "effect",
        is_idempotent=True,  # a chunk that is there already is replaced
        changes="collection",
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
    ),
    OpSpec("web_search", (Port("queries", "text"),), "list[hit]", reads=OUTSIDE),
    OpSpec("call", (Port("inputs", variadic=True),), _result_setting, reads=OUTSIDE, changes=_called_changes),
    OpSpec("transform", (Port("value"),), "any"),
    OpSpec("prefill", (Port("prompt", variadic=True), Port(HINT, "kv", optional=True)), "kv", runs_on="llm"),
    OpSpec("decode", (Port("kv", "kv"),), _decoded, runs_on="llm", optional_outputs=(Port(ANSWER, "kv"),)),
    OpSpec(
        "condition",
        (Port("value"),),
        _first,
        runs_on=None,
        outputs=("yes", "no"),
        evaluate=_condition,
    ),
    OpSpec(
        "select",
        (Port("options", variadic=True, optional=True),),
        _first,
        runs_on=None,
        evaluate=_select,
        passes_over_failures=True,
    ),
    OpSpec(
        "quote",
        (Port("question", "text"), Port("hits", "list[hit]")),
        "text",
        runs_on=None,
        evaluate=_quote,
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
        evaluate=_supported,
        passes_over_failures=True,
    ),
    OpSpec(
        "aggregate",
        (Port("values", variadic=True, optional=True),),
        _aggregated,
        runs_on=None,
        evaluate=_aggregate,
    ),
    OpSpec(
        "agent_run",
        (Port("answer", "text"), Port("turns", variadic=True)),
        "record",
        runs_on=None,
        evaluate=_agent_run,
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
