"""References to values that stay where they were produced, outside the scheduler's process.

An engine in a Ray worker leaves large results in memory that other workers read. The schedulers pass on
references; the instance that needs a value fetches it by itself. A value that the schedulers look into, such
as a text in a prompt, is loaded there. So are outputs, when a caller gets them.

A reference stands for one value or one item of a list, never for a list, so that lists are cut and joined
without a look at their items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from stretto.model.tasks import Task


class ValueMemory(Protocol):
    """The interface of memory with values that one batch has left outside the scheduler's process.

    Its memory is freed when no reference to it is left.
    """

    def load(self, index: int) -> object:
        """Return a copy of value number `index`.

        Raises:
            EngineFailure: the value is lost, or does not unpickle here.
        """
        ...


class Reference:
    """A reference to value number `index` of a source. It stands in place of the value."""

    __slots__ = ("index", "source")

    def __init__(self, source: ValueMemory, index: int) -> None:
        self.source = source
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return Reference, (self.source, self.index)

    def __repr__(self) -> str:
        return f"Reference({self.source!r}, {self.index})"

    def load(self) -> object:
        """Return a copy of the value. Raises EngineFailure if it is lost or does not unpickle here."""
        return self.source.load(self.index)


_MAY_HOLD = frozenset((Reference, list, tuple))


def load_references(value: object, but: type[ValueMemory] | None = None) -> object:
    """Return a value with the values themselves in place of references to them, in nested lists too.

    A value without references is returned as it is, or as an equal copy. References to sources of the type
    `but` stay.

    Raises:
        EngineFailure: a value is lost.
    """
    kind = type(value)
    if kind is Reference:
        assert isinstance(value, Reference)
        return value if but is not None and isinstance(value.source, but) else value.load()
    if kind is list or kind is tuple:
        assert isinstance(value, list | tuple)
        if _MAY_HOLD.isdisjoint(map(type, value)):
            return value
        return kind(map(partial(load_references, but=but), value))
    return value


def load_inputs(inputs: Mapping[str, object], but: type[ValueMemory] | None = None) -> Mapping[str, object]:
    """Return inputs by port with the values themselves in place of references to them.

    The arguments and errors are those of `load_references`.
    """
    return {port: load_references(value, but) for port, value in inputs.items()}


def load_task(task: Task, but: type[ValueMemory] | None = None) -> Task:
    """Return a task with its input values themselves in place of references to them.

    The arguments and errors are those of `load_references`.
    """
    if _MAY_HOLD.isdisjoint(map(type, task.inputs.values())):
        return task
    inputs = load_inputs(task.inputs, but)
    if all(inputs[port] is value for port, value in task.inputs.items()):
        return task
    return replace(task, inputs=inputs)
