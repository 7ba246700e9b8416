"""Hook of `mkdocs`: links of a page that lead out of `docs/`, to code, become the path as text.

On the site such files are absent. Where pages are read as files, the links work; `tests/test_doc_paths.py`
checks them there.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\n)*)\]\(([^)#:\s]+)(#[^)]*)?\)")
_OUTSIDE = ("measurements",)
"""Files below `docs/` that are no pages of the site."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the text of a page without links to files that the site has not."""
    folder = PurePosixPath(page.file.src_uri).parent

    def rewritten(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        return link[0] if is_of_site(folder, target) else text

    return _LINK.sub(rewritten, markdown)


def is_of_site(folder: PurePosixPath, target: str) -> bool:
    """Return whether a link of a page in this folder, relative to `docs/`, leads to something of the site."""
    parts: list[str] = []
    for part in (folder / target).parts:
        if part == "..":
            if not parts:
                return False
            parts.pop()
        else:
            parts.append(part)
    return bool(parts) and parts[0] not in _OUTSIDE
