"""Tasks that are suspended on one instance and go on on another: nobody can tell from what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.llm_running import drain

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.reference.engine import ReferenceConfig, ReferenceLLM
from stretto.engines.contract import SteppedLLM
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.running_task import TransformerUsage
from stretto.model.errors import StrettoError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started
from stretto.model.values import Prompt, Segment

pytest_plugins = ("support.llm_fixtures",)

STORY: Prompt = (Segment("Tell a story about the river and the mountains, for people who live there. "),)
WORDS = Decode(max_tokens=24, ignore_eos=True)
DECODES = {
    "greedy": WORDS,
    "penalties": replace(WORDS, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    "sampled": replace(WORDS, temperature=0.8, seed=7, top_p=0.9, min_tokens=20),
    "logprobs": replace(WORDS, logprobs=2),
    "regex": Decode(max_tokens=24, regex="(one|two|three)( and (one|two|three)){5}"),
}


@pytest.fixture(scope="module", params=["transformer", "reference", "fake", "standin"])
def make(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> Callable[[], SteppedLLM]:
    makers: dict[str, Callable[[], Any]] = {
        "transformer": lambda: TransformerLLM(
            TransformerConfig(tiny_checkpoint, max_running=8, max_batch_tokens=16)
        ),
        "reference": lambda: ReferenceLLM(ReferenceConfig(tiny_checkpoint)),
        "fake": lambda: FakeLLM(FakeLLMConfig()),
        "standin": lambda: StandIn(StandInConfig()),
    }
    make: Callable[[], SteppedLLM] = makers[request.param]
    return make


@pytest.fixture(scope="module")
def pair(make: Callable[[], SteppedLLM]) -> tuple[SteppedLLM, SteppedLLM]:
    return make(), make()


@pytest.fixture(scope="module")
def transformers(tiny_checkpoint: Path) -> Iterator[tuple[TransformerLLM, TransformerLLM]]:
    config = TransformerConfig(tiny_checkpoint, max_running=8, max_batch_tokens=16)
    one, other = TransformerLLM(config), TransformerLLM(replace(config, max_batch_tokens=64))
    yield one, other
    one.close()
    other.close()


def steps(llm: SteppedLLM, num: int) -> list[LLMEvent]:
    return [event for _ in range(num) if llm.has_work() for event in llm.step()]


def said(events: list[LLMEvent]) -> tuple[str, object]:
    """Return all pieces together, and the value."""
    assert isinstance(events[0], Started)
    (done,) = (event for event in events if isinstance(event, Done | Failed))
    assert isinstance(done, Done), done
    assert done is events[-1]
    return "".join(event.value for event in events if isinstance(event, Piece)), done.value


def moved(one: SteppedLLM, other: SteppedLLM, task: LLMTask, num_steps: int) -> list[LLMEvent]:
    """Return the output of a task that is suspended after some steps and goes on elsewhere."""
    one.admit(task, ())
    before = steps(one, num_steps)
    suspended = one.suspend()
    assert not one.has_work()
    if not suspended:
        return before
    ((task_id, token_ids),) = suspended
    assert task_id == task.id
    other.admit(replace(task, id=task.id + 1, generated=token_ids), ())
    after = drain(other)
    told = "".join(event.value for event in before if isinstance(event, Piece))
    assert said(after)[0].startswith(told), "what was told is told again"
    return after


@pytest.mark.parametrize("items", [None, "json_list"])
def test_what_is_said_does_not_depend_on_where(
    pair: tuple[SteppedLLM, SteppedLLM], items: str | None
) -> None:
    one, other = pair
    if items and not isinstance(one, FakeLLM | StandIn):
        pytest.skip("a random model writes no JSON")
    decode = Decode(max_tokens=24, items=items)
    task = LLMTask(1, "q", "s", STORY, decode)
    other.admit(task, ())
    expected = said(drain(other))
    other.release("q")
    for num_steps in range(26):
        assert said(moved(one, other, task, num_steps)) == expected, num_steps


def test_tasks_that_wait_are_suspended_too(make: Callable[[], SteppedLLM]) -> None:
    llm = make()
    for number in range(3):
        llm.admit(LLMTask(number, "q", "s", STORY, Decode(max_tokens=4)), (number,))
    llm.admit(LLMTask(3, "q", "s", STORY, None), (3,))
    assert sorted(llm.suspend()) == [(0, ()), (1, ()), (2, ()), (3, ())]
    assert not llm.has_work()
    llm.admit(LLMTask(4, "q", "s", STORY, Decode(max_tokens=4)), ())
    assert isinstance(drain(llm)[-1], Done), "and it can be used again"


@pytest.mark.parametrize("kind", DECODES)
def test_sampling_penalties_and_structure_go_on(
    transformers: tuple[TransformerLLM, TransformerLLM], kind: str
) -> None:
    if kind == "regex":
        pytest.importorskip("llguidance")
    one, other = transformers
    task = LLMTask(1, "q", "s", STORY, DECODES[kind])
    other.admit(task, ())
    alone = drain(other)
    for num_steps in (2, 5, 12, 20):
        again = moved(one, other, task, num_steps)
        assert said(again) == said(alone)
        expected, usage = alone[-1].usage, again[-1].usage  # type: ignore[union-attr]
        assert isinstance(expected, TransformerUsage)
        assert isinstance(usage, TransformerUsage)
        assert usage.tokens == expected.tokens
        assert len(usage.logprobs) == len(expected.logprobs)
        assert usage.num_prompt_tokens == expected.num_prompt_tokens
        assert 0 <= usage.num_cached_tokens <= usage.num_prompt_tokens


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.integers(1, 12), min_size=1, max_size=4), stop=st.booleans())
def test_a_task_may_move_again_and_again(
    transformers: tuple[TransformerLLM, TransformerLLM], places: list[int], stop: bool
) -> None:
    one, other = transformers
    task = LLMTask(1, "q", "s", STORY, WORDS)
    one.admit(task, ())
    text, _ = said(drain(one))
    if stop:  # an end of the text as it is written, so that limits and stop strings meet anywhere
        task = replace(task, decode=replace(WORDS, stop=(text[len(text) // 2 :][:3],)))
        one.admit(task, ())
    expected = said(drain(one)) if stop else (text, text)
    llm, num_tokens = one, 0
    for number, num_steps in enumerate(places):
        llm.admit(replace(task, id=10 + number), ())
        events = steps(llm, num_steps)
        suspended = llm.suspend()
        if not suspended:
            assert said(events) == expected
            return
        ((_, token_ids),) = suspended
        assert len(token_ids) >= num_tokens, "nothing is generated twice"
        num_tokens = len(token_ids)
        task = replace(task, generated=token_ids)
        llm = other if llm is one else one
    llm.admit(task, ())
    assert said(drain(llm)) == expected


def test_limits_count_what_was_generated_elsewhere(
    transformers: tuple[TransformerLLM, TransformerLLM],
) -> None:
    """Such a task may be over when it comes, and needs no step then."""
    llm, _ = transformers
    whole = LLMTask(1, "q", "s", STORY, Decode(max_tokens=6, ignore_eos=True))
    llm.admit(whole, ())
    alone = drain(llm)
    usage = alone[-1].usage  # type: ignore[union-attr]
    assert isinstance(usage, TransformerUsage)
    llm.admit(replace(whole, generated=usage.tokens), ())
    num_before = llm.scheduler.has_work()
    assert not num_before
    assert said(drain(llm)) == said(alone)
    llm.admit(replace(whole, generated=usage.tokens), ())
    assert llm.suspend() == [(1, ())], "it has not been told yet"
    assert not llm.has_work()


def test_a_list_goes_on_behind_the_items_that_there_are(
    transformers: tuple[TransformerLLM, TransformerLLM],
) -> None:
    llm, _ = transformers
    ids = llm.tokenizer.encode((Segment('["first", "second", "th'),))
    generated = tuple(token for token in ids if token not in llm.tokenizer.encode(()))
    decode = Decode(max_tokens=len(generated) + 2, items="json_list", max_items=2)
    llm.admit(LLMTask(1, "q", "s", STORY, decode, generated=generated), ())
    assert said(drain(llm)) == ("firstsecond", ["first", "second"])


def test_tokens_of_another_model_fail_the_task(transformers: tuple[TransformerLLM, TransformerLLM]) -> None:
    llm, _ = transformers
    llm.admit(LLMTask(1, "q", "s", STORY, WORDS, generated=(99_999,)), ())
    ending = drain(llm)[-1]
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, StrettoError)
    assert "generated elsewhere has tokens outside the vocabulary" in str(ending.error)
