"""A short text about an app's graph: which step runs after which, and what each pass has changed."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cli.verbosity import aligned
from stretto.graph.graph import HINT, Arg, Graph


def steps_text(graph: Graph) -> str:
    """Return a table of a graph's steps, in an order in which they can run: engine, and what each waits for.

    A step without an engine is done by the scheduler itself.
    """
    waits = {primitive.name: list(map(_awaited, primitive.args)) for primitive in graph}
    for before, after in graph.order:
        waits[after].append(f"{before} to end")
    rows = [("step", "engine", "waits for")]
    for primitive in graph:
        rows.append(
            (primitive.name, primitive.engine or "-", ", ".join(dict.fromkeys(waits[primitive.name])))
        )
    return _aligned(rows)


def changes_text(changes: Sequence[tuple[str, str, str]]) -> str:
    """Return a table of passes: name, what it has changed, and a remark. One that changed nothing is named
    below the table.
    """
    rows = [(name, change, remark) for name, change, remark in changes if change or remark]
    idle = [name for name, change, remark in changes if not (change or remark)]
    text = _aligned([("pass", "changed", "as predicted"), *rows]) if rows else ""
    return text + (f"nothing to do for {', '.join(idle)}\n" if idle else "")


def pass_changes(before: Graph, after: Graph) -> str:
    """Say which steps a pass has added, taken out and changed, and how many orders it has dropped."""
    old, new = before.by_name, after.by_name
    parts = _named("added", [name for name in new if name not in old])
    parts += _named("took out", [name for name in old if name not in new])
    parts += _named("changed", [name for name in new if name in old and new[name] != old[name]])
    if dropped := set(before.order) - set(after.order):
        parts += _named("no longer waiting in vain", sorted({name for _, name in dropped}))
    return "; ".join(parts)


def _named(verb: str, names: Sequence[str]) -> list[str]:
    return [f"{verb}: {', '.join(names)}"] if names else []


def _awaited(arg: Arg) -> str:
    """Say what is waited for: a value, an item of it, or as many items as are enough to begin."""
    if arg.port == HINT:
        return f"{arg.ref} if it is done"
    if arg.each and arg.piece is not None:
        return f"{arg.ref} ({arg.piece} at a time)"
    return str(arg.ref)


def _aligned(rows: Sequence[tuple[str, str, str]]) -> str:
    return "".join(f"{line}\n" for line in aligned(rows))
