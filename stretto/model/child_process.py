"""A process that answers one request after another for this one, within limits, so that what is hostile costs
only itself.

It is started with the first request, and again with the next one after it was killed. Requests and answers
are two texts of bytes, with their lengths before them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"
_LENGTHS = struct.Struct("<QQ")
_MAX_BYTES = 500_000_000


class ChildProcess:
    """A process that runs the function `main` of a module, which calls `serve_parent`.

    Args:
        arguments: arguments of its command line.
        limit_s: seconds of wall clock for one request.
    """

    def __init__(self, module: str, limit_s: float, arguments: tuple[str, ...] = ()) -> None:
        self._command = (sys.executable, "-c", _PROGRAM.format(path=sys.path, module=module), *arguments)
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, head: bytes, content: bytes = b"") -> bytes | None:
        """Return the answer to a request; None if the process has died or had too little memory.

        Raises:
            TimeoutError: the request takes too long.
        """
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it was killed between two requests
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._limit_s, give_up)
        timer.daemon = True
        timer.start()
        answer: bytes | None = None
        try:
            with contextlib.suppress(BrokenPipeError):
                _write(process.stdin, head, content)
                found = _read(process.stdout)
                answer = None if found is None else found[0]
        except BaseException:  # an interrupt: the answer would be taken for that of the next request
            self.end()
            raise
        finally:
            timer.cancel()
        if is_late.is_set():
            self.end()
            raise TimeoutError(f"it takes longer than the {self._limit_s:g} s allowed")
        if answer is None:
            self.end()
        return answer

    def kill(self) -> None:
        """End the process, from any thread. A request that it works on has no answer; the next one goes to a
        new process.
        """
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> None:
        """End the process and wait for that. No request may be asked meanwhile."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us, who end it
        )
        return self._process


def serve_parent(answer: Callable[[bytes, bytes], bytes], memory_bytes: int) -> None:
    """Answer requests until there are no more, with at most so many bytes of memory beyond those in use now.

    The process exits when a request needs more memory. What is printed goes to stderr.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory(memory_bytes)
    try:
        while (asked := _read(requests)) is not None:
            _write(answers, answer(*asked))
    except MemoryError:
        os._exit(1)


def _write(file: IO[bytes], head: bytes, content: bytes = b"") -> None:
    file.write(_LENGTHS.pack(len(head), len(content)) + head)
    file.flush()
    if content:
        file.write(content)
        file.flush()


def _read(file: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Return what was written; None if the file ends before its end, or it is too long."""
    lengths = file.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    num_head, num_content = _LENGTHS.unpack(lengths)
    if max(num_head, num_content) > _MAX_BYTES:
        return None
    head, content = file.read(num_head), file.read(num_content)
    return (head, content) if len(head) + len(content) == num_head + num_content else None


def _limit_memory(more_bytes: int) -> None:
    """Limit the address space to what is mapped now and `more_bytes`. Systems without `/proc` have none."""
    with contextlib.suppress(OSError, ImportError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + more_bytes, resource.RLIM_INFINITY))
