"""GGUF files give the model, the tokenizer and the chat template that they were written from."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

gguf = pytest.importorskip("gguf")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from support.tiny_checkpoint import EOS  # noqa: E402

from checks.gguf_equality import FAMILIES, build_checkpoint, check_types  # noqa: E402
from checks.gguf_files import K_SCALES, write_gguf  # noqa: E402
from checks.llm_equality import generate, random_prompts  # noqa: E402
from stretto.engines.gguf_file import QUANTISATIONS, read_gguf  # noqa: E402
from stretto.engines.llms import llm_replica  # noqa: E402
from stretto.engines.prompt_tokens import PromptTokenizer  # noqa: E402
from stretto.engines.transformer.config import read_config  # noqa: E402
from stretto.engines.transformer.engine import TransformerLLM  # noqa: E402
from stretto.engines.transformer.engine_config import TransformerConfig  # noqa: E402
from stretto.engines.transformer.weights import load_weights  # noqa: E402
from stretto.model.errors import ConfigError  # noqa: E402
from stretto.model.values import Segment  # noqa: E402

pytest_plugins = ("support.llm_fixtures",)

CHAT = (
    Segment("Answer shortly.", role="system"),
    Segment("Question:\n", role="user"),
    Segment("What is a stretto?", "question"),
)
_ERRORS = {"F32": 0.0, "F16": 0.001, "BF16": 0.01, "Q8_0": 0.01, "Q4_0": 0.2, "Q4_1": 0.2}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {family: build_checkpoint(folder / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def chat_file(tiny_chat_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_chat_checkpoint, tmp_path_factory.mktemp("chat") / "model.gguf", "F32")


def tokens_of(path: Path) -> list[tuple[int, ...]]:
    prompts = random_prompts(random.Random(0), 3, 60)
    config = TransformerConfig(path, block_tokens=16, max_batch_tokens=64)
    return generate(config, prompts, 8, random.Random(1))[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_gives_the_tokens_of_its_checkpoint(
    family: str, families: dict[str, Path], tmp_path: Path
) -> None:
    path = write_gguf(families[family], tmp_path / "model.gguf", "F32")
    assert tokens_of(path) == tokens_of(families[family])


@pytest.mark.parametrize("quantisation", [name for name in QUANTISATIONS if name not in K_SCALES])
@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_are_those_of_the_checkpoint_but_for_rounding(
    family: str, quantisation: str, families: dict[str, Path], tmp_path: Path
) -> None:
    file = read_gguf(write_gguf(families[family], tmp_path / "model.gguf", quantisation))
    for name, values in load_file(families[family] / "model.safetensors").items():
        error = np.abs(file.tensor(name) - values.numpy()).max()
        allowed = _ERRORS[quantisation] if values.ndim > 1 else 0.0
        assert error <= allowed * float(values.abs().max()), name


@pytest.mark.parametrize("quantisation", K_SCALES)
def test_the_k_types_are_read_as_the_package_dequantises_them(
    quantisation: str, families: dict[str, Path], tmp_path: Path
) -> None:
    path = write_gguf(families["qwen3"], tmp_path / "model.gguf", quantisation)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}["blk.1.ffn_down.weight"]
    read = read_gguf(path).tensor("model.layers.1.mlp.down_proj.weight")
    assert np.array_equal(read, gguf.dequantize(stored.data, stored.tensor_type))
    assert 0.01 < read.std() < 1


@pytest.mark.parametrize("type_name", ["Q4_K", pytest.param("Q8_0", marks=pytest.mark.long)])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(family: str, type_name: str) -> None:
    pytest.importorskip("accelerate")
    for name, outcome in check_types([family], [type_name], 2, seed=1):
        assert (outcome.num_prompts, outcome.wrong) == (2, ()), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_have_the_dtype_that_is_asked_for(dtype: str, chat_file: Path) -> None:
    weights = load_weights(chat_file, read_config(chat_file), getattr(torch, dtype), torch.device("cpu"))
    assert weights.embedding.dtype == weights.norm.dtype == getattr(torch, dtype)


def test_tokenizer_and_chat_template_come_from_the_file(
    chat_file: Path, tiny_chat_checkpoint: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Other files in the same folder are not looked at."""
    shutil.copy(chat_file, tmp_path / "model.gguf")
    shutil.copy(tiny_checkpoint / "tokenizer_config.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    ours, wanted = PromptTokenizer(tmp_path / "model.gguf"), PromptTokenizer(tiny_chat_checkpoint)
    assert ours.has_template
    assert ours.encode(CHAT) + ours.end_of(CHAT) == wanted.encode(CHAT) + wanted.end_of(CHAT)
    assert ours.ending == wanted.ending
    text = Segment(f"naïve – déjà {EOS} 日本 3.14\n\n", "text")
    assert ours.encode((text,)) == wanted.encode((text,))


def test_its_tokens_of_turns_end_answers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def edited(writer: Any) -> None:
        writer.add_eot_token_id(7)

    path = write_gguf(tiny_checkpoint, tmp_path / "model.gguf", "F32", edit=edited)
    assert TransformerLLM(TransformerConfig(path))._new_runs.eos == {PromptTokenizer(path).eos_token_id, 7}


def test_divisors_of_rotary_frequencies_are_applied(families: dict[str, Path], tmp_path: Path) -> None:
    """Llama 3's files have them as a tensor; `transformers` does not read it."""
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    path = write_gguf(
        families["llama"],
        tmp_path / "m.gguf",
        "F32",
        edit=lambda w: w.add_tensor("rope_freqs.weight", divisors),
    )
    assert read_config(path).rope_divisors == tuple(map(float, divisors))
    assert tokens_of(path) != tokens_of(families["llama"])


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        TransformerLLM(TransformerConfig(path))
    assert str(path) in caught.value.message
    return caught.value.message


def test_what_is_not_supported_is_named(families: dict[str, Path], tmp_path: Path) -> None:
    other = write_gguf(families["llama"], tmp_path / "other.gguf", "F32", architecture="gemma")
    assert "architecture 'gemma'" in refusal(other)
    assert "of the type Q5_0" in refusal(write_gguf(families["llama"], tmp_path / "q.gguf", "Q5_0"))
    experts = write_gguf(
        families["qwen2"], tmp_path / "moe.gguf", "F32", edit=lambda writer: writer.add_expert_count(8)
    )
    assert "mixtures of experts" in refusal(experts)
    scaled = write_gguf(
        families["qwen2"],
        tmp_path / "yarn.gguf",
        "F32",
        edit=lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN),
    )
    assert "rope scaling 'yarn'" in refusal(scaled)


def test_a_damaged_file_is_refused_by_name(chat_file: Path, tmp_path: Path) -> None:
    whole = chat_file.read_bytes()
    path = tmp_path / "damaged.gguf"
    for contents in (
        b"",
        b"GGUF",
        b"PK\x03\x04" + whole[4:],
        b"GGUF" + b"\xff" * 200,
        whole[: len(whole) - 9],
    ):
        path.write_bytes(contents)
        refusal(path)
    for share in (0.001, 0.01, 0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        refusal(path)


def test_flipped_bytes_of_the_head_never_raise_anything_else(chat_file: Path, tmp_path: Path) -> None:
    whole, rng = chat_file.read_bytes(), random.Random(0)
    path, refusals = tmp_path / "flipped.gguf", []
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(rng.choice([1, 1, 4])):
            changed[rng.randrange(2000)] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            config = read_config(path)
            load_weights(path, config, torch.float32, torch.device("cpu"))
        except ConfigError as error:
            refusals.append(error.message)
    assert all(str(path) in message for message in refusals)
    assert refusals


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a URL, nor a folder with a checkpoint or a GGUF file"):
        llm_replica(str(tmp_path / "no.gguf"))
