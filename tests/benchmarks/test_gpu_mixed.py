"""Mixed programs on the in-process engine, with a tiny model on the CPU: the same calls in every arm."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.gpu.agents import TINY
from benchmarks.gpu.forced import MadeUpTokens
from benchmarks.gpu.mixed_runs import (
    BY_ARRIVAL,
    DEFAULT_ORDER,
    MOST_CALLS,
    MOST_PASSAGES,
    MOST_PAUSE_S,
    OPEN,
    Capacity,
    Outcome,
    Place,
    Watched,
    lone_of,
    programs_of,
)
from benchmarks.gpu.model import random_weights, write_checkpoint
from benchmarks.programs.real.clock import RealRun, run_programs
from benchmarks.programs.work import (
    AGENT,
    CHAT,
    MixedProgram,
    MixedQuery,
    answer_text,
    text_of,
    written_tokens,
)
from stretto.model.tasks import Usage
from stretto.model.values import Segment
from stretto.sim.synthetic_output import filler

_GIVEN = argparse.Namespace(kv_tokens=8192, device="cpu", dtype="float32")


def test_programs_are_cut_and_keep_their_kinds() -> None:
    programs = programs_of("four_apps", "1", 60)
    assert {one.kind for one in programs} == {"chat", "rag", "agent", "map_reduce"}
    assert max(len(one.queries) for one in programs) <= MOST_CALLS
    assert max(query.width for one in programs for query in one.queries) <= MOST_PASSAGES
    assert max(query.pause_s for one in programs for query in one.queries) <= MOST_PAUSE_S
    lone = lone_of(programs)
    assert lone.latency_s.keys() == {one.name for one in programs}


def test_a_text_has_the_tokens_that_it_has_in_virtual_time_and_an_answer_those_of_its_model(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path, TINY)
    tokens = MadeUpTokens(tmp_path, TINY["vocab_size"])
    answer = tokens.decode([3, 511, 40])
    assert tokens.encode((Segment(answer),)) == [3, 511, 40]
    assert len(tokens.encode((Segment(text_of("one", 40)), Segment(filler("two", 9))))) == 49


def _agent() -> MixedProgram:
    first = (text_of("tools", 100),)
    second = (*first, answer_text("a/0", AGENT), text_of("result", 30))
    return MixedProgram("a", AGENT, 0.0, (MixedQuery("a/0", AGENT, first), MixedQuery("a/1", AGENT, second)))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, TINY)
    chat = MixedProgram("c", CHAT, 0.5, (MixedQuery("c", CHAT, (text_of("c", 20),)),))
    programs = [_agent(), chat]

    async def drive(watched: Watched, found: RealRun) -> None:
        await run_programs(programs, 0.01, watched.ask, found)

    with random_weights():
        return {
            arm: Place(_GIVEN, folder).run(arm, programs, 60.0, drive) for arm in (BY_ARRIVAL, DEFAULT_ORDER)
        }


def test_each_arm_has_the_same_calls_of_the_lengths_of_virtual_time(outcomes: Mapping[str, Outcome]) -> None:
    for outcome in outcomes.values():
        lengths = {key: outcome.found.run.usages[key].num_output_tokens for _, key in outcome.watched.ends}
        assert lengths == {
            (name, "text", 0): written_tokens(name, kind, "text", 0)
            for name, kind in (("a/0", AGENT), ("a/1", AGENT), ("c", CHAT))
        }
        assert outcome.found.run.times.keys() == {"a", "c"}


def test_a_conversation_goes_on_from_the_answer_of_the_model(outcomes: Mapping[str, Outcome]) -> None:
    for outcome in outcomes.values():
        usage: Usage = outcome.found.run.usages["a/1", "text", 0]
        written = written_tokens("a/0", AGENT, "text", 0)
        assert usage.num_prompt_tokens == 100 + written + 30
        assert usage.num_cached_tokens >= (100 + written - 1) // 32 * 32


def test_capacity_is_not_measured_with_programs_of_which_none_waits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{OPEN} programs"):
        Capacity.of(Place(_GIVEN, tmp_path), "four_apps", OPEN)
