"""Engine that transforms values between steps: it reads lists, JSON and the like from texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.contract import BatchEngine
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.tasks import Task
from stretto.transforms.table import chain


@dataclass(frozen=True, slots=True)
class TransformsConfig:
    """Configuration of `Transforms`, the engine that transforms values. It has no settings."""


class Transforms(BatchEngine):
    """A batch engine that transforms values.

    It runs the op `transform`: the setting `steps` is a chain of transforms, as
    `stretto.transforms.table` describes them, which is applied to the input `value`. A value that does not
    fit fails alone; or, with the setting `tells`, the result is a list of the transformed value, or of an
    empty text and what is wrong.
    """

    op_names = ("transform",)

    def __init__(self, config: TransformsConfig) -> None:
        pass

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Transform the value of each task, and return the results in order; an error in place of one that
        has failed.
        """
        return answer_batch(tasks, {"transform": self._transform})

    def _transform(self, applications: Sequence[OpApplication]) -> list[object]:
        return [_applied(application) for application in applications]


def _applied(application: OpApplication) -> object:
    task = application.task
    steps = task.config.get("steps", ())
    if not isinstance(steps, tuple) or not all(isinstance(step, str) for step in steps):
        return ConfigError(f"transform: 'steps' wants texts, got {steps!r:.80}", step=task.step)
    tells = bool(task.config.get("tells"))
    try:
        value = chain(steps)(application.require("value", object))
    except StrettoError as error:
        return ["", error.message] if tells else error.at(task.step)
    return [value] if tells else value
