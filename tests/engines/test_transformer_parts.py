"""Attention, sampling and the text stream, each by itself."""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.engines.transformer.attention import Decodes, Keys, PrefillChunk
from stretto.engines.transformer.config import ModelConfig
from stretto.engines.transformer.kv_cache import KVCache
from stretto.engines.transformer.running_task import TextStream
from stretto.engines.transformer.sampler import choose
from stretto.engines.transformer.token_choice import TokenChoice
from stretto.llm.output.sampling import noise_seed
from stretto.model.tasks import Decode

CONFIG = ModelConfig(
    vocabulary=8,
    hidden=32,
    intermediate=32,
    layers=1,
    heads=6,
    kv_heads=2,
    head_dim=8,
    context_tokens=512,
    norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    windows=(None,),
    ties_embeddings=False,
    has_qkv_bias=False,
    has_output_bias=False,
    has_qk_norm=False,
)
BLOCK = 4


def filled_cache(num_blocks: int, seed: int) -> tuple[KVCache, torch.Tensor]:
    """A cache of random numbers, and the same as (2, K, tokens, D)."""
    kv = KVCache(CONFIG, num_blocks, BLOCK, torch.float32, torch.device("cpu"))
    values = torch.randn(2, 2, num_blocks * BLOCK, 8, generator=torch.Generator().manual_seed(seed)) * 2
    positions = list(range(num_blocks * BLOCK))
    rows = kv.token_rows([position // BLOCK for position in positions], positions)
    kv.write(0, rows, values.permute(2, 0, 1, 3).flatten(1, 2))
    return kv, values


def dense(q_HD: torch.Tensor, values: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Attend with one query to those tokens, written out without kernels."""
    k, v = values[:, :, positions].repeat_interleave(3, dim=1).double()
    weights = (torch.einsum("hd,hld->hl", q_HD.double(), k) / math.sqrt(8)).softmax(-1)
    return torch.einsum("hl,hld->hd", weights, v).float()


def slots(table: list[int], length: int) -> list[int]:
    return [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(length)]


@settings(max_examples=40, deadline=None)
@given(
    num_shared=st.integers(0, 20),
    own=st.lists(st.integers(1, 25), min_size=2, max_size=6),
    window=st.sampled_from([None, 1, 7]),
    seed=st.integers(0, 9),
)
def test_decodes_equal_dense_attention(
    num_shared: int, own: list[int], window: int | None, seed: int
) -> None:
    """Decodes are right with and without a shared prefix, wherever the blocks lie, to 1e-5."""
    kv, values = filled_cache(90, seed)
    generator = torch.Generator().manual_seed(seed)
    free = torch.randperm(90, generator=generator).tolist()
    if seed % 2:
        free.sort()
    shared = [free.pop(0) for _ in range(num_shared)]
    tables = [shared + [free.pop(0) for _ in range(-(-length // BLOCK))] for length in own]
    lengths = [num_shared * BLOCK + length for length in own]
    q_BHD = torch.randn(len(own), 6, 8, generator=generator)
    prefix_blocks = num_shared if window is None else 0
    part = Decodes.of(0, tables, lengths, prefix_blocks, kv, (window,))
    out = part.attend(q_BHD, kv, 0, window)
    for number, length in enumerate(lengths):
        seen = slots(tables[number], length)[-(window or length) :]
        torch.testing.assert_close(out[number], dense(q_BHD[number], values, seen), rtol=0, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    num_before=st.integers(0, 40),
    num_new=st.integers(1, 20),
    window=st.sampled_from([None, 5]),
    seed=st.integers(0, 3),
)
def test_chunks_equal_dense_attention(num_before: int, num_new: int, window: int | None, seed: int) -> None:
    kv, values = filled_cache(20, seed)
    table = list(range(20)) if seed % 2 else torch.randperm(20).tolist()
    length = num_before + num_new
    keys = Keys(table[: -(-length // BLOCK)], length, kv)
    q_THD = torch.randn(num_new, 6, 8)
    out = PrefillChunk.of(0, num_new, keys, (window,)).attend(q_THD, kv, 0, window)
    for row in range(num_new):
        seen = slots(table, num_before + row + 1)[-(window or length) :]
        torch.testing.assert_close(out[row], dense(q_THD[row], values, seen), rtol=0, atol=1e-5)


def test_copied_block_is_the_same_and_its_source_too() -> None:
    """All are read before any is written: a block may be source and target at once."""
    kv, values = filled_cache(6, 0)
    kv.copy_blocks(((0, 3), (5, 0)))
    k, _ = Keys([3, 0], 2 * BLOCK, kv).read(kv, 0)
    torch.testing.assert_close(k[:, :BLOCK], values[0, :, :BLOCK])
    torch.testing.assert_close(k[:, BLOCK:], values[0, :, 5 * BLOCK :])


LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -2.0, -3.0, 1.9])


def draw(decode: Decode, generated: tuple[int, ...] = (), prompt: tuple[int, ...] = ()) -> int:
    choice = TokenChoice(decode, list(prompt), list(generated), frozenset(decode.stop_tokens))
    return choose(LOGITS.unsqueeze(0), [choice])[0].token


def drawn(decode: Decode, count: int = 400) -> set[int]:
    return {draw(replace(decode, seed=seed)) for seed in range(count)}


def test_sampling_follows_the_distribution() -> None:
    count = 4000
    tokens = [draw(Decode(temperature=1.0, seed=seed)) for seed in range(count)]
    expected = LOGITS.softmax(0)
    for token in range(8):
        assert tokens.count(token) / count == pytest.approx(float(expected[token]), abs=0.03)


def test_choice_does_not_depend_on_the_batch() -> None:
    decode = Decode(temperature=1.0, seed=3)
    choice = TokenChoice(decode, [1], [2, 3], frozenset())
    alone = choose(LOGITS.unsqueeze(0), [choice])[0]
    others = torch.randn(4, 8)
    among = choose(
        torch.cat([others, LOGITS.unsqueeze(0)]), [None, None, replace(choice, generated=[]), None, choice]
    )
    assert among[4] == alone


@pytest.mark.parametrize(
    ("decode", "allowed"),
    [
        (Decode(temperature=5.0, top_k=2), {0, 7}),
        (Decode(temperature=1.0, top_p=0.5), {0, 7}),
        (Decode(temperature=1.0, top_p=1e-9), {0}),
        (Decode(temperature=1.0, min_p=0.3), {0, 1, 7}),
        (Decode(temperature=1e-4), {0}),
    ],
)
def test_filters_leave_only_the_likely(decode: Decode, allowed: set[int]) -> None:
    assert drawn(decode) == allowed


def test_penalties_change_the_likeliest() -> None:
    assert draw(Decode(presence_penalty=0.2), generated=(0,)) == 7
    assert draw(Decode(presence_penalty=0.2), prompt=(0,)) == 0
    assert draw(Decode(frequency_penalty=0.06), generated=(0,)) == 0
    assert draw(Decode(frequency_penalty=0.06), generated=(0, 0)) == 7
    assert draw(Decode(repetition_penalty=1.2), prompt=(0,)) == 7


def test_ending_tokens_wait_for_min_tokens() -> None:
    decode = Decode(min_tokens=2, stop_tokens=(0, 7))
    assert draw(decode) == 1
    assert draw(decode, generated=(1, 1)) == 0


def test_logprobs_are_of_the_model_not_of_the_sampler() -> None:
    decode = Decode(temperature=0.1, logprobs=2, repetition_penalty=1.5)
    choice = TokenChoice(decode, [0], [], frozenset())
    (chosen,) = choose(LOGITS.unsqueeze(0), [choice])
    assert chosen.logprobs is not None
    expected = LOGITS.log_softmax(0)
    assert chosen.logprobs.logprob == pytest.approx(float(expected[chosen.token]))
    assert [token for token, _ in chosen.logprobs.top] == [0, 7]


def test_noise_seeds_are_all_different() -> None:
    assert len({noise_seed(seed, position) for seed in range(-50, 50) for position in range(100)}) == 10_000


class Bytes:
    """A tokenizer whose tokens are single bytes."""

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


@given(st.text(max_size=30))
def test_text_comes_in_whole_characters(text: str) -> None:
    stream = TextStream(Bytes())
    deltas = [stream.feed(byte) for byte in text.encode("utf-8", "replace")]
    assert "".join(deltas) == text.encode("utf-8", "replace").decode()
