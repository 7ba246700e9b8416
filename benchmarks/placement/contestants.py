"""The policies of a scene, made for its requests: the oracle knows all prompts beforehand.

The policy `oracle_partition` balances the loads of its parts. The oracle of the paper's ablation puts as many
key portions into each part, whatever their load (Preble §5.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from benchmarks.baselines import PLACEMENTS
from benchmarks.baselines.placements.oracle_partition import OraclePartition, partition
from benchmarks.placement.scenes import ABLATION, ORACLES
from benchmarks.placement.workloads import Request
from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.placement import Placement
from stretto.cluster.placements.e2 import E2
from stretto.cluster.prompt_keys import BYTES
from stretto.model.values import Segment
from stretto.sim.agent_load import sized_text
from stretto.trace.agents.requests import AgentTrace, SizedPrompt


def new_policy(
    name: str, requests: Sequence[Request], trace: AgentTrace, num_instances: int
) -> Callable[[], Placement]:
    """Return what makes a policy, or a step of the ablation, for these requests.

    Source of the ablation's steps: Preble §5.4.
    """
    if name == "oracle_partition" or name in ORACLES:
        portions = key_portions(requests, trace)
        if name == "oracle":
            portions = [(block, 1.0) for block, _ in portions]
        parts = partition(portions, num_instances)
        return lambda: OraclePartition(parts)
    if name in ABLATION:
        step = ABLATION.index(name) - len(ORACLES)
        return lambda: E2(adjusts_loads=step >= 1, balances_decodes=step >= 2)
    return PLACEMENTS[name]


def num_groups(name: str) -> int:
    """Return the number of priority groups of waiting requests: only the ablation's last step has several."""
    return 1 if name in ABLATION[:-1] else 10


def key_portions(requests: Sequence[Request], trace: AgentTrace) -> list[tuple[BlockHash, float]]:
    """Return the hash of the last block of each group's common beginning, and the tokens to compute for the
    group if this beginning is computed once.
    """
    firsts: dict[tuple[bytes, ...], int] = {}
    tokens: Counter[tuple[bytes, ...]] = Counter()
    for number, request in enumerate(requests):
        shared = request.parts[:-1]
        if firsts.setdefault(shared, number) == number:
            tokens[shared] += request.num_tokens
        tokens[shared] += len(request.parts[-1]) // 4
    found = []
    for shared, number in firsts.items():
        traced = trace.requests[number]
        assert isinstance(traced.prompt, SizedPrompt)
        blocks = BYTES.hashes((Segment(sized_text(traced.id, traced.prompt)),), "")
        num_blocks = sum(map(len, shared)) // (4 * BYTES.block_tokens)
        if num_blocks:
            found.append((blocks[num_blocks - 1], float(tokens[shared])))
    return found
