"""Fill, generate, fork, free, abort."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from stretto.engines.transformer.contexts import Contexts, RunningGeneration
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.errors import CapacityError, ConfigError, QueryCancelled, UserError
from stretto.model.tasks import Decode, LLMEvent
from stretto.model.values import Segment

pytest_plugins = ("support.llm_fixtures",)

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


def test_freed_context_stops_filling(contexts: Contexts, llm: TransformerLLM) -> None:
    """Freed before its fill has been computed, or in the middle of it."""
    long = (Segment("The river runs " * 200),)
    for num_steps in (0, 1):
        context = contexts.fill(long)
        for _ in range(num_steps):
            contexts.step()
        assert llm.has_work()
        contexts.free(context)
        assert not llm.has_work()
        assert llm.scheduler.pool.num_free == llm.scheduler.pool.num_blocks


def test_fill_that_does_not_fit_changes_nothing(contexts: Contexts) -> None:
    context = contexts.fill(RIVER)
    before = contexts.tokens(context)
    too_long = (Segment("river " * 3000),)
    for where in (context, None):
        with pytest.raises(CapacityError):
            contexts.fill(too_long, context=where)
    assert contexts.tokens(context) == before
    with pytest.raises(UserError, match="no context 1"):
        contexts.tokens(1)


def test_abort_waits_for_the_step_that_runs(
    contexts: Contexts, llm: TransformerLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two coroutines want a step; one is cancelled within it, and a third generation is aborted meanwhile."""
    expected = contexts.generate(contexts.fill(RIVER), DECODE).result()
    step, cancel = llm.step, llm.cancel
    num_within, may_go_on = 0, threading.Event()

    async def run() -> object:
        loop, has_begun = asyncio.get_running_loop(), asyncio.Event()

        def watched_step() -> list[LLMEvent]:
            nonlocal num_within
            assert num_within == 0
            num_within += 1
            loop.call_soon_threadsafe(has_begun.set)
            assert may_go_on.wait(timeout=60)
            events = step()
            num_within -= 1
            return events

        def watched_cancel(task: int) -> None:
            assert num_within == 0
            cancel(task)

        async def read(generation: RunningGeneration) -> object:
            return "".join([piece async for piece in generation])

        monkeypatch.setattr(llm, "step", watched_step)
        monkeypatch.setattr(llm, "cancel", watched_cancel)
        first, second, third = (contexts.generate(contexts.fill(RIVER), DECODE) for _ in range(3))
        readers = [asyncio.create_task(read(one)) for one in (first, second)]
        await has_begun.wait()
        readers[0].cancel()
        may_go_on.set()
        contexts.abort(third)
        await asyncio.wait(readers)
        return readers[1].result()

    assert asyncio.run(run()) == expected


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
