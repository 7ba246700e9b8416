"""The likeliest of several options, against the log-probabilities of transformers itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.llm_running import drain, run, task

from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.options import Comparison, compares_options
from stretto.engines.transformer.token_choice import Chosen, TokenLogprobs
from stretto.model.errors import CapacityError, ConfigError
from stretto.model.tasks import Decode, Done, Failed, LLMTask
from stretto.model.values import Segment

pytest_plugins = ("support.llm_fixtures",)

PROMPT = (Segment("Where does the river run? "),)
OPTIONS = ("sea", "mill", "sea shore", "a house", "the sea")


def likelihoods(path: Path, tokens: list[int], spellings: list[tuple[int, ...]]) -> list[float]:
    """Return what transformers says of how likely a text begins with each spelling and no longer one."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    begins = []
    for spelling in spellings:
        with torch.inference_mode():
            logprobs = model(torch.tensor([[*tokens, *spelling]])).logits[0].log_softmax(-1)
        places = range(len(tokens) - 1, len(tokens) - 1 + len(spelling))
        begins.append(math.exp(sum(float(logprobs[at, it]) for at, it in zip(places, spelling, strict=True))))
    found = list(begins)
    for long, chance in zip(spellings, begins, strict=True):
        inner = [one for one in spellings if len(one) < len(long) and long[: len(one)] == one]
        if inner:
            found[spellings.index(max(inner, key=len))] -= chance
    return found


def test_the_likeliest_option_is_that_of_transformers(tiny_checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    encode = llm.tokenizer.data_tokens
    spellings = [encode(text) for option in OPTIONS for text in (option, f" {option}")]
    tokens = [*llm.tokenizer.encode(PROMPT), *llm.tokenizer.end_of(PROMPT)]
    chances = likelihoods(tiny_checkpoint, tokens, spellings)
    both = [sum(chances[at : at + 2]) for at in range(0, len(chances), 2)]

    asked = task(0, PROMPT, Decode(choices=OPTIONS))
    llm.admit(asked, ())
    (comparison,) = {one.comparison for one in llm._tasks[0]}  # type: ignore[union-attr]
    (done,) = (event for event in drain(llm) if isinstance(event, Done))
    ours = comparison.likelihoods()
    scale = max(chances) / max(ours.values())
    assert [ours[spelling] * scale for spelling in spellings] == pytest.approx(chances, rel=1e-3)
    assert done.value == OPTIONS[both.index(max(both))]
    assert done.usage.num_prompt_tokens == len(tokens)


def test_an_option_is_chosen_alike_beside_others_and_in_little_memory(tiny_checkpoint: Path) -> None:
    """Sequences that are preempted, and requests of one prompt that come together, change nothing."""
    alone = TransformerLLM(TransformerConfig(tiny_checkpoint))
    prompts = [(Segment(f"Where does the river {number} run? " * 9),) for number in range(6)]
    tokens = max(len(alone.tokenizer.encode(prompt)) for prompt in prompts)
    decode = Decode(choices=OPTIONS, max_tokens=1)
    wanted = [run(alone, prompt, decode) for prompt in prompts]
    room = TransformerConfig(tiny_checkpoint, block_tokens=8, kv_bytes=180 * 3 * 2 * 2 * 16 * 4)
    full = TransformerLLM(room)
    for number, prompt in enumerate(prompts):
        full.admit(task(number, prompt, decode), ())
    assert tokens < 180 < 3 * tokens
    found = {event.task: event.value for event in drain(full) if isinstance(event, Done)}
    assert [found[number] for number in range(6)] == [one.value for one in wanted if isinstance(one, Done)]


def compared(decode: Decode, logprobs: dict[str, float]) -> object:
    """Return the option that is chosen where letters are tokens with these log-probabilities."""
    asked = LLMTask(0, "q", "s", PROMPT, decode)
    comparison = Comparison(asked, decode, lambda text: [ord(letter) for letter in text])
    for fork in comparison._next:
        top = tuple((ord(token), chance) for token, chance in logprobs.items())
        comparison.note(fork, Chosen(0, TokenLogprobs(0, 0.0, top)))
    return comparison._spellings[comparison._best()][0]


@pytest.mark.parametrize(("rest", "best"), [(0.9, "yy"), (0.4, "y")])
def test_an_option_is_not_likelier_for_being_short(rest: float, best: str) -> None:
    chances = {"y": math.log(rest), "n": math.log(0.1), " ": -20.0}
    assert compared(Decode(choices=("n", "y", "yy")), chances) == best


def test_a_temperature_draws_by_likelihood() -> None:
    chances = {"a": math.log(0.75), "b": math.log(0.25), " ": -20.0}
    drawn = [compared(Decode(choices=("a", "b"), temperature=1.0, seed=seed), chances) for seed in range(400)]
    assert 0.68 < drawn.count("a") / 400 < 0.82


def test_options_that_part_at_the_same_depth_are_compared_in_one_step(tiny_checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    options = tuple(map(str, range(100, 140)))
    llm.admit(task(0, PROMPT, Decode(choices=options)), ())
    depths = [len(one.fork) for one in llm._tasks[0]]  # type: ignore[union-attr]
    assert depths.count(max(depths)) > 1
    done = drain(llm)[-1]
    assert isinstance(done, Done)
    assert done.value in options
    assert not llm._by_sequence


@pytest.mark.parametrize("wrong", [("a b", "b " + "word " * 40), ("\ud800", "b"), ("word " * 40,)])
def test_options_that_cannot_be_compared_leave_nothing_behind(
    tiny_checkpoint: Path, wrong: tuple[str, ...]
) -> None:
    """One that is too long for the memory, and one that is no text, which no tokenizer takes."""
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint, block_tokens=8, kv_bytes=32 * 3 * 2 * 2 * 16 * 4))
    ending = run(llm, PROMPT, Decode(choices=wrong))
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, ConfigError | CapacityError)
    left = llm._by_sequence, llm.scheduler.running, llm.scheduler.waiting
    assert not any((llm.has_work(), *left))


def test_a_prompt_without_room_leaves_nothing_behind(tiny_checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint, block_tokens=8, kv_bytes=32 * 3 * 2 * 2 * 16 * 4))
    assert isinstance(run(llm, (Segment("where " * 40),), Decode(max_tokens=2)), Failed)
    assert not llm.has_work()


def test_a_task_that_is_cancelled_or_suspended_leaves_no_sequence(tiny_checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    for number in range(2):
        llm.admit(task(number, PROMPT, Decode(choices=OPTIONS)), ())
    llm.step()
    llm.cancel(0)
    assert llm.suspend() == [(1, ())]
    left = llm._by_sequence, llm.scheduler.running, llm.scheduler.waiting
    assert not any((llm.has_work(), *left))


@pytest.mark.parametrize(
    "more", [{"top_p": 0.5}, {"top_k": 3}, {"choices": ("", "a")}, {"repetition_penalty": 1.1}]
)
def test_other_settings_hold_each_token(tiny_checkpoint: Path, more: dict[str, object]) -> None:
    pytest.importorskip("llguidance")
    decode = Decode(**{"choices": ("a.b", "c d"), **more})  # type: ignore[arg-type]
    assert not compares_options(decode)
    assert not compares_options(Decode(choices=("a.b", "c d"), stop=("d",)))
    done = run(TransformerLLM(TransformerConfig(tiny_checkpoint)), PROMPT, decode)
    assert isinstance(done, Done)
    assert done.value in decode.choices


@pytest.mark.parametrize("wrong", [{"choices": ["a"]}, {"choices": (1,)}, {"regex": "a", "choices": ("a",)}])
def test_wrong_choices_are_refused(tiny_checkpoint: Path, wrong: dict[str, object]) -> None:
    ending = run(TransformerLLM(TransformerConfig(tiny_checkpoint)), PROMPT, Decode(**wrong))  # type: ignore[arg-type]
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, ConfigError)
