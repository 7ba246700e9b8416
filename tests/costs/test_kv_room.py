from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.costs.kv_room import check_fits, kv_device_bytes
from stretto.costs.presets import load_preset
from stretto.costs.shape import LLMModel

PRESET = load_preset("A100-80G")
# Blocks of 16 tokens that vLLM 0.3 reported, with steps of at most the context's tokens.
REPORTED = [
    ("Llama-2-7b-chat-hf", 1, 4096, 7339),
    ("Llama-2-7b-chat-hf", 4, 4096, 33264),
    ("Baichuan2-13B-Chat", 1, 4096, 3479),
    ("vicuna-13b-v1.5", 2, 4096, 9391),
    ("chatglm3-6b", 2, 8192, 293640),
    ("chatglm3-6b", 4, 8192, 301585),
    ("gpt-j-6b", 1, 2048, 8538),
    ("dolly-v2-12b", 4, 2048, 22725),
    ("Mixtral-8x7B-v0.1", 2, 32768, 23019),
    ("Mixtral-8x7B-v0.1", 4, 32768, 90719),
]


@pytest.mark.parametrize(("name", "tp", "batch_tokens", "blocks"), REPORTED)
def test_kv_room_is_what_a_server_reports(name: str, tp: int, batch_tokens: int, blocks: int) -> None:
    assert PRESET.hardware is not None
    found = check_fits(PRESET.model(name), PRESET.hardware, tp, max_batch_tokens=batch_tokens)
    assert found / 16 == pytest.approx(blocks, rel=0.02)


def test_kv_heads_are_copied_where_there_are_more_devices() -> None:
    model = LLMModel("small", 2, 64, 8, 2, 64, 100)
    assert kv_device_bytes(model, 2) == kv_device_bytes(model, 8) == model.kv_bytes_per_token / 2


def test_larger_steps_leave_less_room() -> None:
    model, hardware = PRESET.model("vicuna-13b-v1.5"), PRESET.hardware
    assert hardware is not None
    rooms = [check_fits(model, hardware, 1, max_batch_tokens=tokens) for tokens in (512, 2048, 32768)]
    assert rooms == sorted(rooms, reverse=True)
    assert len(set(rooms)) == 3
    assert check_fits(replace(model, vocab_size=200_000), hardware, 1) < rooms[0]
