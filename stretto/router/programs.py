"""Programs of the requests that come through the router: recognised when a request is read, remembered when
its answer has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.cluster.recognition.ids import ProgramIds, read_ids
from stretto.cluster.recognition.messages import AskedProgram, Recognised
from stretto.cluster.recognition.recogniser import Recogniser
from stretto.http.client.headers import Headers
from stretto.router.messages import BY_CLIENT, NamedProgram
from stretto.wire.answer_start import AnswerStart
from stretto.wire.turns import read_prompt

HEADER = b"x-stretto-program"
"""Header of an answer that says to which program its request belongs."""
_NO_IDS = ProgramIds()


def asked_program(path: str, headers: Headers, fields: Mapping[str, Any], tenant: str) -> AskedProgram | None:
    """Return by what the program of a request is recognised; None if the request has nothing of it.

    Args:
        tenant: name of the tenant, or digest of the client's key. Ids and texts of others are not looked at.
    """
    ids, prompt = read_ids(headers, fields), read_prompt(path, fields, tenant)
    return None if prompt is None and ids == _NO_IDS else AskedProgram(tenant, ids, prompt)


class RoutedProgram:
    """The program of one request at the router, until its answer has passed.

    Attributes:
        recognised: what was found.
        answer: beginning of the answer, to which what passes is given.
    """

    def __init__(self, recogniser: Recogniser, asked: AskedProgram, path: str, num_answers: int) -> None:
        self._recogniser = recogniser
        self._is_single = num_answers == 1
        self.recognised: Recognised = recogniser.arrive(asked)
        self.answer = AnswerStart(path)
        name = asked.ids.parent or asked.ids.name
        self._shared = f"{BY_CLIENT}{name}" if name else ""

    @property
    def named(self) -> NamedProgram:
        """The program as the queues and the room know it. A doubtful join counts for neither."""
        found = self.recognised
        is_known = found.confidence in ("certain", "sure")
        return NamedProgram(
            str(found.program), is_final=found.is_last, has_returned=is_known, shared=self._shared
        )

    @property
    def told_as(self) -> str:
        """Number of the program that the client is told."""
        return str(self.recognised.told_as)

    @property
    def header(self) -> bytes:
        """The program and how it was found, as the header of the answer says them: "12;continues;sure"."""
        found = self.recognised
        return f"{found.told_as};{found.way};{found.confidence}".encode()

    def end(self, *, was_answered: bool) -> None:
        """Note the end of the request; `was_answered` is whether at least a part of an answer has passed."""
        if was_answered:
            self._recogniser.answered(self.recognised.key, self.answer.texts() if self._is_single else None)
        else:
            self._recogniser.failed(self.recognised.key)
