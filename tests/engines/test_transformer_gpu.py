"""The engine's way through a GPU's kernels and graphs.

Without a GPU the kernels run in Triton's interpreter, and a "graph" is a function that runs again on the
same fixed memory: what is captured and copied is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.kernel_runs import DEVICE, HAS_GPU, skip_unless_kernels_run
from support.tiny_checkpoint import build_tiny_checkpoint
from torch import Tensor

from stretto.engines.transformer import decode_graphs, paged_decodes
from stretto.engines.transformer import runner as runner_module
from stretto.engines.transformer.decode_graphs import DecodeGraphs
from stretto.engines.transformer.device import device_of
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.paged_decodes import Tuning
from stretto.engines.transformer.running_task import TransformerUsage
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode, Done, LLMTask


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


class Captures:
    """A stand-in for CUDA's graphs that counts them, and how often they run."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_captured += 1
        output = work()

        def replay() -> Tensor:
            self.num_replayed += 1
            return output.copy_(work())

        return replay


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    """Kernels and graphs, as on a GPU."""
    skip_unless_kernels_run()
    captures = Captures()
    monkeypatch.setattr(runner_module, "MIN_SHARED_TOKENS", 8)
    if not HAS_GPU:
        interpreted = Tuning(rows=16, keys=32, num_warps=4, num_stages=2, num_own=4, num_shared=4)
        monkeypatch.setattr(paged_decodes, "tuning", lambda device, dtype: interpreted)
        monkeypatch.setattr(runner_module, "has_kernels", lambda device: True)
        monkeypatch.setattr(decode_graphs, "_cuda_capture", lambda: captures)
    return captures


def complete(
    folder: Path, prompts: list[list[int]], new_tokens: int, device: str = DEVICE.type
) -> list[tuple[int, ...]]:
    """Complete prompts, one more at every step, so that each finds the prefixes of those before it cached."""
    settings: dict[str, Any] = {"kv_bytes": 2**20, "block_tokens": 4, "max_batch_tokens": 64}
    llm = TransformerLLM(TransformerConfig(folder, device=device, **settings))
    decode = Decode(max_tokens=new_tokens, ignore_eos=True)
    generated: dict[int, tuple[int, ...]] = {}
    waiting = list(enumerate(prompts))
    while waiting or llm.has_work():
        if waiting:
            number, prompt = waiting.pop(0)
            llm.admit_tokens(LLMTask(number, "", "", (), decode), prompt, ())
        for event in llm.step():
            if isinstance(event, Done) and isinstance(event.usage, TransformerUsage):
                generated[event.task] = event.usage.tokens
    return [generated[number] for number in range(len(prompts))]


def prompts_with_a_common_prefix() -> list[list[int]]:
    rng = random.Random(0)
    prefix = rng.choices(range(300, 800), k=12)
    return [
        *(prefix + rng.choices(range(300, 800), k=length) for length in (3, 6)),
        rng.choices(range(300, 800), k=9),
    ]


def test_kernels_and_graphs_change_no_token(checkpoint: Path, captures: Captures) -> None:
    prompts = prompts_with_a_common_prefix()
    found = complete(checkpoint, prompts, 6)
    if not HAS_GPU:
        assert 0 < captures.num_captured < captures.num_replayed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "has_kernels", lambda device: False)
        assert found == complete(checkpoint, prompts, 6, device="cpu")


def test_old_graphs_make_room(checkpoint: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_graphs, "MAX_GRAPHS", 1)
    prompts = prompts_with_a_common_prefix()[1:]
    with_one = complete(checkpoint, prompts, 3)
    monkeypatch.setattr(runner_module, "has_kernels", lambda device: False)
    assert with_one == complete(checkpoint, prompts, 3, device="cpu")


def test_steps_with_prompts_are_not_captured(checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(checkpoint, kv_bytes=2**20))
    llm.admit_tokens(LLMTask(0, "", "", (), None), [300, 301, 302], ())
    batch = llm.scheduler.schedule(1)
    inputs = llm.runner.prepare(list(batch.slices))
    assert not DecodeGraphs.takes(inputs.attention)


@pytest.mark.parametrize("name", ["warp", "meta", "cuda:99", "cpu:x"])
def test_device_that_is_not_there_is_an_error(checkpoint: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        TransformerLLM(TransformerConfig(checkpoint, device=name))


def test_auto_is_the_gpu_if_there_is_one() -> None:
    assert device_of("auto").type == DEVICE.type
