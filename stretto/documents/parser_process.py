"""A process that parses files under limits, so that a hostile file costs only itself.

One process parses file after file. It is killed when a file takes too long, and a new one is started for the
next file. Paths and answers are JSON: what a parser was tricked into sending is data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import TracebackType

from stretto.documents.pdf import MAX_PAGES
from stretto.model.child_process import ChildProcess
from stretto.model.errors import ConfigError, DocumentError
from stretto.model.values import Document, Section


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """The limits within which one file is parsed.

    Attributes:
        parse_s: seconds of wall clock.
        memory_bytes: memory beyond that of an idle parser; enforced on Linux.
        pages: pages of a PDF file.
    """

    parse_s: float = 60.0
    memory_bytes: int = 2_000_000_000
    pages: int = MAX_PAGES

    def __post_init__(self) -> None:
        for name in ("parse_s", "memory_bytes", "pages"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)!r}")


class ParserProcess:
    """A parser of files that runs in a process of its own, started with the first file."""

    def __init__(self, limits: ParseLimits) -> None:
        arguments = str(limits.memory_bytes), str(limits.pages)
        self._limits = limits
        self._process = ChildProcess("stretto.documents.parser_main", limits.parse_s, arguments)

    def __enter__(self) -> ParserProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.end()

    def parse(self, path: str) -> Document:
        """Parse one file.

        Raises:
            DocumentError: the file is no document, or is beyond a limit; the message names the file.
            ConfigError: the parser of the format is not installed.
        """
        try:
            answer = self._process.ask(json.dumps(path).encode())
        except TimeoutError as error:
            limit_s = self._limits.parse_s
            raise DocumentError(f"{path}: takes longer to parse than the {limit_s:g} s allowed") from error
        match None if answer is None else json.loads(answer):
            case None:
                raise DocumentError(
                    f"{path}: its parser ended without an answer; it may need more than the "
                    f"{self._limits.memory_bytes} bytes of memory allowed"
                )
            case {"sections": sections, "sha256": str(sha256), "unread_pages": list(pages)}:
                return Document(path, tuple(Section(*section) for section in sections), sha256, tuple(pages))
            case {"config": str(message)}:
                raise ConfigError(message)
            case {"document": str(message)}:
                raise DocumentError(message)
        raise DocumentError(f"{path}: the parser process sent an invalid reply")

    def kill(self) -> None:
        """End the process, from any thread. A file that is being parsed fails; the next one is parsed by a
        new process.
        """
        self._process.kill()
