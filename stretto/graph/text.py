"""The text form of a graph, which `explain` prints and tests of passes compare. It can be parsed back.

    graph advanced_rag(%question: text, %files: list[document])
      %chunks  = chunk(each %files) {overlap=30, tokens=256} : list[chunk] @cpu #batchable
      %vectors = embed(each~128 %chunks) : list[vector] @embedding #batchable
      !indexed = ingest(each %chunks, each %vectors) : effect @vectors
      %kv      = prefill([c"Rewrite: ", %question, c" as JSON:"]) : kv @llm
      order chunks > kv
      return answer=%text

`%x: late text` is an input that may come while the graph runs. `each` applies the primitive to every item,
`each~128` streams with pieces of 128; `!` marks an effect; `port=` is left out where the port follows from
the position. A constant `system"…"`, `user"…"` or `assistant"…"` begins a message of that role. Each line has
a grammar of one line; only lists nest. A line may end with the choices of the app's user:
`with {"retries": 2, "fallback": "backup"}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise

from stretto.graph.graph import ROLES, Arg, Constant, Graph, Primitive, PromptParts, Ref, Slot, config_items
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops, OpSpec
from stretto.graph.strategy import NO_STRATEGY, Strategy
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError, GraphError

_INDENT = "  "
_LATE = "late "


def print_graph(graph: Graph, ops: Ops = OPS) -> str:
    """Return a graph as text: one line for its inputs, one for each primitive, one for its outputs.

    Raises:
        GraphError: the graph is not valid.
    """
    types = verify(graph, ops)
    inputs = ", ".join(
        f"%{name}: {_LATE if name in graph.late else ''}{type_}" for name, type_ in graph.inputs
    )
    heads = {p.name: f"{_sigil(types[p.name, ops[p.op].outputs[0]])}{p.name}" for p in graph}
    width = max((len(head) for head in heads.values()), default=0)
    lines = [f"graph {graph.name}({inputs})"]
    for primitive in graph:
        spec = ops[primitive.op]
        type_ = types[primitive.name, spec.outputs[0]]
        lines.append(
            f"{_INDENT}{heads[primitive.name]:<{width}} = {_application(primitive, spec, types)} : {type_}"
        )
        lines[-1] += "".join(
            [
                f" @{primitive.engine}" if primitive.engine else "",
                *(f" #{hint}" for hint in primitive.hints),
                f" with {json.dumps(changes)}" if (changes := primitive.strategy.changes()) else "",
            ]
        )
    lines += [f"{_INDENT}order {before} > {after}" for before, after in graph.order]
    if graph.outputs:
        lines.append(f"{_INDENT}return " + ", ".join(_named(name, ref, types) for name, ref in graph.outputs))
    return "\n".join(lines) + "\n"


def _sigil(type_: str) -> str:
    return "!" if type_ == "effect" else "%"


def _named(name: str, ref: Ref, types: Mapping[tuple[str, str], str]) -> str:
    value = f"{_sigil(types[ref.name, ref.port])}{ref}"
    return value if name == str(ref) else f"{name}={value}"


def _application(primitive: Primitive, spec: OpSpec, types: Mapping[tuple[str, str], str]) -> str:
    in_prompt = {part.port for part in primitive.prompt if isinstance(part, Slot)}
    shown = [_print_prompt(primitive, types)] if primitive.prompt else []
    for place, arg in enumerate(primitive.args):
        if arg.port in in_prompt:
            continue
        if spec.variadic is None:
            implied = place < len(spec.ports) and spec.ports[place].name == arg.port
        else:
            implied = spec.port(arg.port) is spec.variadic and arg.port == str(arg.ref)
        shown.append(("" if implied else f"{arg.port}=") + _print_arg(arg, types))
    config = ", ".join(f"{key}={json.dumps(value)}" for key, value in primitive.config)
    return f"{primitive.op}({', '.join(shown)})" + (f" {{{config}}}" if config else "")


def _print_prompt(primitive: Primitive, types: Mapping[tuple[str, str], str]) -> str:
    parts = []
    for part in primitive.prompt:
        if isinstance(part, Constant):
            parts.append((part.role or "c") + json.dumps(part.text, ensure_ascii=False))
        else:
            arg = primitive.arg(part.port)
            assert arg is not None
            name = "" if arg.port == str(arg.ref) else f"{arg.port}="
            parts.append(name + _print_arg(arg, types))
    return f"[{', '.join(parts)}]"


def _print_arg(arg: Arg, types: Mapping[tuple[str, str], str]) -> str:
    stream = f"~{arg.piece}" if arg.piece is not None else ""
    mode = f"each{stream} " if arg.each else ""
    return f"{mode}{_sigil(types[arg.ref.name, arg.ref.port])}{arg.ref}"


_NAME = r"[A-Za-z_][\w.\-']*"
_HEAD = re.compile(r"graph (?P<name>[\w\-]+)\((?P<inputs>.*)\)$")
_LINE = re.compile(rf"[%!](?P<name>{_NAME})\s*= (?P<op>\w+)\(")
_TAIL = re.compile(
    r"\)(?: \{(?P<config>.*)\})? : (?P<type>\S+)(?: @(?P<engine>\S+))?(?P<hints>(?: #\w+)*)"
    r"(?: with (?P<strategy>\{.*\}))?$"
)
_ARG = re.compile(
    r"(?:(?P<port>[\w.\[\]\-']+)=)?(?:each(?:~(?P<piece>\d+))? )?[%!]"
    rf"(?P<ref>{_NAME})(?:\[(?P<index>\d+)\])?"
)
_CONSTANT = re.compile(rf'(?P<role>c|{"|".join(ROLES)})"')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def parse_graph(text: str, ops: Ops = OPS) -> Graph:
    """Parse text that `print_graph` wrote, check that the graph which it describes is valid, and return that
    graph.

    `ops` is the table of the ops that the text may use.

    Raises:
        GraphError: a line does not parse (the message quotes it), or the graph is not valid.
    """
    if not isinstance(text, str):
        raise GraphError(f"a graph is parsed from a text, got {text!r:.80}")
    try:
        return _parse(text, ops)
    except RecursionError:
        raise GraphError("not a graph: a type or a constant is nested too deeply") from None


def _parse(text: str, ops: Ops) -> Graph:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    head = _HEAD.match(lines[0]) if lines else None
    if head is None:
        raise GraphError(f"not a graph: {lines[0] if lines else 'empty'}")
    inputs = tuple(
        (name.strip().removeprefix("%"), type_.strip())
        for name, _, type_ in (part.partition(":") for part in head["inputs"].split(",") if part.strip())
    )
    late = frozenset(name for name, type_ in inputs if type_.startswith(_LATE))
    inputs = tuple((name, type_.removeprefix(_LATE)) for name, type_ in inputs)
    known = {name for name, _ in inputs}
    primitives: list[Primitive] = []
    order: list[tuple[str, str]] = []
    outputs: list[tuple[str, Ref]] = []
    for line in lines[1:]:
        if line.startswith("order "):
            names = [name.strip() for name in line.removeprefix("order ").split(">")]
            order += pairwise(names)
        elif line.startswith("return "):
            for name, arg in (_parse_arg(part, known, line) for part in line[7:].split(", ")):
                outputs.append((name or str(arg.ref), arg.ref))
        else:
            primitives.append(_parse_line(line, known, ops))
            known.add(primitives[-1].name)
    graph = Graph(head["name"], inputs, tuple(primitives), tuple(order), tuple(outputs), late)
    verify(graph, ops)
    return graph


def _parse_line(line: str, known: set[str], ops: Ops) -> Primitive:
    head = _LINE.match(line)
    if head is None:
        raise GraphError(f"cannot parse: {line}")
    spec = ops.get(head["op"])
    if spec is None:
        raise GraphError(f"there is no op {head['op']!r}: {line}")
    rest = line[head.end() :]
    args: list[Arg] = []
    prompt: PromptParts = ()
    if rest.startswith("["):
        parts, rest = _parse_prompt(rest, known, line)
        prompt = tuple(part if isinstance(part, Constant) else Slot(part.port) for part in parts)
        args += list(dict.fromkeys(part for part in parts if isinstance(part, Arg)))
        rest = rest.removeprefix(", ")
    while not rest.startswith(")"):
        match = _ARG.match(rest)
        if match is None:
            raise GraphError(f"cannot parse the arguments of: {line}")
        port, arg = _parse_arg(match.group(), known, line)
        if not port:
            fixed = [p.name for p in spec.ports if not p.variadic]
            port = fixed[len(args)] if len(args) < len(fixed) and not spec.variadic else str(arg.ref)
        args.append(Arg(port, arg.ref, arg.each, arg.piece))
        rest = rest[match.end() :].removeprefix(", ")
    tail = _TAIL.match(rest)
    if tail is None:
        raise GraphError(f"cannot parse the end of: {line}")
    config = config_items(_parse_config(tail["config"] or "", line))
    hints = tuple(hint[1:] for hint in tail["hints"].split())
    strategy = _parse_strategy(tail["strategy"], line)
    return Primitive(head["name"], head["op"], tuple(args), prompt, config, tail["engine"], hints, strategy)


def _parse_strategy(text: str | None, line: str) -> Strategy:
    if text is None:
        return NO_STRATEGY
    try:
        return Strategy.of(json.loads(text))
    except (ValueError, ConfigError) as error:
        raise GraphError(f"cannot parse the strategy of: {line}") from error


def _parse_arg(text: str, known: set[str], line: str) -> tuple[str, Arg]:
    match = _ARG.fullmatch(text.strip())
    if match is None:
        raise GraphError(f"cannot parse {text!r} in: {line}")
    name, port = match["ref"], ""
    if name not in known and "." in name:
        name, _, port = name.rpartition(".")
    index = int(match["index"]) if match["index"] else None
    each = re.search(r"(?:^|=)each[~ ]", text.strip()) is not None
    return match["port"] or "", Arg(
        "", Ref(name, port, index), each, int(match["piece"]) if match["piece"] else None
    )


def _parse_prompt(rest: str, known: set[str], line: str) -> tuple[list[Constant | Arg], str]:
    parts: list[Constant | Arg] = []
    rest = rest[1:]
    while not rest.startswith("]"):
        if constant := _CONSTANT.match(rest):
            string = _STRING.match(rest, constant.end() - 1)
            if string is None:
                raise GraphError(f"an unfinished constant in: {line}")
            role = None if constant["role"] == "c" else constant["role"]
            parts.append(Constant(json.loads(string.group()), role))
            end = string.end()
        else:
            match = _ARG.match(rest)
            if match is None:
                raise GraphError(f"cannot parse the prompt of: {line}")
            port, arg = _parse_arg(match.group(), known, line)
            parts.append(Arg(port or str(arg.ref), arg.ref, arg.each, arg.piece))
            end = match.end()
        rest = rest[end:].removeprefix(", ")
    return parts, rest[1:]


def _parse_config(text: str, line: str) -> dict[str, object]:
    config: dict[str, object] = {}
    decoder = json.JSONDecoder()
    while text:
        key, equals, text = text.partition("=")
        try:
            value, end = decoder.raw_decode(text)
        except ValueError as error:
            raise GraphError(f"cannot parse the settings of: {line}") from error
        if not equals:
            raise GraphError(f"cannot parse the settings of: {line}")
        config[key.strip()] = value
        text = text[end:].removeprefix(",").strip()
    return config
