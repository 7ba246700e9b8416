"""A long beginning that many prompts share is computed by one of several in-process instances, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.graphs import NUM_READERS, readers_of
from support.tiny_checkpoint import build_tiny_checkpoint

from stretto import Runtime
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.sched.actions import Action, Admit
from stretto.sched.observer import Observer
from stretto.trace.recorder import Recorder


class Places(Observer):
    """A record of the instances that requests go to."""

    def __init__(self) -> None:
        self.instances: list[int] = []

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.instances.append(action.instance)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_checkpoint(tmp_path_factory.mktemp("long"), context_tokens=8192)


@pytest.mark.parametrize("profile", [Profile(), Profile(per_unit_s=0.0002, per_output_s=0.002)])
def test_eight_readers_go_to_the_instance_that_computes_what_they_share(
    checkpoint: Path, profile: Profile
) -> None:
    recorder, places = Recorder(), Places()

    async def main() -> dict[str, object]:
        engine = deploy(
            "llm",
            TransformerLLM,
            TransformerConfig(checkpoint, kv_bytes=64 * 2**20),
            contract="llm",
            instances=2,
            max_batch=90_000,
            keeps_state=True,
            profile=profile,
        )
        async with asyncio.timeout(100), Runtime([engine], observers=[recorder, places]) as runtime:
            return dict(await runtime.run(readers_of("river " * 2220), {"q": "it"}))

    assert len(asyncio.run(main())) == NUM_READERS
    assert len(set(places.instances)) == 1
    usages = [span.usage for span in recorder.spans if span.usage is not None]
    assert len(usages) == NUM_READERS + 1
    assert max(usage.num_prompt_tokens for usage in usages) > 4440
    num_filled = sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages)
    assert 4440 < num_filled < 4440 + NUM_READERS * 60
