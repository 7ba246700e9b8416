"""The programs of requests that the service itself answers, recognised as the router recognises them: by what
clients say, else by prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stretto.cluster.recognition.messages import AskedProgram
from stretto.cluster.recognition.recogniser import Recogniser
from stretto.router.programs import HEADER, RoutedProgram
from stretto.runtime.runtime import Runtime
from stretto.service.request import ServiceRequest

_MOST_PROGRAMS = 100_000


class ServedPrograms:
    """The programs of the requests to a runtime.

    Args:
        recogniser: knows them, and those of requests that workers answer; None makes one.
    """

    def __init__(self, runtime: Runtime, recogniser: Callable[[], Recogniser] | None = None) -> None:
        self._runtime = runtime
        own = Recogniser(_MOST_PROGRAMS)
        self._recogniser = recogniser or (lambda: own)

    @contextmanager
    def of(
        self, request: ServiceRequest, asked: AskedProgram | None, num_answers: int = 1
    ) -> Iterator[RoutedProgram | None]:
        """Recognise the program of a request that is answered within the block, which a header of the answer
        tells; None if nothing is known of it. What it generates is to be fed to the program's `answer`.
        """
        if asked is None:
            yield None
            return
        program = RoutedProgram(self._recogniser(), asked, request.path, num_answers)
        request.told.append((HEADER, program.header))
        try:
            yield program
        except BaseException:
            program.end(was_answered=request.has_begun)
            raise
        program.end(was_answered=True)
        if program.recognised.is_last:
            self._runtime.end_program(name_of(program), asked.tenant)


def name_of(program: RoutedProgram | None) -> str:
    """Return the name by which queries of a program belong together; "" for one that may make no further
    request, which is a program by itself.
    """
    if program is None:
        return ""
    named = program.named
    return named.name if named.has_returned else ""
