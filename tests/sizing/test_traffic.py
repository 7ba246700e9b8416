"""Recorded traffic as jobs from which loads are drawn, and the runs of loads."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.costs.shape import StepShape
from stretto.costs.step import LLMStepCost
from stretto.model.errors import ConfigError, UserError
from stretto.model.profile import Profile
from stretto.sched.actions import Reply
from stretto.sched.messages import Event, Submit
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import OutputSource, made_up_token_ids
from stretto.sizing.answer import Answer, answers
from stretto.sizing.asked import parse_servers
from stretto.sizing.capacity import crossing
from stretto.sizing.job_load import JobLoad
from stretto.sizing.load import Load
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.page import answer_page
from stretto.sizing.report import as_data, check_possible, sentence, tried
from stretto.sizing.servers import Server
from stretto.sizing.sources import read_traffic
from stretto.sizing.study import Study
from stretto.sizing.traffic import Traffic
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.sizing.trial import TrialOutcome, TriedFleet, run
from stretto.sizing.variants import variants_of
from stretto.trace.agents.requests import AgentRequest, SizedPrompt, checked_trace
from stretto.trace.lines import TraceError

SLO = parse_objectives("p95 first_token 2s")
EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions.jsonl"
(SERVER,) = parse_servers("A100", "Llama-2-7b-hf")


def written(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def turns(number: int, **fields: object) -> list[dict[str, object]]:
    """Lines of Mooncake's format: a session whose prompts grow by a block of 512 tokens."""
    return [
        {
            "session_id": f"s{number}",
            "input_length": 512 * (turn + 2),
            "output_length": 300,
            "hash_ids": [1, *range(100 * number + 100, 100 * number + 101 + turn)],
            **({"delay": 1000} if turn else {"timestamp": 500 * number}),
            **fields,
        }
        for turn in range(3)
    ]


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    lines = [line for number in range(4) for line in turns(number)]
    return traffic_of(read_traffic(written(tmp_path / "t.jsonl", lines)))


def shared(one: str, other: str) -> int:
    """Return how many first tokens two texts have in common."""
    pairs = zip(made_up_token_ids(one), made_up_token_ids(other), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)) // 4)


def test_a_job_shares_its_own_blocks_with_itself_and_common_ones_with_all(traffic: Traffic) -> None:
    job, other = traffic.jobs[:2]
    first, second, third = job.calls.values()
    assert [call.num_prompt for call in job.calls.values()] == [1024, 1536, 2048]
    assert 1000 <= shared(first.text(7), second.text(7)) <= 1024
    assert 1500 <= shared(second.text(7), third.text(7)) <= 1536
    assert 512 <= shared(first.text(7), first.text(8)) < 520
    assert 512 <= shared(first.text(7), next(iter(other.calls.values())).text(9)) < 520
    assert len(made_up_token_ids(first.text(7))) == 1024


def test_times_and_tokens_are_scaled_and_pauses_cut(tmp_path: Path) -> None:
    trace = read_traffic(written(tmp_path / "t.jsonl", turns(0) + turns(1)))
    traffic = traffic_of(trace, scale=2, most_pause_s=0.25)
    calls = list(traffic.jobs[0].calls.values())
    assert [call.num_prompt for call in calls] == [512, 768, 1024]
    assert calls[0].num_output == 150
    assert traffic.jobs[0].pauses_s == pytest.approx(0.5)
    assert traffic.per_s == pytest.approx(4.0)


def test_jobs_that_fit_no_model_are_left_out(tmp_path: Path, traffic: Traffic) -> None:
    lines = turns(0) + turns(1, input_length=5 * 512, hash_ids=[1, 2, 3, 4, 5])
    mixed = traffic_of(read_traffic(written(tmp_path / "m.jsonl", lines)))
    fitting = mixed.fitting(2400)
    assert (len(fitting.jobs), fitting.num_left_out) == (1, 1)
    with pytest.raises(ConfigError, match="no job fits the model's 100 tokens"):
        traffic.fitting(100)


@pytest.mark.long
def test_equal_seeds_give_equal_runs_and_more_sessions_wait_longer(traffic: Traffic) -> None:
    objectives = parse_objectives("p95 first_token 10s, p50 per_token 1s, p90 job 100s")
    fleet = TriedFleet(((SERVER, 1),))
    few, again, other = (run(fleet, traffic, Load("sessions", 4), objectives, seed, 60) for seed in (1, 1, 2))
    many = run(fleet, traffic, Load("sessions", 40), objectives, 1, 60)
    assert few == again != other
    assert few.cached_share > 0.5
    assert all(value_s is not None for value_s in few.values_s)
    assert not few.missed(objectives)
    assert many.values_s[0] > few.values_s[0]  # type: ignore[operator]


def test_the_time_before_what_is_measured_does_not_shrink_with_the_load(traffic: Traffic) -> None:
    """Caches are empty at first, on many servers as on one."""
    objectives = parse_objectives("p95 first_token 2s")
    few, many = (Load("sessions", number).window(traffic, objectives, 400) for number in (2, 2000))
    assert few.warm_s > many.warm_s >= 45
    assert many.end_s - many.warm_s >= 20


class ListedClock:
    """A driver that notes what a load plans."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.planned: list[tuple[float, Callable[[], Sequence[Event]]]] = []

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]]) -> None:
        self.planned.append((at_s, happen))


def test_a_request_that_waits_for_another_misses_the_step_that_begins_at_its_end(tmp_path: Path) -> None:
    lines = [line for number in range(2) for line in turns(number, delay=0)]
    traffic = traffic_of(read_traffic(written(tmp_path / "t.jsonl", lines)))
    load, clock = Load("per_s", 0.1), ListedClock()
    jobs = JobLoad(traffic, load, SLO, load.window(traffic, SLO, 4), 0)
    jobs.attach(clock)
    arrives_s, arrive = clock.planned[-1]
    clock.now_s = arrives_s
    (submitted,) = arrive()
    assert isinstance(submitted, Submit)
    clock.planned.clear()
    clock.now_s = arrives_s + 3
    jobs.on_reply(Reply(submitted.query, {}))
    (next_s,) = (at_s for at_s, _ in clock.planned)
    assert next_s == pytest.approx(arrives_s + 3.005)


def test_a_rate_lets_jobs_arrive(traffic: Traffic) -> None:
    objectives = parse_objectives("p95 first_token 1s, p95 job 40s")
    outcomes = [
        run(TriedFleet(((SERVER, 1),)), traffic, Load("per_s", rate), objectives, 0, 60)
        for rate in (0.2, 20.0)
    ]
    assert not outcomes[0].missed(objectives)
    assert outcomes[1].missed(objectives)


def test_a_server_on_which_nothing_begins_serves_nothing(traffic: Traffic) -> None:
    """All sessions wait for the first ones, so that none begins in the measured time."""
    stuck = replace(SERVER, kv_tokens=2500, cost=ProfileCost(Profile(50.0, 0.1, 1, per_output_s=50.0)))
    objectives = parse_objectives("mean job 100s, p95 first_token 20s")
    outcome = run(TriedFleet(((stuck, 1),)), traffic, Load("sessions", 30), objectives, 0, 40)
    assert [one.time for one, _ in outcome.missed(objectives)] == ["job", "first_token"]


def last(study: Study, *given: object, **settings: bool) -> Answer:
    """Return the whole answer."""
    (*_, answer) = answers(study, *given, **settings)  # type: ignore[arg-type]
    return answer


@pytest.mark.long
def test_the_answer_is_what_runs_at_and_above_the_capacity_say(traffic: Traffic) -> None:
    objectives = parse_objectives("p90 per_token 25ms")
    study = Study(traffic, objectives, "sessions", draws=1, num_samples=60)
    answer = last(study, [SERVER], Load("sessions", 35), [2.0], with_variants=False)
    (alone,) = answer.alone
    assert alone.capacity.levels
    for draw, level in enumerate(alone.capacity.levels):
        assert level is not None
        tried = {
            study.grid.at_most(load.amount): outcome.times_limit(objectives)
            for (fleet, load, of), outcome in study.outcomes.items()
            if (fleet, of) == (alone.fleet, draw)
        }
        assert {level - 1, level, level + 1, level + 2} <= tried.keys()
        assert level == crossing(tried)
    best = answer.best
    assert best is not None
    assert best.price == 2.0 * best.fleet.num_servers
    assert study.serves(best.fleet, Load("sessions", 35))
    assert not study.serves(TriedFleet(((SERVER, best.fleet.num_servers - 1),)), Load("sessions", 35))
    assert best.capacity.low >= 34
    data = as_data(study, answer, [SERVER], is_whole=True)
    assert data["answer"] == sentence(answer)
    assert json.loads(json.dumps(data))["best"]["fleet"] == best.fleet.name
    assert f"{best.fleet.name} serve" in sentence(answer)


@pytest.mark.long
def test_an_objective_that_no_fleet_meets_is_named_with_what_is_missing(traffic: Traffic) -> None:
    study = Study(traffic, parse_objectives("p50 per_token 1ms"), "sessions", draws=1, num_samples=40)
    answer = last(study, [SERVER], Load("sessions", 5), None, with_variants=True)
    assert answer.best is None
    found = sentence(answer)
    assert "no fleet meets p50 time per token 1 ms" in found
    assert "1 × A100-80G at 1 sessions misses p50 time per token 1 ms" in found
    assert "times the limit" in found
    with pytest.raises(
        UserError, match=r"no fleet meets p50 job 1 s: the pauses in .* alone take 2 s, 2 times"
    ):
        check_possible(traffic, parse_objectives("p50 job 1s"))


def test_changes_of_a_fleet_say_what_cannot_be_known() -> None:
    alone, two = (list(variants_of(TriedFleet(((SERVER, number),)))) for number in (1, 2))
    assert len(two) == len(alone) + 1
    assert alone[0].fleet == TriedFleet(((SERVER, 2),))
    (single,) = (
        one for one in variants_of(TriedFleet(((SERVER, 1),)), has_sessions=False) if one.fleet is None
    )
    assert single.reason == "nothing is held: each job has one request"
    opaque = TriedFleet(((replace(SERVER, cost=ProfileCost(Profile(1.0))), 1),))
    (unknown,) = (one for one in variants_of(opaque) if one.fleet is None)
    assert unknown.name == "weights in 8 bits"
    assert "no part for reading weights" in unknown.reason


def test_kv_in_host_memory_is_loaded_instead_of_computed() -> None:
    offloading = list(variants_of(TriedFleet(((SERVER, 1),))))[-1]
    assert offloading.fleet is not None
    ((server, _),) = offloading.fleet.servers
    assert server.host_kv_tokens * SERVER.model.kv_bytes_per_token == pytest.approx(100 * 2**30, rel=0.001)
    assert server.host_token_s == SERVER.model.kv_bytes_per_token / 25e9


def test_light_weights_are_read_in_half_of_the_time_and_leave_room_for_kv() -> None:
    (light,) = (
        one.fleet.servers[0][0]
        for one in variants_of(TriedFleet(((SERVER, 1),)))
        if one.fleet is not None and one.name == "weights in 8 bits"
    )
    assert isinstance(SERVER.cost, LLMStepCost)
    shape = StepShape(num_decodes=32, context_tokens=32_000, max_context_tokens=1000)
    saved_s = SERVER.cost.step_s(shape) - light.cost.step_s(shape)
    assert saved_s == pytest.approx(SERVER.cost.terms(shape).weights / 2)
    assert light.cost.steps_s(shape, 3) == pytest.approx(3 * light.cost.step_s(shape), rel=0.01)
    more = (light.kv_tokens - SERVER.kv_tokens) * SERVER.model.kv_bytes_per_token
    assert more == pytest.approx(SERVER.model.weight_bytes / 2, rel=0.001)


@pytest.mark.long
def test_the_page_has_a_curve_with_its_knee_for_each_objective(traffic: Traffic) -> None:
    study = Study(traffic, parse_objectives("p90 per_token 25ms"), "sessions", draws=1, num_samples=40)
    answer = last(study, [SERVER], None, None, with_variants=False)
    page = answer_page(study, answer, [SERVER])
    assert page.count("<svg") == page.count("<polyline") == page.count('class="knee"') == 1
    assert page.count("<circle") == len(study.outcomes)
    assert sentence(answer) in page
    assert "estimate" not in page  # this model was measured on this GPU


@pytest.mark.long
def test_the_answer_so_far_is_there_at_any_time(traffic: Traffic) -> None:
    study = Study(traffic, parse_objectives("p90 per_token 25ms"), "sessions", draws=2, num_samples=40)
    found = answers(study, [SERVER], None, None, with_variants=False)
    first = next(found)
    assert len(first.alone[0].capacity.levels) == 1
    assert "1 × A100-80G serves" in sentence(first)
    assert sentence(Answer(study.objectives)) == "no capacity is known yet"


def test_a_search_that_ends_early_tells_what_it_has_tried(traffic: Traffic) -> None:
    study = Study(traffic, parse_objectives("p95 first_token 2s"), "per_s", draws=1, num_samples=40)
    fleet = TriedFleet(((SERVER, 1),))
    for amount, value_s in ((20.0, 0.5), (40.0, 1.5), (50.0, 2.5), (80.0, 9.0)):
        study.outcomes[fleet, Load("per_s", amount), 0] = TrialOutcome((value_s,), False, 0.5, 40)
    (line,) = tried(study)
    assert line == "1 × A100-80G, so far: at 40 a second within the objectives, at 50 a second beyond them"
    page = answer_page(study, Answer(study.objectives), [SERVER])
    assert line in page
    assert page.count("<circle") == 4
    assert 'class="knee"' not in page


def test_the_page_of_a_search_without_a_run_has_no_empty_picture(traffic: Traffic) -> None:
    study = Study(traffic, parse_objectives("p95 first_token 2s"), "per_s", draws=1, num_samples=40)
    page = answer_page(study, Answer(study.objectives), [SERVER])
    assert "no run has ended yet" in page
    assert "<svg" not in page


def test_the_example_is_of_sessions() -> None:
    traffic = traffic_of(read_traffic(EXAMPLE))
    assert traffic.is_of_sessions
    assert len(traffic.jobs) == 40


def test_azure_requests_are_jobs_of_one_request(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,200,0\n4,50,9\n")
    traffic = traffic_of(read_traffic(file))
    assert not traffic.is_of_sessions
    assert traffic.gaps == pytest.approx((0.5, 1.5))
    with pytest.raises(TraceError, match="row 0"):
        read_traffic(written(tmp_path / "bad.csv", []))


def test_requests_of_a_trace_go_to_other_processes() -> None:
    request = AgentRequest(id="a", line=1, prompt=SizedPrompt(5))
    assert pickle.loads(pickle.dumps(request)) == request


@pytest.mark.long
def test_nothing_is_held_between_jobs_of_one_request() -> None:
    arrivals = (one * 0.11 % 40 for one in range(400))
    requests = (
        AgentRequest(str(n), n, SizedPrompt(900 + 37 * n % 2000), at_s, output_tokens=20 + n % 50)
        for n, at_s in enumerate(arrivals)
    )
    alone = traffic_of(checked_trace(Path("made up"), requests))
    for number in (1, 2):
        fleet = TriedFleet(((SERVER, number),))
        held, free = (
            run(replace(fleet, holds_programs=holds), alone, Load("per_s", 7 * number), SLO, 0, 300)
            for holds in (True, False)
        )
        assert held == free


@pytest.mark.long
def test_what_saves_time_changes_no_result(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server need not tell what its cache holds, and a run need not wait for answers that go on."""

    def first_token_s(slo: str) -> float | None:
        load = Load("sessions", 30)
        return run(
            TriedFleet(((SERVER, 1),)), traffic, load, parse_objectives(slo), 3, 100, cuts=False
        ).values_s[0]

    quick = first_token_s("p95 first_token 2s")
    assert quick
    assert quick == first_token_s("p95 first_token 2s, mean per_token 9s")
    simulated = Server.simulated

    def telling(server: Server, output: OutputSource, block_tokens: int, *, reports_kv: bool) -> object:
        assert not reports_kv
        return simulated(server, output, block_tokens, reports_kv=True)

    monkeypatch.setattr(Server, "simulated", telling)
    assert quick == first_token_s("p95 first_token 2s")
