"""What one more worker changes: predicted from the traffic of a door, beside a run that has it."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from support.routing import routing, run

from stretto.cli.program_time import print_program_time
from stretto.cluster.placement_request import PromptKey
from stretto.operate.traffic import RecentTraffic, SeenRequest, read_seen_requests
from stretto.router.config import RouterConfig
from stretto.router.virtual_door import ServedTimes
from stretto.router.what_if import LinearSteps, Replay, with_more_workers
from stretto.router.worker_config import WorkerConfig
from stretto.sched.request_trace import RequestTrace, Try

CONFIG = RouterConfig(worker=(WorkerConfig(url="http://one", num_slots=6, kv_tokens=60_000),))
COST = LinearSteps(0.012, 4e-5, 4e-4)


def planned(num_programs: int, turns: int, seed: int) -> list[SeenRequest]:
    """Return requests of agents as they would come if nothing took any time."""
    rng = random.Random(seed)
    found: list[SeenRequest] = []
    for program in range(num_programs):
        at_s, blocks, before = program * 0.4, 12, None
        for _ in range(turns):
            number = len(found)
            shared = 8 if before is None else found[before].num_blocks
            like = (0 if number else None) if before is None else before
            tokens, output = 64 * blocks + 9, rng.randint(20, 120)
            found.append(
                SeenRequest(
                    number=number,
                    tenant="",
                    program=f"p{program}",
                    model="m",
                    arrived_s=at_s,
                    sent_s=at_s,
                    first_s=at_s,
                    ended_s=at_s,
                    after=before,
                    worker=0,
                    is_streamed=True,
                    prompt_tokens=tokens,
                    cached_tokens=0,
                    output_tokens=output,
                    like=like,
                    num_alike=shared if like is not None else 0,
                    num_blocks=blocks,
                )
            )
            before, blocks, at_s = number, blocks + rng.randint(2, 10), at_s + rng.uniform(0.3, 1.5)
    return found


def served(requests: list[SeenRequest], times: Any) -> list[SeenRequest]:
    """Return the requests as a door would have seen them."""
    made = []
    for one in requests:
        was: ServedTimes = times[one.number]
        assert was.first_s is not None
        assert was.ended_s is not None
        made.append(
            replace(
                one,
                arrived_s=was.due_s,
                sent_s=was.sent_s,
                first_s=was.first_s,
                ended_s=was.ended_s,
                cached_tokens=was.usage.num_cached_tokens,
            )
        )
    return made


def mean_s(requests: list[SeenRequest]) -> float:
    """Return the mean seconds of a program."""
    spans = [[one for one in requests if one.program == name] for name in {one.program for one in requests}]
    return fmean(max(o.ended_s for o in span) - min(o.arrived_s for o in span) for span in spans)


@pytest.mark.parametrize(
    ("num_programs", "seed"),
    [(10, 2), pytest.param(24, 1, marks=pytest.mark.long), pytest.param(40, 3, marks=pytest.mark.long)],
)
def test_a_prediction_is_near_to_a_run_with_the_change(num_programs: int, seed: int) -> None:
    requests = planned(num_programs, 4, seed)
    more = replace(CONFIG, worker=(*CONFIG.worker, replace(CONFIG.worker[0], url="http://two")))
    was, would = (served(requests, Replay(requests).run(config, COST)) for config in (CONFIG, more))
    change = with_more_workers(was, CONFIG)
    assert change is not None
    assert change.num_requests == len(requests)
    measured = mean_s(would) / mean_s(was)
    assert (1.0 + change.mean_change) / measured == pytest.approx(1.0, abs=0.15)
    assert change.error < 0.2
    assert set(change.changes) == {("", f"p{number}") for number in range(num_programs)}


def test_too_few_requests_say_nothing() -> None:
    assert with_more_workers(planned(2, 4, 1), CONFIG) is None


def test_the_traffic_is_kept_with_what_prompts_share_and_without_their_hashes() -> None:
    traffic = RecentTraffic()
    prompts = ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9])
    keys = [PromptKey([bytes([n]) * 8 for n in numbers], 64) for numbers in prompts]
    for number, (program, key) in enumerate(zip(("a", "a", "b"), keys, strict=True)):
        trace = RequestTrace(f"r{number}", "/v1/chat/completions", float(number), program=program, model="m")
        traffic.on_request_arrived(trace, float(number))
        traffic.on_request_keyed(trace, key)
        trace.tries.append(Try(0, "http://w", None, number + 0.1))  # type: ignore[arg-type]
        trace.prompt_tokens, trace.output_tokens = 64 * len(key.blocks), 7
        trace.end(200 if number else 503, number + 0.5)
        traffic.on_request_ended(trace, number + 0.5)
    found = traffic.requests()
    assert [(one.number, one.program, one.like, one.num_alike) for one in found] == [
        (1, "a", 0, 3),
        (2, "b", 0, 2),
    ]
    assert read_seen_requests([one.to_json() for one in found]) == found


def test_the_change_is_printed_with_where_the_time_went(capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    async def main() -> None:
        async with routing("well") as at:
            for number in range(24):
                reply = await at.client.post(
                    "/v1/completions",
                    json={"model": "m", "prompt": f"Turn {number}. " * 40, "stream": True},
                    headers={"x-stretto-program": f"p{number % 6}"},
                )
                assert reply.status_code == 200
            names = [one["program"] for one in (await at.client.get("/admin/programs")).json()]
            told = (await at.client.get("/admin/traffic")).json()
            assert len(told["requests"]) == 24
            await asyncio.to_thread(print_program_time, names[0], at.router.url, None, as_json=False)

    run(main())
    out = capsys.readouterr().out
    assert "with one more worker: " in out
    assert "simulated from the last 24 requests" in out
