"""A prompt of many late segments is not cut at each of them: its parts would hold the square of them."""

from __future__ import annotations

import pytest

from stretto.graph.graph import Graph
from stretto.graph.op_table import OPS
from stretto.graph.passes.split_prefill import split_prefill
from stretto.graph.text import parse_graph
from stretto.model.profile import Profile

PROFILES = {"llm": Profile(per_unit_s=1.0)}


def prompt_of(number: int) -> Graph:
    """A prompt of so many late inputs, with a long constant before each."""
    inputs = ", ".join(f"%x{n}: late text" for n in range(number))
    parts = ", ".join(f'c"{"word " * 200}", %x{n}' for n in range(number))
    return parse_graph(
        f"graph g({inputs})\n%kv = prefill([{parts}]) : kv @llm\n"
        "%y = decode(%kv) {max_tokens=9} : text @llm\nreturn %y"
    )


@pytest.mark.parametrize(("number", "num_prefills"), [(3, 4), (60, 61), (65, 1), (900, 1)])
def test_prompts_are_cut_a_bounded_number_of_times(number: int, num_prefills: int) -> None:
    graph = split_prefill(prompt_of(number), PROFILES, OPS)
    assert sum(primitive.op == "prefill" for primitive in graph) == num_prefills
