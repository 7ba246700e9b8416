"""What a prediction knows of each step of a graph, worked out once for all versions of the graph.

A pass replaces a few primitives and keeps the others, so that most of it serves all versions.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from stretto.costs.mean_output import num_tokens
from stretto.graph.graph import HINT, Constant, Primitive, PromptParts, Ref
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, TOKENS_PER_SLOT, Conditions, texts_of
from stretto.model.profile import Profile
from stretto.model.tasks import Decode

_TOKENS_PER_ITEM = 20
"""Assumed length of an item that an LLM writes: a question of a dozen words."""
_ASSUMED_ITEMS = 3
_MOST_ITEMS = 64
"""Largest length of a list whose settings allow more: predictions take a time that grows with its square."""


@dataclass(slots=True)
class EngineUse:
    """An engine, and what it does at the present time of a schedule.

    Attributes:
        num_cores: number of the shared cores that it takes while it does something.
        num_running: number of batches and decodes that run.
        num_batches: number of those that take an instance; an LLM decodes beside them.
    """

    profile: Profile
    num_instances: int
    num_cores: int
    num_running: int = 0
    num_batches: int = 0


@dataclass(slots=True)
class PromptLength:
    """The assumed tokens of a prompt.

    Attributes:
        num_constants: number of constants with which it begins.
        tokens_from: tokens of its parts from each place on; the last number, for the end, is 0.
    """

    num_constants: int
    tokens_from: list[int]


@dataclass(slots=True)
class PredictedStep:
    """A primitive, as a prediction sees it.

    Attributes:
        reads: names of the values that it waits for, with the number of items that a part needs, or None if
            it needs all of them.
        each: names of the values to whose items it is applied, with the size of the pieces.
        takes_pieces: whether it may start before all of these items exist.
        flattens: whether it makes a list of its own for each item.
        decode_s: predicted seconds of all of its output, if it is a decode.
        prompt: what it computes, if it is a prefill. Equal prompts are the same object.
        hint: name of the prefill that computes a beginning of its prompt, if there is one.
    """

    name: str
    primitive: Primitive
    engine: EngineUse | None
    is_llm: bool
    is_decode: bool
    reads: tuple[tuple[str, int | None], ...]
    each: tuple[tuple[str, int | None], ...]
    takes_pieces: bool
    flattens: bool
    decode_s: float
    prompt: PromptLength | None
    hint: str | None


class Steps:
    """A table of the steps of a graph in all versions that are compared, and of their engines.

    One schedule at a time is made with it, because it keeps what the engines do.
    """

    def __init__(self, conditions: Conditions, ops: Ops) -> None:
        self.conditions = conditions
        self._ops = ops
        self._engines: dict[str, EngineUse] = {}
        self._steps: dict[int, PredictedStep] = {}
        self._prompts: dict[Hashable, list[tuple[PromptParts, list[tuple[str, Ref]], PromptLength]]] = {}

    def of(self, primitive: Primitive) -> PredictedStep:
        """Return what is known of a primitive."""
        step = self._steps.get(id(primitive))  # a step keeps its primitive, so no other one gets that id
        if step is None:
            step = self._steps[id(primitive)] = self._new(primitive)
        return step

    def _new(self, primitive: Primitive) -> PredictedStep:
        engine = None if primitive.engine is None else self._engine(primitive.engine)
        spec = self._ops.spec(primitive)
        is_decode = spec.makes_text
        hint: str | None = None
        takes_pieces = False
        reads, each = [], []
        for arg in primitive.args:
            name = arg.ref.name
            if arg.port == HINT:
                hint = name
                if not arg.each:
                    continue
            reads.append((name, arg.piece if arg.each else None))
            if arg.each:
                each.append((name, arg.piece))
                takes_pieces = takes_pieces or arg.piece is not None
        return PredictedStep(
            primitive.name,
            primitive,
            engine,
            spec.computes_prompt or is_decode,
            is_decode,
            tuple(reads),
            tuple(each),
            takes_pieces,
            spec.flatten,
            engine.profile.per_output_s * _output_tokens(primitive) if is_decode and engine else 0.0,
            self._prompt(primitive) if spec.computes_prompt else None,
            hint,
        )

    def _engine(self, name: str) -> EngineUse:
        engine = self._engines.get(name)
        if engine is None:
            given = self.conditions
            profile = given.profiles.get(name, DEFAULT_PROFILE)
            cores = min(given.threads.get(name, 0), given.cores)
            engine = self._engines[name] = EngineUse(profile, given.instances.get(name, 1), cores)
        return engine

    def _prompt(self, prefill: Primitive) -> PromptLength:
        slots = [(arg.port, arg.ref) for arg in prefill.args if arg.port != HINT]
        reads = tuple([ref.name for _, ref in slots])
        alike = self._prompts.setdefault((prefill.engine, texts_of(prefill.prompt), reads), [])
        for prompt, other, length in alike:  # cheaper than to hash whole prompts
            if prompt == prefill.prompt and other == slots:
                return length
        length = _prompt_length(prefill.prompt)
        alike.append((prefill.prompt, slots, length))
        return length


def _prompt_length(prompt: PromptParts) -> PromptLength:
    tokens_from = [0]
    num_constants = len(prompt)
    for place in range(len(prompt) - 1, -1, -1):
        part = prompt[place]
        if isinstance(part, Constant):
            tokens_from.append(tokens_from[-1] + num_tokens(part.text))
        else:
            tokens_from.append(tokens_from[-1] + TOKENS_PER_SLOT)
            num_constants = place
    tokens_from.reverse()
    return PromptLength(num_constants, tokens_from)


def num_items(primitive: Primitive) -> int:
    """Return the assumed length of the list that a primitive yields if it is not applied to one."""
    for key in ("max_items", "best"):
        limit = primitive.setting(key)
        if isinstance(limit, int) and limit > 0:
            return min(limit, _MOST_ITEMS)
    return _ASSUMED_ITEMS


def _output_tokens(decode: Primitive) -> int:
    """Return the assumed length of an output: its limit, or less for a list of so many items."""
    limit, items = decode.setting("max_tokens"), decode.setting("max_items")
    tokens = limit if isinstance(limit, int) else Decode().max_tokens
    return min(tokens, items * _TOKENS_PER_ITEM) if isinstance(items, int) else tokens
