"""What an instance is said to take of a device, before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.mini_model import MINI
from stretto.cluster.machine import Machine, check_deployments
from stretto.engines.transformer.config import read_config
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.memory import num_parameters
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica

pytest_plugins = ("support.llm_fixtures",)

GIB = 2**30


def test_parameters_are_those_of_the_checkpoint(tiny_checkpoint: Path) -> None:
    """Files beside their headers are weights, of four bytes each."""
    for folder in (tiny_checkpoint, MINI):
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        config = read_config(folder)
        bytes_each = 4 if folder == tiny_checkpoint else 2
        assert num_parameters(config) == pytest.approx(num_bytes / bytes_each, rel=0.02)


def test_memory_is_that_of_weights_kv_and_steps() -> None:
    config = TransformerConfig(MINI, kv_bytes=GIB)
    whole = config.device_bytes("cpu", 8 * GIB)
    weights = 4 * num_parameters(read_config(MINI))
    assert weights + GIB < whole < 1.2 * (weights + GIB)
    assert config.device_bytes("cuda", 8 * GIB) == whole + GIB, "a process on a GPU has a context there"
    half = TransformerConfig(MINI, dtype="bfloat16", kv_bytes=GIB)
    assert half.device_bytes("cpu", 8 * GIB) < whole


def test_two_replicas_share_a_device_that_holds_both(tmp_path: Path) -> None:
    replica = Replica(TransformerLLM, TransformerConfig(MINI), runs_in="process", devices=("cuda:0",))
    both = [Deployment(Engine("llm", contract="llm"), (replica, replica))]
    check_deployments(Machine(("cuda:0",), {"cuda:0": 8 * GIB}), both)
    with pytest.raises(ConfigError, match=r"replica 1: needs 1.\d\d GiB of cuda:0, with .* of 3.00 GiB"):
        check_deployments(Machine(("cuda:0",), {"cuda:0": 3 * GIB}), both)
    nowhere = Replica(TransformerLLM, TransformerConfig(tmp_path), runs_in="process", devices=("cuda:0",))
    with pytest.raises(ConfigError, match=r"config.json is missing"):
        check_deployments(
            Machine(("cuda:0",), {"cuda:0": GIB}), [Deployment(Engine("llm", "llm"), (nowhere,))]
        )
