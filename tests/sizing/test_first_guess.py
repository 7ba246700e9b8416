"""Where a search begins: what limits a server decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.model.errors import UserError
from stretto.sizing.asked import parse_servers
from stretto.sizing.first_guess import check_simulable, likely_levels
from stretto.sizing.load import Unit
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.study import Study
from stretto.sizing.traffic import Traffic
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.trace.agents.requests import AgentRequest, SizedPrompt, checked_trace

(SERVER,) = parse_servers("A100", "Llama-3.1-8B-Instruct")


def traffic(num_prompt: int, num_output: int) -> Traffic:
    path = Path("made up")
    made = (
        AgentRequest(str(n), n, SizedPrompt(num_prompt), arrival_s=float(n), output_tokens=num_output)
        for n in range(50)
    )
    return traffic_of(checked_trace(path, made))


def amounts(given: Traffic, slo: str, unit: Unit = "per_s") -> list[float]:
    study = Study(given, parse_objectives(slo), unit, draws=3, num_samples=300)
    return [study.grid.load(level).amount for level in likely_levels(study, SERVER)]


def test_prompts_answers_and_objectives_limit_the_rate() -> None:
    usual = amounts(traffic(1000, 100), "p95 first_token 2s")
    for harder in (
        amounts(traffic(4000, 100), "p95 first_token 2s"),
        amounts(traffic(1000, 2000), "p95 first_token 2s"),
        amounts(traffic(1000, 100), "p95 first_token 1ms"),
        amounts(traffic(1000, 100), "p95 first_token 2s, p95 per_token 12ms"),
    ):
        assert all(less < more for less, more in zip(harder, usual, strict=True))


def test_a_prompt_is_computed_at_most_as_fast_as_the_server_can() -> None:
    seconds = SERVER.replica().profile.per_unit_s * 4000
    assert all(0.3 / seconds < one < 1 / seconds for one in amounts(traffic(4000, 1), "p95 first_token 9s"))


def test_sessions_fill_the_memory_unless_they_keep_the_server_busy() -> None:
    given = traffic(8000, 1)
    busy = amounts(given, "p95 first_token 2s", "sessions")
    paused = replace(given, jobs=tuple(replace(job, pauses_s=1000.0) for job in given.jobs))
    room = amounts(paused, "p95 first_token 2s", "sessions")
    assert busy[0] <= 2
    assert 0.7 < room[0] / (SERVER.kv_tokens / 8000) < 1


def test_requests_too_short_to_be_simulated_are_refused_with_what_is_likely() -> None:
    objectives = parse_objectives("p95 first_token 2s")
    check_simulable(Study(traffic(400, 40), objectives, "per_s", draws=3, num_samples=300), [SERVER])
    tiny = Study(traffic(16, 1), objectives, "per_s", draws=3, num_samples=300)
    with pytest.raises(UserError, match=r"one A100-80G serves about \d+ a second, .* at most 30,000"):
        check_simulable(tiny, [SERVER])
