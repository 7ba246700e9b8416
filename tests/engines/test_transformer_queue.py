"""The queue of the in-process LLM engine, between the schedulers and its steps."""

from __future__ import annotations

from pathlib import Path

from support.chains import chain
from support.stepping import SteppingDriver

from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.sched.messages import Submit

pytest_plugins = ("support.llm_fixtures",)

POLICIES = ("programs_first", "least_work", "topology_aware", "throughput")
_STEP_S = 0.5


def in_process_s(policy: str, checkpoint: Path) -> float:
    """Latency of a query of one call beside 24 chains of six, where a step counts as half a second.

    The engine is handed more requests than it runs at once, so that it chooses.
    """
    profile = Profile(per_unit_s=_STEP_S / 64, per_output_s=_STEP_S)
    config = TransformerConfig(
        checkpoint, max_running=8, max_batch_tokens=64, kv_bytes=2**20, block_tokens=8, clock=lambda: 0.0
    )
    engine = deploy(
        "llm", TransformerLLM, config, contract="llm", max_running=64, profile=profile, policy=policy
    )
    driver = SteppingDriver(engine, _STEP_S)
    chains, one = chain(6, profile, max_tokens=6), chain(1, profile, max_tokens=6)
    arrivals = [(0.0, Submit(f"chain {n}", chains, {"q": f"{n} rivers run to the sea"})) for n in range(24)]
    return driver.run([*arrivals, (3 * _STEP_S, Submit("one", one, {"q": "one river"}))])["one"]


def test_one_call_beside_chains_ends_as_if_all_went_in_order_of_arrival(tiny_checkpoint: Path) -> None:
    in_order_s = in_process_s("per_invocation", tiny_checkpoint)
    for policy in POLICIES:
        assert in_process_s(policy, tiny_checkpoint) <= 1.2 * in_order_s, policy
