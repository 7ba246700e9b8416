"""Traces of agents in virtual time: arrivals computed by hand, and what conversations share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.sim.agent_load import simulate_agents
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import OutputSource
from stretto.trace.agents.live_load import LoadAnswer, run_live
from stretto.trace.agents.load_report import RequestTimes, summarise_load
from stretto.trace.agents.requests import After, AgentRequest, ChatPrompt, SizedPrompt, checked_trace

# A prefill takes 1 s and 1/64 s for each token that is not cached; a decode step takes 1/8 s.
PROFILE = Profile(base_s=1.0, per_unit_s=1 / 64, per_output_s=1 / 8)


def model_of(output: OutputSource) -> Callable[[Replica], SimulatedModel]:
    scheduler = SchedulerConfig(num_blocks=4096, block_tokens=4, max_running=8, max_batch_tokens=4096)
    return lambda _: SimulatedModel(scheduler, ProfileCost(PROFILE), output)


def simulate(*requests: AgentRequest) -> dict[str, RequestTimes]:
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", profile=PROFILE, max_running=8)
    times = simulate_agents(checked_trace(Path("t"), requests), llm, model_of)
    return {one.request: one for one in times}


def sized(name: str, tokens: int, *after: After, arrival_s: float = 0.0) -> AgentRequest:
    return AgentRequest(name, 1, SizedPrompt(tokens), arrival_s, after, output_tokens=9)


def test_requests_arrive_when_what_they_wait_for_has_ended_plus_their_delay() -> None:
    found = simulate(
        sized("plan", 64, arrival_s=0.5),
        sized("tool", 128, After("plan", 2.0)),
        sized("merge", 64, After("plan", 0.25), After("tool", 0.5)),
        sized("beside", 64, After("plan", 10.0, "start")),
    )
    # A prefill of 64 tokens: 1 + 1 = 2 s, of 128: 3 s. Eight decode steps after the first token: 1 s.
    assert [(one.due_s, one.start_s, one.end_s) for one in map(found.get, ("plan", "tool"))] == [  # type: ignore[union-attr]
        (0.5, 0.5, 3.5),
        (5.5, 5.5, 9.5),
    ]
    assert found["plan"].first_s == 2.5
    assert found["tool"].first_s == 8.5
    # "merge" has a token at 12 s, the next one 2.125 s later with the prefill of "beside", then seven more.
    assert (found["merge"].start_s, found["merge"].end_s) == (10.0, 12.0 + 2.125 + 7 / 8)
    assert found["beside"].start_s == 10.5
    assert found["merge"].num_output == 9


def test_turns_share_the_conversation_with_its_simulated_answers() -> None:
    system = {"role": "system", "content": "x" * 400}
    first = ChatPrompt((system, {"role": "user", "content": "plan the work"}))
    second = ChatPrompt(({"role": "tool", "content": "it is done"},), continues="a")
    found = simulate(
        AgentRequest("a", 1, first, output_tokens=40),
        AgentRequest("b", 1, second, after=(After("a", 1.0),), output_tokens=5),
        AgentRequest("c", 1, first, after=(After("b"),), output_tokens=5),
    )
    # "<system>" and "<assistant>" are 3 tokens, "<user>" is 2; 400 characters are 101 tokens.
    assert found["a"].num_prompt == 3 + 101 + 2 + 4 + 3
    assert found["b"].num_prompt == found["a"].num_prompt + 40 + 2 + 3 + 3
    assert found["b"].num_cached == (113 + 39) // 4 * 4  # the last token of an answer is not computed
    assert found["c"].num_cached == 112


def test_blocks_are_shared_prefixes() -> None:
    a, b = SizedPrompt(200, (1, 2, 3, 4), 64), SizedPrompt(150, (1, 2, 9), 64)
    found = simulate(
        AgentRequest("a", 1, a, output_tokens=2),
        AgentRequest("b", 1, b, after=(After("a"),), output_tokens=2),
    )
    assert (found["b"].num_prompt, found["b"].num_cached) == (150, 128)


def test_a_failed_request_drops_its_followers_and_its_job() -> None:
    requests = (
        sized("long", 20_000),
        sized("next", 64, After("long")),
        sized("fine", 64),
    )
    found = simulate(*requests)
    assert set(found) == {"long", "fine"}
    assert found["long"].error is not None
    assert found["long"].error.startswith("CapacityError: ")
    report = summarise_load(checked_trace(Path("t"), requests), list(found.values()))
    assert (report.answered, report.failed, report.not_ended, report.jobs, report.jobs_done) == (
        1,
        1,
        1,
        2,
        1,
    )


def test_a_report_has_hand_computed_times() -> None:
    requests = (sized("a", 64, arrival_s=1.0), sized("b", 64, After("a", 1.0)))
    found = simulate(*requests)
    report = summarise_load(checked_trace(Path("t"), requests), list(found.values()))
    assert report.duration_s == 7.0  # 3 s, 1 s of a tool, 3 s
    assert report.jobs_per_hour == pytest.approx(3600 / 7)
    assert report.job is not None
    assert report.job.p50 == 7.0
    assert report.first_token is not None
    assert report.first_token.max == 2.0
    assert report.per_token is not None
    assert report.per_token.mean == 1 / 8
    assert report.end_to_end is not None
    assert report.end_to_end.p99 == 3.0
    assert report.lateness is not None
    assert report.lateness.max == 0.0
    assert (report.prompt_tokens, report.output_tokens, report.cached_tokens) == (128, 18, 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_replay_in_real_time_sends_requests_at_the_same_times(seed: int) -> None:
    draw = Random(seed)
    requests = []
    for number in range(30):
        others = draw.sample(range(number), min(number, draw.choice((0, 1, 1, 2))))
        after = [After(f"r{n}", draw.choice((0.0, 0.5, 2.0)), draw.choice(("start", "end"))) for n in others]
        arrival_s = draw.choice((0.0, 1.0, 3.0))
        requests.append(sized(f"r{number}", draw.randrange(10, 200), *after, arrival_s=arrival_s))
    simulated = simulate(*requests)

    async def ask(
        request: AgentRequest, messages: Sequence[Mapping[str, object]], note_first: Callable[[], None]
    ) -> LoadAnswer:
        one = simulated[request.id]
        await asyncio.sleep(one.end_s - one.start_s)
        return LoadAnswer("")

    @in_virtual_time
    async def live() -> list[RequestTimes]:
        times: list[RequestTimes] = []
        await run_live(checked_trace(Path("t"), requests), ask, times)
        return times

    sent = {one.request: one.start_s for one in live()}
    assert sent == pytest.approx({name: one.start_s for name, one in simulated.items()})
