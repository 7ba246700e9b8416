"""Print an optimised graph as the Teola paper draws it: one node for each stage and each partial decode.

A graph only marks an edge as streaming and leaves the cutting of pieces to run time. This module cuts the
pieces that lists of given lengths would be cut into: the stages of batchable primitives, the partial
decodes of a splittable decode, and an aggregate wherever something waits for a whole stream. A prefill
is named by its part in the prompt, and lists the segments that it computes itself.

Source: Teola, Figure 6. Differs: text, in waves: all that a wave waits for is in the waves above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stretto.graph.graph import HINT, Arg, Constant, Graph, Primitive, PromptParts, Slot
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, Profiles
from stretto.model.errors import ConfigError
from stretto.trace.drawing import own_args, own_prompt

_FEW = 3
"""Assumed length of a list of unknown length."""
_CONSTANT_CHARS = 24


@dataclass(frozen=True, slots=True)
class UnrolledStep:
    """One step of a graph whose streamed lists are cut into pieces, for printing.

    It is the work on one piece of a list (a stage), one item of a decode, or the joining of all pieces.

    Attributes:
        what: the op, or the part that a prefill or decode plays.
        after: names of the steps it waits for; a graph input is written `%name`.
        computes: the prompt segments that a prefill computes itself, as text.
    """

    name: str
    what: str
    engine: str | None
    after: tuple[str, ...]
    computes: str = ""


def unroll(graph: Graph, lengths: Mapping[str, int], profiles: Profiles, ops: Ops = OPS) -> str:
    """Return a graph as text with its streamed lists cut into pieces: one line for each piece's step.

    The lines are sorted into waves: a step waits only for steps in earlier waves. `lengths` gives the assumed
    length of lists by name. Lists left out have one item (an input), two efficient batches of the engine that
    reads them (a chunked document), `max_items` (a decode), or three.

    Raises:
        ConfigError: a length is given for a name that starts no list, or is below 1.
    """
    unrolled = unroll_steps(graph, lengths, profiles, ops)
    assumed = ", ".join(f"{name}={length}" for name, length in unrolled.lengths.items())
    waves = _waves(unrolled.steps)
    steps = sorted(unrolled.steps, key=lambda step: waves[step.name])
    rows = [
        (str(waves[step.name]), step.name, step.what, f"@{step.engine}" if step.engine else "")
        for step in steps
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{graph.name} unrolled" + (f" for {assumed}" if assumed else "")]
    previous = ""
    for step, (wave, *cells) in zip(steps, rows, strict=True):
        padded = [("" if wave == previous else wave).rjust(widths[0])]
        padded += [cell.ljust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        after = f"<- {_list_steps(step.after)}" if step.after else ""
        lines.append("  ".join([*padded, after, step.computes]).rstrip())
        previous = wave
    lines += [f"return {name} <- {_list_steps(after)}" for name, after in unrolled.outputs]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Unrolled:
    """A graph whose streamed lists are cut into pieces, each with a step of its own, for printing.

    Attributes:
        steps: all steps, in graph order.
        lengths: the list lengths that were assumed, by name of the list.
        outputs: (name, names of the steps it waits for) of each output.
    """

    steps: tuple[UnrolledStep, ...]
    lengths: Mapping[str, int]
    outputs: tuple[tuple[str, tuple[str, ...]], ...]


def unroll_steps(graph: Graph, lengths: Mapping[str, int], profiles: Profiles, ops: Ops = OPS) -> Unrolled:
    """Cut the streamed lists of a graph into pieces, and return the steps that compute them.

    `lengths` gives the assumed length of lists by name; lists left out get a default length.

    Raises:
        ConfigError: a length is given for a name that starts no list, or is below 1.
    """
    return _Unroller(graph, lengths, profiles, ops).run()


class _Unroller:
    """The unrolling of one graph, in graph order.

    Attributes:
        pieces: the steps that produce a value, by its name: (first item, end, step name).
    """

    def __init__(self, graph: Graph, lengths: Mapping[str, int], profiles: Profiles, ops: Ops) -> None:
        self.graph, self.given, self.profiles, self.ops = graph, lengths, profiles, ops
        self.origins: dict[str, str] = {}
        self.used: dict[str, int] = {}
        self.pieces: dict[str, list[tuple[int, int, str]]] = {
            name: [(0, 1, f"%{name}")] for name, _ in graph.inputs
        }
        self.joined: dict[str, str] = {}
        self.steps: list[UnrolledStep] = []

    def run(self) -> Unrolled:
        for primitive in self.graph:
            each = next((arg for arg in primitive.args if arg.each), None)
            if each is not None and not self._is_flat(primitive.name):
                self.origins[primitive.name] = self._origin(each.ref.name)
            self._add(primitive, each)
        starts = [name for name in self.pieces if self._origin(name) == name]
        for name, length in self.given.items():
            if name not in starts:
                raise ConfigError(f"{self.graph.name} has no list {name!r} of its own length")
            if length < 1:
                raise ConfigError(f"{name}={length}: a list is unrolled for at least one item")
        outputs = tuple((name, self._whole(ref.name)) for name, ref in self.graph.outputs)
        return Unrolled(tuple(self.steps), self.used, outputs)

    def _add(self, primitive: Primitive, each: Arg | None) -> None:
        """Add the steps of one primitive: a single step, or one for each piece."""
        is_partial = self._is_pipelined(primitive)
        if is_partial:
            ranges = [(item, item + 1) for item in range(self._length(primitive.name))]
        elif each is not None:
            length = self._length(self._origin(each.ref.name))
            piece = min((arg.piece for arg in primitive.args if arg.piece is not None), default=length)
            ranges = [(lo, min(lo + piece, length)) for lo in range(0, length, piece)]
        else:
            ranges = [(0, 1)]
        pieces: list[tuple[int, int, str]] = []
        for number, (lo, hi) in enumerate(ranges, start=1):
            what = f"partial decode {number}" if is_partial else self._what(primitive)
            name = f"{primitive.name}{_items(lo, hi)}" if is_partial or len(ranges) > 1 else primitive.name
            after = (pieces[-1][2],) if is_partial and pieces else self._after(primitive, lo, hi)
            computes = _print_parts(own_prompt(self.graph, primitive), primitive)
            self.steps.append(UnrolledStep(name, what, primitive.engine, after, computes))
            pieces.append((lo, hi, name))
        self.pieces[primitive.name] = pieces

    def _after(self, primitive: Primitive, lo: int, hi: int) -> tuple[str, ...]:
        """Return the steps that items `lo` to `hi` of a primitive wait for."""
        names: list[str] = []
        for arg in own_args(self.graph, primitive):
            pieces = self.pieces[arg.ref.name]
            if primitive.op == "aggregate":
                names += [step for _, _, step in pieces]
            elif arg.each and len(pieces) > 1 and not self._is_flat(arg.ref.name):
                names += [step for a, b, step in pieces if a < hi and lo < b]
            else:
                names += self._whole(arg.ref.name)
        for before, later in self.graph.order:
            if later == primitive.name:
                names += self._whole(before)
        return tuple(dict.fromkeys(names))

    def _whole(self, name: str) -> tuple[str, ...]:
        """Return the step after which all of a value is there; add an aggregate if it comes in pieces."""
        steps = tuple(step for _, _, step in self.pieces[name])
        if len(steps) == 1 or self._is_pipelined(self.graph.by_name[name]):
            return steps[-1:]
        if name not in self.joined:
            self.joined[name] = f"{name}[all]"
            self.steps.append(UnrolledStep(self.joined[name], "aggregate", None, steps))
        return (self.joined[name],)

    def _is_flat(self, name: str) -> bool:
        """Return whether the pieces of a value are lists whose lengths are not known from its inputs."""
        primitive = self.graph.by_name.get(name)
        return primitive is not None and self.ops.spec(primitive).flatten

    def _is_pipelined(self, primitive: Primitive) -> bool:
        """Return whether items leave the decode while it is running."""
        readers = self.graph.consumers.get(primitive.name, ())
        return self.ops.spec(primitive).makes_text and any(arg.piece is not None for _, arg in readers)

    def _what(self, primitive: Primitive) -> str:
        """Return the op; for a prefill, the part it plays in the prompt."""
        if not self.ops.spec(primitive).computes_prompt:
            return primitive.op
        ports = {arg.port for _, arg in self.graph.consumers.get(primitive.name, ())}
        if ports == {HINT}:
            return "partial prefill"
        return "full prefill" if primitive.arg(HINT) else "prefill"

    def _origin(self, name: str) -> str:
        return self.origins.get(name, name)

    def _length(self, name: str) -> int:
        """Return the given or assumed length of the list that `name` starts."""
        if name not in self.used:
            self.used[name] = self.given.get(name) or self._assumed(name)
        return max(1, self.used[name])

    def _assumed(self, name: str) -> int:
        primitive = self.graph.by_name.get(name)
        if primitive is None:
            return 1
        if self.ops.spec(primitive).flatten:
            readers = (reader for reader, arg in self.graph.consumers.get(name, ()) if arg.each)
            reader = next(readers, primitive)
            return 2 * self.profiles.get(reader.engine or "", DEFAULT_PROFILE).max_efficient_batch
        for key in ("max_items", "best"):
            if isinstance(known := primitive.setting(key), int):
                return known
        return _FEW


def _waves(steps: Iterable[UnrolledStep]) -> dict[str, int]:
    """Return the wave of each step: the number of steps on the longest way to it from an input.

    `steps` must be in a topological order.
    """
    waves: dict[str, int] = {}
    for step in steps:
        waves[step.name] = 1 + max((waves.get(name, 0) for name in step.after), default=0)
    return waves


def _items(lo: int, hi: int) -> str:
    """Return the label of items `lo` to `hi` (half-open, counted from 0), with numbers counted from 1."""
    return f"[{hi}]" if hi == lo + 1 else f"[{lo + 1}-{hi}]"


def _list_steps(names: Sequence[str]) -> str:
    """Return the names as text, with a long run of pieces of one value cut short."""
    shown: list[str] = []
    runs: dict[str, list[str]] = {}
    for name in names:
        runs.setdefault(name.partition("[")[0], []).append(name)
    for run in runs.values():
        shown += run if len(run) <= _FEW else [f"{run[0]} … {run[-1]}"]
    return ", ".join(shown)


def _print_parts(parts: PromptParts, primitive: Primitive) -> str:
    return " ".join(_print_part(part, primitive) for part in parts)


def _print_part(part: Constant | Slot, primitive: Primitive) -> str:
    if isinstance(part, Slot):
        arg = primitive.arg(part.port)
        return f"%{arg.ref}" if arg else f"%{part.port}"
    text = " ".join(part.text.split())
    return f'"{text}"' if len(text) <= _CONSTANT_CHARS else f'"{text[: _CONSTANT_CHARS - 1].rstrip()}…"'
