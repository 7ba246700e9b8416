"""The program of a parser process: it gets paths, and answers with documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from stretto.documents.parse import parse_file
from stretto.model.child_process import serve_parent
from stretto.model.errors import ConfigError, DocumentError


def main() -> None:
    """Answer until the input ends. Arguments: bytes of memory beyond those in use now, and pages of a PDF."""
    memory_bytes, max_pages = int(sys.argv[1]), int(sys.argv[2])

    def answer(path: bytes, _: bytes) -> bytes:
        return json.dumps(_parsed(json.loads(path), max_pages), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )

    serve_parent(answer, memory_bytes)


def _parsed(path: str, max_pages: int) -> Mapping[str, object]:
    try:
        document = parse_file(path, max_pages)
    except DocumentError as error:
        return {"document": error.message}
    except ConfigError as error:
        return {"config": error.message}
    sections = [(section.text, section.title, section.page) for section in document.sections]
    return {"sections": sections, "sha256": document.sha256, "unread_pages": document.unread_pages}
