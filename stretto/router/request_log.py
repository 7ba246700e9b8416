"""The record of each request: which workers it was sent to and why, and what came of it.

A line of the log is a JSON object. Times are seconds after the arrival of the request.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from stretto.model.errors import ConfigError
from stretto.model.private_file import private
from stretto.router.messages import Send, WorkerId, WorkerUsage

_FLUSH_BYTES = 65536
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Try:
    """One attempt: the worker, why it was chosen, and how the attempt failed, if it has."""

    action: Send
    at_s: float
    failure: str = ""


@dataclass(slots=True)
class RequestTrace:
    """The history of one request so far.

    Attributes:
        arrived_s, decided_s, first_byte_s, ended_s: loop times; None before they are known.
        num_prompt: estimated number of tokens of its prompt.
        status: status that the client got; 0 if its answer was cut.
        error: why it failed or was cut, if it did.
        was_hedged: whether it was sent a second time beside the first.
    """

    request_id: str
    target: str
    arrived_s: float
    model: str = ""
    num_prompt: int = 0
    decided_s: float | None = None
    first_byte_s: float | None = None
    ended_s: float | None = None
    tries: list[Try] = field(default_factory=list)
    status: int = 0
    error: str = ""
    was_hedged: bool = False
    usage: WorkerUsage = field(default_factory=WorkerUsage)

    @property
    def worker(self) -> WorkerId:
        """The last worker that it was sent to; -1 if it was sent to none."""
        return self.tries[-1].action.worker if self.tries else -1

    @property
    def waited_s(self) -> float:
        """Seconds that it has waited in the router until it was last sent, for room or for its turn."""
        return self.tries[-1].action.waited_s if self.tries else 0.0

    @property
    def why(self) -> str:
        """What it has waited for; "" if it has not."""
        return self.tries[-1].action.why if self.tries else ""

    @property
    def reason(self) -> str:
        """Why it was last sent where it was, and which attempt that was if not the first; "" if it was not
        sent.
        """
        reason = self.tries[-1].action.choice.reason if self.tries else ""
        return reason if len(self.tries) < 2 else f"{reason}; attempt {len(self.tries)}"

    @property
    def predicted_cached(self) -> int:
        """Number of tokens of its prompt that the last worker was believed to hold."""
        return self.tries[-1].action.choice.held_tokens if self.tries else 0

    def sent(self, action: Send, now_s: float) -> None:
        """Note that it is sent to a worker."""
        self.tries.append(Try(action, now_s))

    def failed(self, reason: str) -> None:
        """Note that the attempt that runs has failed."""
        if self.tries:
            self.tries[-1].failure = reason

    def end(self, status: int, now_s: float) -> None:
        """Note its end."""
        self.status, self.ended_s = status, now_s

    def to_json(self) -> dict[str, object]:
        """Return the trace as the JSON of a line of the log."""
        return {
            "id": self.request_id,
            "path": self.target,
            "model": self.model,
            "status": self.status,
            **({"error": self.error} if self.error else {}),
            "prompt_tokens_estimated": self.num_prompt,
            "prompt_tokens": self.usage.num_prompt,
            "completion_tokens": self.usage.num_output,
            "cached_tokens_predicted": self.predicted_cached,
            "cached_tokens": self.usage.num_cached,
            **({"waited_s": round(self.waited_s, 6), "waited_for": self.why} if self.why else {}),
            **({"hedged": True} if self.was_hedged else {}),
            "decision_s": self._after(self.decided_s),
            "first_byte_s": self._after(self.first_byte_s),
            "total_s": self._after(self.ended_s),
            "attempts": [
                {
                    "worker": one.action.worker,
                    "at_s": self._after(one.at_s),
                    "reason": one.action.choice.reason,
                    "held_tokens": one.action.choice.held_tokens,
                    "terms": dict(one.action.choice.terms),
                    **({"failure": one.failure} if one.failure else {}),
                }
                for one in self.tries
            ],
        }

    def _after(self, time_s: float | None) -> float | None:
        return None if time_s is None else round(time_s - self.arrived_s, 6)


class RequestLog:
    """A file to which the trace of each request is appended, as one line of JSON.

    When it can no longer be written, for example because the disk is full, a warning says so and no more is
    written: the requests go on.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: TextIO = open(path, "a", _FLUSH_BYTES, "utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        self._path = path
        self._is_broken = False

    def write(self, trace: RequestTrace) -> None:
        """Append a trace; it may stay in memory until `flush`."""
        line = {"time": round(time.time(), 3), **trace.to_json()}
        self._try(lambda: self._file.write(json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n"))

    def flush(self) -> None:
        """Write what is in memory to the file."""
        self._try(self._file.flush)

    def close(self) -> None:
        """Close the file."""
        self._try(self._file.close)

    def _try(self, write: Callable[[], object]) -> None:
        if self._is_broken:
            return
        try:
            write()
        except OSError as error:
            self._is_broken = True
            with suppress(OSError):
                self._file.close()
            _log.warning("%s: cannot be written, and records no more requests: %s", self._path, error)
