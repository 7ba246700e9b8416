"""The answers of a run as lines of JSON, in the form of OpenAI's Batch files.

A request of a Batch file gets the body of its API. Another one gets its answers by node: a text, or a list of
texts where the node is called several times or by chunk. A line stands in the file of answers, or in the
file of failures. There it has the answers of the nodes that did not fail beside the error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from stretto.model.errors import ConfigError, StrettoError
from stretto.model.private_file import private
from stretto.model.values import ABSENT
from stretto.planner.application import Application
from stretto.planner.running.planned_calls import CallEnded, LineFailed, WholeAnswer
from stretto.planner.running.run_request import RefusedLine
from stretto.runtime.journal.file import not_saved
from stretto.wire.answer_writing import whole_json
from stretto.wire.answers import AnswerChoice, TokenCounts
from stretto.wire.answers import ModelAnswer as WireAnswer

_encode = json.JSONEncoder(check_circular=False).encode


class ResultFiles:
    """The two files of a run's results, written anew: one for answers, one for failures.

    Attributes:
        num_answered, num_failed: numbers of lines written.

    Raises:
        ConfigError: a file cannot be opened.
    """

    def __init__(self, answers: Path, failures: Path, app: Application) -> None:
        self.num_answered = self.num_failed = 0
        self._app = app
        with ExitStack() as opened:
            self._answers = opened.enter_context(_opened(answers))
            self._failures = opened.enter_context(_opened(failures))
            self._files = opened.pop_all()

    def write(self, ended: CallEnded) -> None:
        """Write the line of a request that has ended. Raises NotSaved if the disk does not take it."""
        file = self._answers if ended.error is None else self._failures
        self._write(file, result_line(ended, self._app, int(time.time())))
        self.num_answered += ended.error is None
        self.num_failed += ended.error is not None

    def refuse(self, lines: Iterable[RefusedLine]) -> None:
        """Write lines that are not run to the file of failures. Raises NotSaved if the disk is full."""
        for line in lines:
            self._write(self._failures, _line(line.id, None, _error(line.error)))
            self.num_failed += 1

    def _write(self, file: TextIO, line: dict[str, Any]) -> None:
        try:
            file.write(_encode(line) + "\n")
        except OSError as error:
            raise not_saved(Path(file.name), error) from error

    def close(self) -> None:
        """Write what is left and close both files. Raises NotSaved if the disk does not take it."""
        try:
            for file in (self._answers, self._failures):
                _flush(file)
        finally:
            with suppress(OSError):  # what is left cannot be written
                self._files.close()


def _flush(file: TextIO) -> None:
    try:
        file.flush()
    except OSError as error:
        raise not_saved(Path(file.name), error) from error


def _opened(path: Path) -> TextIO:
    try:
        return open(path, "w", encoding="utf-8", opener=private)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def result_line(ended: CallEnded, app: Application, created_s: int) -> dict[str, Any]:
    """Return the line of a request that has ended, by the time `created_s`, in seconds since the epoch."""
    if isinstance(ended.error, LineFailed):
        return _line(ended.id, _response(ended.error.whole), None)
    if ended.outputs is not None:
        outputs = {name: _plain(value) for name, value in ended.outputs.items()}
        return _line(
            ended.id, {"status_code": 200, "request_id": ended.id, "body": {"outputs": outputs}}, None
        )
    if ended.error is None:
        whole = _whole(ended)
        if whole is not None:
            return _line(ended.id, _response(whole), None)
        response = {"status_code": 200, "request_id": ended.id, "body": _body(ended, app, created_s)}
        return _line(ended.id, response, None)
    line = _line(ended.id, None, _error(ended.error))
    return {**line, "answers": _answers(ended, app)} if ended.answers else line


def _line(id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": f"batch_req_{id}", "custom_id": id, "response": response, "error": error}


def _whole(ended: CallEnded) -> WholeAnswer | None:
    """Return the answer to a line that was handed on; None for another request."""
    return next((one.whole for answers in ended.answers.values() for one in answers if one.whole), None)


def _response(whole: WholeAnswer) -> dict[str, Any]:
    body = json.loads(whole.body)
    return {"status_code": whole.status, "request_id": whole.request_id, "body": body}


def _error(error: StrettoError) -> dict[str, Any]:
    return {"code": type(error).__name__, "message": str(error)}


def _body(ended: CallEnded, app: Application, created_s: int) -> dict[str, Any]:
    if ended.kind.api is None:
        return {"answers": _answers(ended, app)}
    (node,) = ended.answers
    answers = ended.answers[node]
    cap = ended.kind.max_tokens
    choices: list[AnswerChoice] = []
    num_prompt = num_output = 0
    for at, one in enumerate(answers):
        finish = "length" if one.num_output == cap else "stop"
        choices.append(AnswerChoice(index=at, text=one.text, role="assistant", finish=finish))
        num_prompt += one.num_prompt
        num_output += one.num_output
    counts = TokenCounts(num_prompt, num_output)
    answer = WireAnswer(
        id=ended.id, model=ended.kind.model, created_s=created_s, choices=tuple(choices), counts=counts
    )
    return whole_json(ended.kind.api, answer)


def _answers(ended: CallEnded, app: Application) -> dict[str, str | list[str]]:
    """Return the texts of the nodes that were answered."""
    return {
        name: answers[0].text if _is_single(app, name) else [one.text for one in answers]
        for name, answers in ended.answers.items()
    }


def _plain(value: object) -> object:
    """Return an output of an app as a value of JSON; what is absent is null."""
    if value is ABSENT:
        return None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _is_single(app: Application, name: str) -> bool:
    node = app.node(name)
    return node.calls == 1 and not node.is_by_chunk
