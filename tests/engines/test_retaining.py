"""An in-process engine that hears what will be needed again, right or wrong, while its cache is full."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.llm_running import drain

from stretto.cluster.kv_events import BlockRemoved
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.tasks import Decode, Done, LLMTask, Reuse
from stretto.model.values import Prompt, Segment

pytest_plugins = ("support.llm_fixtures",)

WORDS = ("red", "green", "blue", "seven", "eight", "nine")


def prompts(draw: random.Random) -> list[Prompt]:
    """Return prompts of three segments that share some of their beginnings."""
    heads = [" ".join(draw.choices(WORDS, k=20)) for _ in range(3)]
    return [
        (Segment(draw.choice(heads)), Segment(draw.choice(heads), "x"), Segment(f" {number}?"))
        for number in range(12)
    ]


def answers(folder: Path, seed: int, num_blocks: int, *, retains: bool) -> list[object]:
    """Run the prompts in pairs on an engine of so many blocks; with `retains`, send forecasts in between."""
    config = TransformerConfig(folder, block_tokens=16, with_kv_events=True)
    roomy = TransformerLLM(config)
    block_bytes = config.kv_bytes // roomy.scheduler.config.num_blocks
    llm = TransformerLLM(replace(config, kv_bytes=num_blocks * block_bytes))
    assert llm.scheduler.config.num_blocks == num_blocks
    draw = random.Random(f"forecasts/{seed}")
    asked = prompts(random.Random(f"prompts/{seed}"))
    said: dict[int, object] = {}
    for number in range(0, len(asked), 2):
        for task in (number, number + 1):
            decode = Decode(6, ignore_eos=True)
            llm.admit(LLMTask(task, f"q{task % 3}", "s", asked[task], decode), (float(task),))
        said |= {event.task: event.value for event in drain(llm) if isinstance(event, Done)}
        for _ in range(3 if retains else 0):
            prompt = draw.choice(asked)[: draw.randint(0, 3)]
            uses = [
                (draw.randint(0, 4), draw.choice([None, 0.0, -5.0, 3.0])) for _ in range(draw.randint(0, 3))
            ]
            llm.retain(Reuse(f"q{draw.randint(0, 3)}", prompt, tuple(uses)))
            llm.scheduler.check_invariants()
        if draw.random() < 0.2:
            llm.release(f"q{draw.randint(0, 2)}")
    events = llm.take_kv_events()
    assert num_blocks > 100 or any(isinstance(event, BlockRemoved) for event in events)
    return [said[task] for task in range(len(asked))]


@pytest.mark.parametrize("seed", range(2))
def test_forecasts_change_no_answer(tiny_checkpoint: Path, seed: int) -> None:
    """Whether anything is evicted, and what, cannot be told from the answers."""
    expected = answers(tiny_checkpoint, seed, 2000, retains=False)
    assert answers(tiny_checkpoint, seed, 40, retains=True) == expected
    assert answers(tiny_checkpoint, seed, 40, retains=False) == expected


def test_a_forecast_that_cannot_be_tokenised_is_ignored(tiny_checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    llm.retain(Reuse("q", (Segment("\ud800", "x"),), ((1, 1.0),)))
    assert not llm.has_work()
