"""Engine that calls the user's Python functions as steps of an app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.batch.python_results import Awaiter
from stretto.model.errors import ConfigError, EngineFailure
from stretto.model.foreign import described, raised
from stretto.model.nearest_name import check_name
from stretto.model.tasks import Task


@dataclass(frozen=True, slots=True)
class CallsConfig:
    """Configuration of `Calls`: the Python functions that apps may call, by name."""

    functions: Mapping[str, Callable[..., object]] = field(default_factory=dict)

    def check_step(self, settings: Mapping[str, object]) -> None:
        """Check that there is the function that a step calls. Raises ConfigError."""
        check_name("function", str(settings.get("function")), self.functions, {})


class Calls:
    """A batch engine that calls the user's Python functions, one after the other.

    It runs the op `call`: the setting `function` names the function; the step's inputs become
    its keyword arguments. A call with `result="effect"` (it changes something outside) runs at most once,
    unless `idempotent` says that the function may be called again with the same inputs, because it takes an
    idempotency key among them or changes nothing more.
    """

    op_names: Sequence[str] = ("call",)

    def __init__(self, config: CallsConfig) -> None:
        self._functions = config.functions
        self._awaiter = Awaiter()

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Call the user's function that each task names, and return the results in order.

        Raises:
            ConfigError: there is no function of that name; none has been called then.
            EngineFailure: a function raised an error.
        """
        for task in tasks:
            self._function(task)
        return answer_batch(tasks, {"call": self._call})

    def release(self, query: str) -> None:
        """Do nothing when a query ends, because nothing is kept for it."""
        pass

    def close(self) -> None:
        """End the event loop of functions that are coroutine functions."""
        self._awaiter.close()

    def _function(self, task: Task) -> Callable[..., object]:
        name = setting(task, "function", str)
        if name not in self._functions:
            known = ", ".join(sorted(self._functions)) or "none"
            raise ConfigError(f"there is no function {name!r}; there are: {known}", step=task.step)
        return self._functions[name]

    def _call(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self._apply(application) for application in applications]

    def _apply(self, application: OpApplication) -> object:
        task = application.task
        try:
            return self._awaiter.value(self._function(task)(**application.inputs))
        except raised() as cause:
            name = cast(str, task.config["function"])
            raise EngineFailure(f"function {name!r} raised {described(cause)}", step=task.step) from cause
