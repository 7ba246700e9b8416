"""The variants of ours that run on emulated servers, and the map-reduce app of both contestants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.fleet_corpus import small_corpus

from benchmarks.fleet.apps import summarise_all
from benchmarks.fleet.contestants import CONTESTANTS, OURS, variant_of_ours
from benchmarks.fleet.questions import queries
from benchmarks.fleet.schemes import SIMULATED_OURS, main_variants
from stretto.model.values import Chunk


def test_a_variant_is_ours_with_other_options() -> None:
    assert variant_of_ours(SIMULATED_OURS) is CONTESTANTS[OURS]
    variants = {scheme.name: variant_of_ours(scheme) for scheme in main_variants()}
    assert len(variants) == 6
    assert "prune_order" not in variants["without prune_order"].options["passes"]
    assert variants["order oldest_query"].options["policy"] == "oldest_query"
    assert variants["placement round_robin"].options["placement"] == "round_robin"
    assert {one.module for one in variants.values()} == {CONTESTANTS[OURS].module}


def test_a_merge_reads_its_own_summaries_alone() -> None:
    graph = summarise_all({"passages": [Chunk("a", place, "text") for place in range(8)]})
    decodes = [one for one in graph.primitives if one.op == "decode"]
    assert len(decodes) == 8 + 2 + 1


def test_the_hand_written_merge_begins_before_the_last_summary_has_come() -> None:
    pytest.importorskip("openai")
    from benchmarks.fleet.programs.by_hand import ByHand

    begun: list[str] = []
    last_may_end = asyncio.Event()

    class Servers:
        """Servers whose answers wait for what the test wants to see first."""

        async def write(self, prompt: str, max_tokens: int) -> str:
            begun.append(prompt)
            if prompt.startswith("merge"):
                last_may_end.set()
            elif prompt == last:
                await last_may_end.wait()
            return prompt[-1]

    work: Any = SimpleNamespace(
        prompts={"summarise": "text {text}", "merge": "merge {summaries}"},
        settings={"fan_in": 2, "answer_tokens": 8},
    )
    servers: Any = Servers()
    (asked,) = queries(small_corpus(), 2, [0.0], "seed")
    texts: Sequence[str] = [p.text for document in asked.documents for p in document.passages]
    assert len(texts) > 2
    last = f"text {texts[-1]}"
    answer = asyncio.run(asyncio.wait_for(ByHand(work, servers).map_reduce(asked), 20))
    assert answer[0]
    assert sum(prompt.startswith("merge") for prompt in begun) >= 2
