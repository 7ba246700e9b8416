"""Hashes of the beginnings of prompts, at the places where variables begin: equal hashes, equal beginnings.

A variable counts by its value where that is known, so that equal texts are found wherever they come from, and
else by its name. So a beginning that another request will generate is known to be shared before it exists.

Source: Parrot §4.2, PrefixHash.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from stretto.graph.graph import Slot
from stretto.trace.analysis.requests import AnalysedRequest


class PrefixHash(NamedTuple):
    """The hash of what stands in a prompt before a variable, the last one being that which is generated."""

    before: str
    hash: str


def prefix_hashes(
    request: AnalysedRequest, values: Mapping[str, str] | None = None
) -> tuple[PrefixHash, ...]:
    """Return the hashes of a request's prompt at its variables, and of all of it; none before its beginning.

    Args:
        values: texts of variables, by name, as far as they are known.
    """
    known = {} if values is None else values
    hasher = blake2b(digest_size=8)
    found: list[PrefixHash] = []
    for place, part in enumerate(request.prompt):
        if isinstance(part, Slot):
            if place:
                found.append(PrefixHash(part.port, hasher.hexdigest()))
            kind, text = ("value", known[part.port]) if part.port in known else ("variable", part.port)
        else:
            kind, text = f"constant {part.role or ''}", part.text
        data = text.encode("utf-8", "backslashreplace")
        hasher.update(f"{kind} {len(data)}:".encode() + data)
    found.append(PrefixHash(request.makes, hasher.hexdigest()))
    return tuple(found)
