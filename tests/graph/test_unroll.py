"""`unroll` shows what Teola's Figure 6 shows."""

from __future__ import annotations

import pytest
from support.unrolled import unroll, unroll_steps
from support.worked_example import PROFILES, e_graph, p_graph

from stretto.graph.graph import PromptParts
from stretto.graph.text import parse_graph
from stretto.model.errors import ConfigError
from stretto.trace.drawing import own_prompt

FIGURE_6 = """
advanced_rag unrolled for files=1, chunks=666, queries=3
 1  chunks            chunk             @cpu        <- %files
    kv0               prefill           @llm        <- %question  "Rewrite the question:" %question
    kv1.1             partial prefill   @llm        <- %question  "Answer:" %question "Context:"
    kv2.1             partial prefill   @llm        <- %question  "Improve:" %question "Context:"
 2  vectors[1-128]    embed             @embedding  <- chunks
    vectors[129-256]  embed             @embedding  <- chunks
    vectors[257-384]  embed             @embedding  <- chunks
    vectors[385-512]  embed             @embedding  <- chunks
    vectors[513-640]  embed             @embedding  <- chunks
    vectors[641-666]  embed             @embedding  <- chunks
    queries[1]        partial decode 1  @llm        <- kv0
 3  indexed[1-128]    ingest            @vectors    <- chunks, vectors[1-128]
    indexed[129-256]  ingest            @vectors    <- chunks, vectors[129-256]
    indexed[257-384]  ingest            @vectors    <- chunks, vectors[257-384]
    indexed[385-512]  ingest            @vectors    <- chunks, vectors[385-512]
    indexed[513-640]  ingest            @vectors    <- chunks, vectors[513-640]
    indexed[641-666]  ingest            @vectors    <- chunks, vectors[641-666]
    queries[2]        partial decode 2  @llm        <- queries[1]
    qvectors[1]       embed             @embedding  <- queries[1]
 4  queries[3]        partial decode 3  @llm        <- queries[2]
    qvectors[2]       embed             @embedding  <- queries[2]
    indexed[all]      aggregate                     <- indexed[1-128] … indexed[641-666]
 5  qvectors[3]       embed             @embedding  <- queries[3]
    hits[1]           search            @vectors    <- qvectors[1], indexed[all]
    hits[2]           search            @vectors    <- qvectors[2], indexed[all]
 6  hits[3]           search            @vectors    <- qvectors[3], indexed[all]
    scored[1]         rerank            @rerank     <- %question, hits[1]
    scored[2]         rerank            @rerank     <- %question, hits[2]
 7  scored[3]         rerank            @rerank     <- %question, hits[3]
 8  top               aggregate                     <- scored[1], scored[2], scored[3]
 9  kv1               full prefill      @llm        <- top, kv1.1  %top[0] "Answer:"
    kv2.2             partial prefill   @llm        <- top, kv2.1  %top[1] "So far:"
    kv3.2             partial prefill   @llm        <- top, kv2.1  %top[2] "So far:"
10  a1                decode            @llm        <- kv1
11  kv2               full prefill      @llm        <- a1, kv2.2  %a1 "Better:"
12  a2                decode            @llm        <- kv2
13  kv3               full prefill      @llm        <- a2, kv3.2  %a2 "Better:"
14  a3                decode            @llm        <- kv3
15  answer            select                        <- a3, a2, a1
return answer <- answer
"""


def test_advanced_rag_unrolls_to_figure_6() -> None:
    """666 chunks in stages, three partial decodes, partial prefills before what they wait for."""
    assert unroll(e_graph(), {"chunks": 666, "queries": 3}, PROFILES) == FIGURE_6.lstrip()


def test_without_passes_every_primitive_is_one_step() -> None:
    graph = p_graph()
    unrolled = unroll_steps(graph, {"chunks": 666, "queries": 3}, PROFILES)
    assert [step.name for step in unrolled.steps] == [primitive.name for primitive in graph]
    assert "indexed" in next(step.after for step in unrolled.steps if step.name == "kv0")


def test_lists_of_unknown_length_get_one_from_the_graph() -> None:
    """Two efficient batches of the embedding engine; `max_items` of the decode."""
    expected = {"files": 1, "chunks": 256, "queries": 3}
    assert unroll_steps(e_graph(), {}, PROFILES).lengths == expected
    assert unroll_steps(p_graph(), {}, PROFILES).lengths == expected


def test_a_list_that_fits_in_one_piece_is_one_step() -> None:
    names = {step.name for step in unroll_steps(e_graph(), {"chunks": 128, "queries": 1}, PROFILES).steps}
    assert {"vectors", "indexed", "queries[1]", "scored"} <= names
    assert "indexed[all]" not in names


def test_a_finer_stage_waits_for_the_coarser_piece_that_holds_it() -> None:
    graph = parse_graph("""
        graph g(%texts: list[chunk])
          %vectors = embed(each~4 %texts) : list[vector] @e
          !stored  = ingest(each~2 %texts, each~2 %vectors) : effect @v
          return vectors=%vectors
    """)
    steps = {step.name: step.after for step in unroll_steps(graph, {"texts": 6}, {}).steps}
    assert steps["stored[1-2]"] == ("%texts", "vectors[1-4]")
    assert steps["stored[3-4]"] == ("%texts", "vectors[1-4]")
    assert steps["stored[5-6]"] == ("%texts", "vectors[5-6]")
    assert steps["vectors[all]"] == ("vectors[1-4]", "vectors[5-6]")


@pytest.mark.parametrize("lengths", [{"vectors": 3}, {"nothing": 3}, {"chunks": 0}])
def test_a_length_must_be_of_a_list_that_starts_there(lengths: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(lengths))):
        unroll(e_graph(), lengths, PROFILES)


def test_a_prefill_computes_the_segments_beyond_its_hint() -> None:
    graph = e_graph()
    for call in ("kv1", "kv2", "kv3"):
        own: list[PromptParts] = []
        name = call
        while True:
            primitive = graph.by_name[name]
            own.insert(0, own_prompt(graph, primitive))
            hint = primitive.arg("hint")
            if hint is None:
                break
            name = hint.ref.name
        assert tuple(part for parts in own for part in parts) == graph.by_name[call].prompt
