"""A process that parses files under limits, so that a hostile file costs only itself.

One process parses file after file. It is killed when a file takes too long, and a new one is started for the
next file. Paths and answers are lines of JSON: what a parser was tricked into sending is data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from stretto.documents.pdf import MAX_PAGES
from stretto.model.errors import ConfigError, DocumentError
from stretto.model.values import Document, Section

_MAX_REPLY_BYTES = 500_000_000
_PROGRAM = "import sys; sys.path[:] = {path!r}; from stretto.documents.parser_main import main; main()"


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
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ParserProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def parse(self, path: str) -> Document:
        """Parse one file.

        Raises:
            DocumentError: the file is no document, or is beyond a limit; the message names the file.
            ConfigError: the parser of the format is not installed.
        """
        match self._ask(path):
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
        if (process := self._process) is not None:
            process.kill()

    def _ask(self, path: str) -> Any:
        """Return the answer of the process about one file; None if it has died or had too little memory.

        Raises DocumentError if the file takes too long.
        """
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it was killed between two files
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._limits.parse_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps(path).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline(_MAX_REPLY_BYTES)
        except BrokenPipeError:
            line = b""
        except BaseException:  # an interrupt: the answer would be taken for that of the next file
            self._end()
            raise
        finally:
            timer.cancel()
        if line.endswith(b"\n") and not is_late.is_set():
            return json.loads(line)
        self._end()
        if is_late.is_set():
            raise DocumentError(f"{path}: takes longer to parse than the {self._limits.parse_s:g} s allowed")
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _PROGRAM.format(path=sys.path)),
                *(str(self._limits.memory_bytes), str(self._limits.pages)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us, who end it
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
