"""The text form of an analysis: a line for each request, for people and tests."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stretto.trace.analysis.objectives import Preference
from stretto.trace.analysis.prefix_hashes import prefix_hashes
from stretto.trace.analysis.requests import RequestGraph


def print_analysis(graph: RequestGraph, preferences: Mapping[str, Preference]) -> str:
    """Return a line for each request: its variables, where its prompt may be shared, and its preference.

    Prefixes that other requests of the graph have too are numbered; "-" marks those that are alone.
    """
    hashes = {request.name: prefix_hashes(request) for request in graph.requests}
    counts: dict[str, int] = {}
    for one in (prefix for found in hashes.values() for prefix in found):
        counts[one.hash] = counts.get(one.hash, 0) + 1
    shared = [hash_ for hash_, count in counts.items() if count > 1]
    lines = []
    for request in graph.requests:
        prefixes = ", ".join(
            f"{prefix.before} {'#' + str(shared.index(prefix.hash) + 1) if prefix.hash in shared else '-'}"
            for prefix in hashes[request.name]
        )
        lines.append(
            f"{request.name}({', '.join(request.reads)}) -> {request.makes}"
            f" | {_preferred(preferences[request.name])} | before {prefixes}"
        )
    return "\n".join(lines) + "\n"


def _preferred(preference: Preference) -> str:
    if preference.criteria is None:
        return "not wanted"
    text = str(preference.criteria)
    if preference.group is not None:
        text += f", task group {preference.group} for {preference.batching}"
    return text if math.isinf(preference.slack_s) else f"{text}, slack {preference.slack_s:g} s"
