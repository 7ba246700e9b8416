"""Example graphs in their text form, for tests of the graph, the schedulers and the drivers."""

from __future__ import annotations

from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph

ADVANCED_RAG = """\
graph advanced_rag(%question: text, %files: list[document])
  %chunks   = chunk(each %files) {tokens=4} : list[chunk] @cpu #batchable
  %vectors  = embed(each %chunks) : list[vector] @embedding #batchable
  !indexed  = ingest(each %chunks, each %vectors) : effect @vectors #batchable
  %kv0      = prefill([c"Rewrite the question as a JSON list: ", %question]) : kv @llm
  %queries  = decode(%kv0) {items="json_list", max_tokens=200} : list[text] @llm #splittable
  %qvectors = embed(each %queries) : list[vector] @embedding #batchable
  %hits     = search(each %qvectors, !indexed) {k=16} : list[list[hit]] @vectors #batchable
  %scored   = rerank(%question, each %hits) : list[list[hit]] @rerank #batchable
  %top      = aggregate(%scored) {best=3, distinct=true} : list[hit]
  %kv1      = prefill([c"Answer from the context. ", %question, c" Context: ", %top[0], c" Answer: "]) : kv @llm
  %a1       = decode(%kv1) : text @llm
  %kv2      = prefill([c"Improve the answer. ", %question, c" Context: ", %top[1], c" Answer so far: ", %a1, c" Better: "]) : kv @llm
  %a2       = decode(%kv2) : text @llm
  %kv3      = prefill([c"Improve the answer. ", %question, c" Context: ", %top[2], c" Answer so far: ", %a2, c" Better: "]) : kv @llm
  %a3       = decode(%kv3) : text @llm
  %answer   = select(%a3, %a2, %a1) : text
  order chunks > vectors
  order vectors > indexed
  order indexed > kv0
  order kv0 > queries
  order queries > qvectors
  order qvectors > hits
  order hits > scored
  order scored > top
  order top > kv1
  order kv1 > a1
  order a1 > kv2
  order kv2 > a2
  order a2 > kv3
  order kv3 > a3
  return %answer, %top
"""  # noqa: E501

OPTIMISED_RAG = """\
graph advanced_rag(%question: text, %files: list[document])
  %chunks   = chunk(each~32 %files) {tokens=4} : list[chunk] @cpu #batchable
  %vectors  = embed(each~128 %chunks) : list[vector] @embedding #batchable
  !indexed  = ingest(each~128 %chunks, each~128 %vectors) : effect @vectors #batchable
  %kv0      = prefill([c"Rewrite the question as a JSON list: ", %question]) : kv @llm
  %queries  = decode(%kv0) {items="json_list", max_tokens=200} : list[text] @llm #splittable
  %qvectors = embed(each~1 %queries) : list[vector] @embedding #batchable
  %hits     = search(each~1 %qvectors, !indexed) {k=16} : list[list[hit]] @vectors #batchable
  %scored   = rerank(%question, each~1 %hits) : list[list[hit]] @rerank #batchable
  %top      = aggregate(%scored) {best=3, distinct=true} : list[hit]
  %kv1.1    = prefill([c"Answer from the context. ", %question, c" Context: "]) : kv @llm
  %kv1      = prefill([c"Answer from the context. ", %question, c" Context: ", %top[0], c" Answer: "], hint=%kv1.1) : kv @llm
  %a1       = decode(%kv1) : text @llm
  %kv2.1    = prefill([c"Improve the answer. ", %question, c" Context: "]) : kv @llm
  %kv2.2    = prefill([c"Improve the answer. ", %question, c" Context: ", %top[1], c" Answer so far: "], hint=%kv2.1) : kv @llm
  %kv2      = prefill([c"Improve the answer. ", %question, c" Context: ", %top[1], c" Answer so far: ", %a1, c" Better: "], hint=%kv2.2) : kv @llm
  %a2       = decode(%kv2) : text @llm
  %kv3.2    = prefill([c"Improve the answer. ", %question, c" Context: ", %top[2], c" Answer so far: "], hint=%kv2.1) : kv @llm
  %kv3      = prefill([c"Improve the answer. ", %question, c" Context: ", %top[2], c" Answer so far: ", %a2, c" Better: "], hint=%kv3.2) : kv @llm
  %a3       = decode(%kv3) : text @llm
  %answer   = select(%a3, %a2, %a1) : text
  return %answer, %top
"""  # noqa: E501

NUM_READERS = 8


def readers_of(head: str) -> ExecutionGraph:
    """Return a graph of eight prompts with the same beginning, all of them ready at once."""
    lines = []
    for i in range(NUM_READERS):
        lines.append(f'%k{i} = prefill([c"{head}", c" Part {i}: ", %q], hint=%head) : kv @llm')
        lines.append(f"%a{i} = decode(%k{i}) {{max_tokens=3, ignore_eos=true}} : text @llm")
    outputs = ", ".join(f"%a{i}" for i in range(NUM_READERS))
    lines = [
        "graph readers(%q: text)",
        f'%head = prefill([c"{head}"]) : kv @llm',
        *lines,
        f"return {outputs}",
    ]
    return compile_graph(parse_graph("\n".join(lines)), {})
