"""The program of a parser process: it reads paths, one line of JSON each, and answers with documents."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping

from stretto.documents.parse import parse_file
from stretto.model.errors import ConfigError, DocumentError


def main() -> None:
    """Answer until the input ends. Arguments: bytes of memory beyond those in use now, and pages of a PDF.

    It exits when a file needs more memory. What parsers print goes to stderr.
    """
    memory_bytes, max_pages = int(sys.argv[1]), int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory(memory_bytes)
    for line in sys.stdin.buffer:
        try:
            answer = json.dumps(_answer(json.loads(line), max_pages)).encode()
        except MemoryError:
            os._exit(1)
        answers.write(answer + b"\n")
        answers.flush()


def _answer(path: str, max_pages: int) -> Mapping[str, object]:
    try:
        document = parse_file(path, max_pages)
    except DocumentError as error:
        return {"document": error.message}
    except ConfigError as error:
        return {"config": error.message}
    sections = [(section.text, section.title, section.page) for section in document.sections]
    return {"sections": sections, "sha256": document.sha256, "unread_pages": document.unread_pages}


def _limit_memory(more_bytes: int) -> None:
    """Limit the address space to what is mapped now and `more_bytes`. Systems without `/proc` have none."""
    with contextlib.suppress(OSError, ImportError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + more_bytes, resource.RLIM_INFINITY))
