"""The app of Teola, Figures 2d and 6: document QA with query expansion, reranking and refinement."""

from __future__ import annotations

from stretto.graph.graph import Graph
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.text import parse_graph
from stretto.model.profile import Profile

TEXT = """
graph advanced_rag(%question: text, %files: list[document])
  %chunks   = chunk(each %files) {overlap=0, tokens=8} : list[chunk] @cpu
  %vectors  = embed(each %chunks) : list[vector] @embedding #batchable
  !indexed  = ingest(each %chunks, each %vectors) : effect @vectors #batchable
  %kv0      = prefill([c"Rewrite the question:", %question]) : kv @llm
  %queries  = decode(%kv0) {items="json_list", max_items=3} : list[text] @llm #splittable
  %qvectors = embed(each %queries) : list[vector] @embedding #batchable
  %hits     = search(each %qvectors, !indexed) {k=16} : list[list[hit]] @vectors #batchable
  %scored   = rerank(%question, each %hits) : list[list[hit]] @rerank #batchable
  %top      = aggregate(%scored) {best=3, distinct=true} : list[hit]
  %kv1      = prefill([c"Answer:", %question, c"Context:", %top[0], c"Answer:"]) : kv @llm
  %a1       = decode(%kv1) : text @llm
  %kv2      = prefill([c"Improve:", %question, c"Context:", %top[1], c"So far:", %a1, c"Better:"]) : kv @llm
  %a2       = decode(%kv2) : text @llm
  %kv3      = prefill([c"Improve:", %question, c"Context:", %top[2], c"So far:", %a2, c"Better:"]) : kv @llm
  %a3       = decode(%kv3) : text @llm
  %answer   = select(%a3, %a2, %a1) : text
  order indexed > kv0
  order queries > qvectors
  order top > kv1
  return answer=%answer
"""

PROFILES = {
    "cpu": Profile(0.008),
    "embedding": Profile(0.010, 0.001, 128),
    "vectors": Profile(0.002, 0.0005, 128),
    "rerank": Profile(0.005, 0.002, 32),
    "llm": Profile(0.005, 0.0002, 8192, per_output_s=0.012),
}


def p_graph() -> Graph:
    """Return the graph as lowered, with all that `>>` says."""
    return parse_graph(TEXT)


def e_graph() -> Graph:
    """Return the execution graph after all passes."""
    return optimise(p_graph(), PROFILES, PASSES)
