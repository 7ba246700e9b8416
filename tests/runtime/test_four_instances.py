"""Four instances of a real model in this process: the same texts with any placement, and the hits that were
expected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.runtime_engines import graph

from benchmarks.common.mini_model import MINI
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.runtime.runtime import Runtime
from stretto.trace.recorder import Recorder, Span

pytest_plugins = ("support.llm_fixtures",)

APP = graph(
    """
    graph ask(%rules: text, %question: text)
      %kv     = prefill([%rules, %question]) : kv @llm
      %answer = decode(%kv) {max_tokens=4, ignore_eos=true} : text @llm
      return %answer
    """
)
NUM_GROUPS = 6
ROUNDS = 5


def requests() -> list[list[dict[str, str]]]:
    """Return rounds of requests; those of a group begin alike, and no two of a round are of one group."""
    draw = random.Random(5)
    rules = [f"Rule {number}: " + "the harbour is open. " * 18 for number in range(NUM_GROUPS)]
    found = []
    for turn in range(ROUNDS):
        order = draw.sample(range(NUM_GROUPS), NUM_GROUPS)
        found.append([{"rules": rules[n], "question": f"Who asks, {turn}?"} for n in order])
    return found


def run(checkpoint: Path, placement: str, *, reports: bool = False) -> tuple[list[str], Sequence[Span]]:
    """Return the answers to all requests, a round at a time, and their spans."""
    config = TransformerConfig(checkpoint, block_tokens=8, kv_bytes=2**22, with_kv_events=reports)
    engine = deploy(
        "llm",
        TransformerLLM,
        config,
        contract="llm",
        instances=4,
        placement=placement,
        keeps_state=True,
        kv_tokens=4096,
        profile=Profile(base_s=0.001, per_unit_s=0.0002, per_output_s=0.002, per_neighbour_s=0.0002),
    )
    recorder = Recorder()

    async def main() -> list[str]:
        answers: list[str] = []
        async with Runtime([engine], observers=[recorder]) as runtime:
            for one_round in requests():
                queries = [await runtime.submit(APP, inputs, passes="none") for inputs in one_round]
                answers += [str((await query)["answer"]) for query in queries]
        return answers

    answers = asyncio.run(main())
    return answers, [
        span for span in recorder.spans if span.usage is not None and span.usage.num_prompt_tokens
    ]


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path) -> list[str]:
    """The answers with the default placement."""
    return run(tiny_checkpoint, "least_seconds")[0]


@pytest.mark.parametrize(
    ("placement", "reports"), [("round_robin", False), ("stretto", False), ("stretto", True)]
)
def test_texts_are_equal_and_prefixes_are_found_again(
    tiny_checkpoint: Path, alone: list[str], placement: str, reports: bool
) -> None:
    """Nothing is found again in turn: caches keep prefixes of ended queries only for who follows them."""
    answers, spans = run(tiny_checkpoint, placement, reports=reports)
    assert answers == alone
    check(spans, placement)


def test_a_trained_model_writes_the_same_wherever_its_prompts_go() -> None:
    texts = []
    for placement in ("round_robin", "stretto"):
        answers, spans = run(MINI, placement)
        check(spans, placement)
        texts.append(answers)
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def check(spans: Sequence[Span], placement: str) -> None:
    """Check how much of the prompts was found in caches, and that each request says why it went there."""
    assert len(spans) == NUM_GROUPS * ROUNDS
    assert all(span.reason for span in spans)
    num_prompt = sum(span.usage.num_prompt_tokens for span in spans if span.usage)
    num_cached = sum(span.usage.num_cached_tokens for span in spans if span.usage)
    if placement == "round_robin":
        assert num_cached < 0.1 * num_prompt
    else:
        assert num_cached > 0.5 * num_prompt
        assert len({span.instance for span in spans}) > 1
        assert sum(span.held_tokens > 0 for span in spans) >= NUM_GROUPS
