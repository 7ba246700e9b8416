"""The compared schemes: the paper's four baselines, a stronger one, and ours, all on the same engines.

A baseline is a set of passes and a policy in the production schedulers:

LlamaDist      modules one after the other (`>>` holds, no pass); no prefix caching
    LlamaDistPC    modules in parallel where their data allow (`prune_order`); prefix caching
    …-PO, …-TO     the policies `per_invocation` and `throughput`
    hand-written   what a careful programmer gets with asyncio and good servers: all that is independent at
                   once, chunks streamed through embedding and ingestion by batches, dynamic batching that
                   never waits, prefix caching; but whole prompts, whole outputs and no knowledge of graphs

Where the paper leaves a choice open, baselines get the faster one: PO admits LLM requests by arrival with
continuous batching rather than one invocation at a time; batch sizes are as large as ours; the steps of a
module overlap; a query is embedded as soon as it exists. All have the same instances, with chunked prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.graph.passes.pipeline import PASSES
from stretto.graph.passes.weigh import WEIGHED


@dataclass(frozen=True, slots=True)
class Scheme:
    """How queries are planned and batched.

    Attributes:
        caches: whether LLM instances reuse prefixes, also those of other queries.
        fill_timeout_s: seconds that `throughput` waits for a batch to fill.
    """

    name: str
    passes: tuple[str, ...]
    policy: str
    caches: bool = True
    fill_timeout_s: float = 0.005


ALL = tuple(PASSES)
OURS = "ours"
HAND_WRITTEN = "hand-written"
_HAND_PASSES = ("prune_order", "split_stages", "drop_dead")

SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("LlamaDist-PO", (), "per_invocation", caches=False),
        Scheme("LlamaDist-TO", (), "throughput", caches=False),
        Scheme("LlamaDistPC-PO", ("prune_order",), "per_invocation"),
        Scheme("LlamaDistPC-TO", ("prune_order",), "throughput"),
        Scheme(HAND_WRITTEN, _HAND_PASSES, "throughput", fill_timeout_s=0.0),
        Scheme(OURS, WEIGHED, "least_work"),
    )
}
CHOICES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("ours, no passes", (), "least_work"),
        Scheme("ours, all passes", ALL, "least_work"),
    )
}
"""Ours with other choices of passes than those that are predicted to pay."""
PAPERS = tuple(name for name in SCHEMES if name not in (OURS, HAND_WRITTEN))
"""Names of the paper's baselines."""

PARALLEL = ("prune_order", "split_prefill")
PIPELINED = ("split_stages", "pipeline_decode")
