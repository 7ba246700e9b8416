"""Fill, generate, fork, free, abort."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stretto.core import Segment
from stretto.engines.transformer.contexts import Contexts
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.errors import CapacityError, ConfigError, QueryCancelled, UserError
from stretto.tasks import Decode

pytest_plugins = ("llm_fixtures",)

RIVER = (Segment("The river runs "), Segment("from the mountains to the sea", "way"))
MORE = (Segment(" and back again, says the "), Segment("miller", "who"))
DECODE = Decode(max_tokens=8, ignore_eos=True)


@pytest.fixture
def llm(tiny_checkpoint: Path) -> TransformerLLM:
    return TransformerLLM(TransformerConfig(tiny_checkpoint))


@pytest.fixture
def contexts(llm: TransformerLLM) -> Contexts:
    return Contexts(llm)


def test_two_outputs_in_one_prompt(contexts: Contexts, llm: TransformerLLM, tiny_checkpoint: Path) -> None:
    """The second sees the first, finds its KV, and is what a run on all of those tokens gives."""
    context = contexts.fill(RIVER)
    contexts.generate(context, DECODE).result()
    contexts.fill(MORE, context=context, lazily=True)
    before = contexts.tokens(context)
    second = contexts.generate(context, DECODE)
    second.result()
    assert second.usage is not None
    assert second.usage.num_cached_tokens > len(before) // 2
    fresh = Contexts(TransformerLLM(TransformerConfig(tiny_checkpoint)))
    again = fresh.fill((), lazily=True)
    fresh._contexts[again].tokens = list(before)
    fresh.generate(again, DECODE).result()
    assert fresh.tokens(again) == contexts.tokens(context)


def test_forks_share_and_do_not_disturb_each_other(contexts: Contexts) -> None:
    context = contexts.fill(RIVER)
    ones = contexts.generate_several(context, Decode(max_tokens=8, temperature=1.0, ignore_eos=True), 3)
    values = [one.result() for one in ones]
    assert len(set(map(str, values))) > 1
    for one in ones:
        assert contexts.tokens(one.context)[: len(contexts.tokens(context))] == contexts.tokens(context)
        assert one.usage is not None
        assert one.usage.num_cached_tokens > 0


def test_pieces_come_as_an_asynchronous_stream(contexts: Contexts) -> None:
    async def read() -> list[object]:
        async def one(context: int) -> object:
            generation = contexts.generate(context, DECODE)
            pieces = [piece async for piece in generation]
            assert "".join(pieces) == generation.value
            return generation.value

        return await asyncio.gather(*(one(contexts.fill(RIVER)) for _ in range(3)))

    values = asyncio.run(read())
    assert values[0] == values[1] == values[2]


def test_everything_freed_leaves_every_block_free(contexts: Contexts, llm: TransformerLLM) -> None:
    kept = [contexts.fill(RIVER), contexts.fill(MORE)]
    running = contexts.generate(kept[0], DECODE)
    contexts.generate(kept[1], DECODE).result()
    for context in kept:
        contexts.free(context)
    assert isinstance(running.error, QueryCancelled | None)
    while llm.has_work():
        contexts.step()
    llm.scheduler.check_invariants()
    assert llm.scheduler.pool.num_free == llm.scheduler.pool.num_blocks


def test_aborted_generation_leaves_the_context_as_it_was(contexts: Contexts) -> None:
    context = contexts.fill(RIVER)
    before = contexts.tokens(context)
    generation = contexts.generate(context, Decode(max_tokens=100, ignore_eos=True))
    contexts.step()
    contexts.abort(generation)
    with pytest.raises(QueryCancelled):
        generation.result()
    assert contexts.tokens(context) == before
    contexts.generate(context, DECODE).result()


def test_misuse_is_a_typed_error(contexts: Contexts) -> None:
    context = contexts.fill(RIVER)
    with pytest.raises(ConfigError, match="top_p"):
        contexts.generate(context, Decode(top_p=7.0))
    with pytest.raises(CapacityError):
        contexts.generate(context, Decode(max_tokens=10_000))
    contexts.generate(context, DECODE)
    with pytest.raises(UserError, match="fork it before"):
        contexts.fill(MORE, context=context)
    contexts.free(context)
    with pytest.raises(UserError, match=f"no context {context}"):
        contexts.free(context)
    with pytest.raises(UserError, match="no context 77"):
        contexts.generate(77, DECODE)
