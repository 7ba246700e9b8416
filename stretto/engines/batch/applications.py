"""Splits the tasks of a batch into single applications, for all batch engines.

A task applies its op once, or to each of `num_items` list items; each of these is an application. A batch
mixes tasks of several queries. `answer_batch` flattens a batch into applications, calls the
engine for neighbouring ones of the same op together, and combines the values into one answer per task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TypeAlias, TypeVar

from stretto.model.errors import BadReply, ConfigError, QueryCancelled
from stretto.model.tasks import Task
from stretto.model.values import ABSENT

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpApplication:
    """One application of a task's op. A task may apply its op to each item of
    a list; each of these is an application.

    Attributes:
        inputs: values by port: of ports that take a list item by item, one item.
    """

    task: Task
    inputs: Mapping[str, object]

    def get(self, port: str, kind: type[T]) -> T | None:
        """Return the input value at a port of the task; None if there is none.

        Raises:
            BadReply: the value is not of type `kind`.
        """
        value = self.inputs.get(port, ABSENT)
        if value is ABSENT or value is None:
            return None
        if not isinstance(value, kind):
            raise BadReply(
                f"{self.task.op}: port {port!r} wants a {kind.__name__}, got a {type(value).__name__}",
                step=self.task.step,
            )
        return value

    def require(self, port: str, kind: type[T]) -> T:
        """Return the input value at a port of the task, which must have one.

        Raises:
            BadReply: there is no value, or it is not of type `kind`.
        """
        value = self.get(port, kind)
        if value is None:
            raise BadReply(f"{self.task.op}: nothing at port {port!r}", step=self.task.step)
        return value


def unwanted(application: OpApplication) -> QueryCancelled:
    """Return the error that takes the place of an unwanted answer in a list of results."""
    return QueryCancelled("nobody waits for the answer any more", step=application.task.step)


Op: TypeAlias = Callable[[Sequence[OpApplication]], Sequence[object]]


def applications(task: Task) -> list[OpApplication]:
    """Split a task into its applications: one, or one for each item of the lists that the task's op is
    applied to.

    Raises:
        BadReply: a port in `each` has no list of `num_items`.
    """
    if task.num_items is None:
        return [OpApplication(task, task.inputs)]
    lists: dict[str, Sequence[object]] = {}
    for port in task.each:
        items = task.inputs.get(port)
        if not isinstance(items, Sequence) or isinstance(items, str) or len(items) != task.num_items:
            raise BadReply(f"{task.op}: port {port!r} wants {task.num_items} items", step=task.step)
        lists[port] = items
    return [
        OpApplication(task, {**task.inputs, **{port: items[i] for port, items in lists.items()}})
        for i in range(task.num_items)
    ]


def answer_batch(tasks: Sequence[Task], ops: Mapping[str, Op]) -> list[object]:
    """Compute the answers of a batch of tasks for a batch engine, in the tasks' order.

    `ops` has, for each op, the function that computes a list of its applications. Neighbouring
    tasks of one op share one call of that function. The answer of a task that is applied to list items is a
    list.

    Raises:
        ConfigError: a task's op is not in `ops`; nothing has run then.
    """
    for task in tasks:
        if task.op not in ops:
            raise ConfigError(f"no op {task.op!r} here, only {', '.join(ops)}", step=task.step)
    flat = [application for task in tasks for application in applications(task)]
    values: list[object] = []
    for op, run in groupby(flat, key=lambda application: application.task.op):
        values.extend(ops[op](list(run)))
    rest = iter(values)
    return [next(rest) if task.num_items is None else list(islice(rest, task.num_items)) for task in tasks]


def setting(task: Task, key: str, kind: type[T], default: T | None = None) -> T:
    """Return the value of the setting `key` in a task's configuration; `default` if the setting is missing.

    Raises:
        ConfigError: the key is missing and has no default, or its value is not of type `kind`.
    """
    value = task.config.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(
            f"{task.op}: {key!r} wants {kind.__name__}, got {value!r}",
            step=task.step,
        )
    return value
