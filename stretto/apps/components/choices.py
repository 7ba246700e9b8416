"""The choices that each component takes beside its own settings: hints, passes, attempts, fallback engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from stretto.graph.graph import Primitive
from stretto.graph.ops import Ops
from stretto.graph.passes.weigh import WEIGHED
from stretto.graph.strategy import Strategy
from stretto.model.errors import ConfigError

SelectPasses: TypeAlias = Callable[[str | Sequence[str]], tuple[str, ...]]

HINTS: Mapping[str, str] = {
    "batchable": "a step of a batch engine that takes a list",
    "splittable": "a decode of a list",
}
"""Table of the hints, and of the steps that can keep each."""


@dataclass(frozen=True)
class Choices:
    """The choices of a user for a component.

    Attributes:
        hints: hints of its steps, in place of those of the component's class; None leaves these. Each step
            gets those that it can keep. Texts stand for names with commas between.
        passes: passes that may change its steps: "all", "none" or names; None allows all. Whether they do is
            up to the passes of the query.
        timeout_s: seconds, waiting included, after which an attempt of a step counts as failed.
        retries: number of further attempts of a step that failed.
        backoff_s: seconds before the first further attempt. Each later one waits twice as long.
        fallback: engine that gets a step when all attempts at its own have failed: its name, or where the
            component has several engines "embedding:backup", with commas between.
    """

    hints: str | Sequence[str] | None = None
    passes: str | Sequence[str] | None = None
    timeout_s: float | None = None
    retries: int = 0
    backoff_s: float = 0.5
    fallback: str | None = None


NAMES = tuple(field.name for field in fields(Choices))


def with_choices(
    primitives: Sequence[Primitive], choices: Choices, ops: Ops, select_passes: SelectPasses
) -> list[Primitive]:
    """Return the primitives of a component, changed as its user has chosen.

    Args:
        select_passes: returns the names of passes that a user's choice stands for. May raise ConfigError.

    Raises:
        ConfigError: there is no such hint, pass or engine, a value cannot be used, or no step of the
            component can keep a hint.
    """
    if choices == Choices():
        return list(primitives)
    hints = None if choices.hints is None else _names("hints", choices.hints)
    for hint in hints or ():
        if hint not in HINTS:
            raise ConfigError(f"there is no hint {hint!r}; there are {', '.join(HINTS)}")
        if not any(_keeps(hint, primitive, ops) for primitive in primitives):
            raise ConfigError(f"the hint {hint!r} needs {HINTS[hint]}, and the component has none")
    passes = None if choices.passes is None else select_passes(_given("passes", choices.passes))
    if passes == WEIGHED:
        raise ConfigError('passes of a component are "all", "none" or names: they are weighed for whole apps')
    fallbacks = _fallbacks(choices.fallback, primitives)
    watched = Strategy(passes, choices.timeout_s, choices.retries, choices.backoff_s)
    result = []
    for primitive in primitives:
        strategy = Strategy(passes)
        if primitive.engine is not None:
            strategy = replace(watched, fallback=fallbacks.get(primitive.engine))
        elif primitive.op == "expand":  # for the steps that it becomes
            pairs = ",".join(f"{engine}:{other}" for engine, other in fallbacks.items())
            strategy = replace(watched, fallback=pairs or None)
        own = primitive.hints
        if hints is not None:
            own = tuple(hint for hint in hints if _keeps(hint, primitive, ops))
        result.append(replace(primitive, hints=own, strategy=strategy))
    return result


def _keeps(hint: str, primitive: Primitive, ops: Ops) -> bool:
    """Return whether the ports of a step can keep a hint."""
    spec = ops.spec(primitive)
    if hint == "splittable":
        return spec.makes_text and bool(primitive.setting("items"))
    takes_list = primitive.is_mapped() or any(port.type.startswith("list[") for port in spec.ports)
    return spec.runs_on == "batch" and takes_list


def _given(what: str, names: object) -> str | list[str]:
    if isinstance(names, str):
        return names
    found = list(names) if isinstance(names, Iterable) else [names]
    texts = [name for name in found if isinstance(name, str)]
    if len(texts) == len(found):
        return texts
    raise ConfigError(f"{what} must be names, got {names!r}")


def _names(what: str, names: object) -> list[str]:
    given = _given(what, names)
    if isinstance(given, str):
        return [name.strip() for name in given.split(",") if name.strip()]
    return given


def _fallbacks(fallback: object, primitives: Sequence[Primitive]) -> dict[str, str]:
    """Return the fallback engine of each engine that has one."""
    if fallback is None:
        return {}
    engines = list(dict.fromkeys(primitive.engine for primitive in primitives if primitive.engine))
    found: dict[str, str] = {}
    for name in _names("fallback", fallback):
        engine, colon, other = name.partition(":")
        if not colon:
            if len(engines) != 1:
                known = ", ".join(engines) or "none"
                raise ConfigError(
                    f"fallback={name!r} must be ENGINE:{name}, with one of the engines: {known}"
                )
            engine, other = engines[0], name
        if engine not in engines or not other or other == engine:
            known = ", ".join(engines)
            raise ConfigError(f"fallback={name!r} must name an engine of the component ({known}) and another")
        found[engine] = other
    return found
