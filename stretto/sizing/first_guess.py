"""A likely capacity of a server, from its costs and the traffic alone: where a search begins.

A busy server computes prompts and answers at the same rate, in steps of some parts of prompts and some
decodes. The best number of decodes within its memory tells the least seconds that a request takes of it.
Sessions are limited by these, or by the room in KV memory. Jobs that arrive wait as in a queue with one
server, in the order in which they come (Lindley's recursion), at the times of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from stretto.costs.shape import StepShape
from stretto.model.errors import UserError
from stretto.sizing.arrivals import arrivals
from stretto.sizing.load import Load
from stretto.sizing.objectives import Objective
from stretto.sizing.servers import MAX_BATCH_TOKENS, MAX_RUNNING, Server
from stretto.sizing.study import Study, shown_load
from stretto.sizing.traffic import RecordedJob, Traffic
from stretto.sizing.traffic_of_trace import NOMINAL_REQUEST_S, NOMINAL_TOKEN_S

_SHARE = 0.8
"""Likely capacity as a share of what these bounds allow."""
_MOST_REQUESTS = 30_000
"""Requests of a run that are simulated at most: they take about a minute."""


def check_simulable(study: Study, servers: Sequence[Server]) -> None:
    """Check that runs at likely capacities have a number of requests that can be simulated.

    Raises:
        UserError: they have too many, as requests are very short; the message tells the likely capacity.
    """
    traffic = study.traffic
    for server in servers:
        load = study.grid.load(likely_levels(study, server)[0])
        window = load.window(traffic, study.objectives, study.num_samples)
        number = load.jobs_per_s(traffic) * traffic.requests_per_job * window.end_s
        if number > _MOST_REQUESTS:
            raise UserError(
                f"{traffic.source}: requests are so short that one {server.label} serves about "
                f"{shown_load(load)}, by the times of its steps alone; a run has {number:,.0f} requests "
                f"then, and at most {_MOST_REQUESTS:,} are simulated"
            )


def likely_levels(study: Study, server: Server) -> list[int]:
    """Return the level of the load that a server is likely to serve, by draw."""
    pace = _pace(study.traffic, server, study.objectives)
    if study.unit == "sessions":
        return [study.grid.at_most(max(1.0, _SHARE * _sessions(study.traffic, server, pace)))] * study.draws
    return [_rate_level(study, pace, draw) for draw in range(study.draws)]


@dataclass(frozen=True, slots=True)
class _Pace:
    """How fast a busy server is.

    Attributes:
        prompt_token_s: seconds of the server that a token of a prompt takes.
        output_token_s: the same of an answer, of which many are computed at once.
        step_s: seconds between two tokens of an answer.
    """

    prompt_token_s: float
    output_token_s: float
    step_s: float

    def seconds(self, num_prompt: float, num_output: float) -> float:
        """Return the seconds of the server that a request takes."""
        return self.prompt_token_s * num_prompt + self.output_token_s * num_output


def _pace(traffic: Traffic, server: Server, objectives: tuple[Objective, ...]) -> _Pace:
    """Return the pace of a server, within limits of the time per token."""
    prompt, output, whole = traffic.mean_new_prompt, traffic.mean_output, traffic.mean_prompt
    context = whole + output / 2
    most = max(1, min(MAX_RUNNING, int(server.kv_tokens / context)))
    limit_s = min((one.limit_s for one in objectives if one.time == "per_token"), default=math.inf)
    least_s, step_s = math.inf, 0.0
    for decodes in sorted({*(1 << power for power in range(most.bit_length())), most}):
        tokens = max(1.0, min(decodes * prompt / output, MAX_BATCH_TOKENS - decodes))
        mixed_s = server.cost.step_s(
            StepShape(
                max(1, round(tokens / prompt)),
                round(tokens),
                round(min(tokens, prompt)),
                round(tokens * (whole - prompt / 2)),
                decodes,
                round(decodes * context),
                round(context),
            )
        )
        request_s = mixed_s * max(output / decodes, prompt / tokens)
        if request_s < least_s and (mixed_s <= limit_s or not step_s):
            least_s, step_s = request_s, mixed_s
    prompt_token_s = min(server.replica().profile.per_unit_s, least_s / prompt)
    return _Pace(prompt_token_s, (least_s - prompt_token_s * prompt) / output, step_s)


def _sessions(traffic: Traffic, server: Server, pace: _Pace) -> float:
    """Return how many sessions fill the KV memory, or keep the server busy."""
    pauses_s = sum(job.pauses_s for job in traffic.jobs) / len(traffic.jobs)
    answers_s = traffic.requests_per_job * traffic.mean_output * pace.step_s
    busy_s = traffic.requests_per_job * pace.seconds(traffic.mean_new_prompt, traffic.mean_output)
    return min(server.kv_tokens / traffic.mean_prompt, (pauses_s + answers_s) / busy_s)


def _rate_level(study: Study, pace: _Pace, draw: int) -> int:
    """Return the highest level at which requests of a draw do not wait too long."""
    works = {id(job): _works(job, pace) for job in study.traffic.jobs}
    limited = [one for one in study.objectives if one.time != "per_token"]
    mean_s = sum(sum(work_s for _, work_s, _ in work) for work in works.values()) / len(works)
    low, high = study.lowest, max(study.lowest, study.grid.at_most(1 / mean_s))
    while low < high:
        middle = (low + high + 1) // 2
        waits_s = _waits_s(study, works, study.grid.load(middle), draw)
        is_met = all(one.value_s(waits_s) <= one.limit_s for one in limited)
        low, high = (middle, high) if is_met else (low, middle - 1)
    return max(study.lowest, study.grid.at_most(_SHARE * study.grid.load(low).amount))


def _works(job: RecordedJob, pace: _Pace) -> list[tuple[float, float, float]]:
    """Return when requests of a job are sent after its beginning, about, their seconds of the server, and
    those until the first token.
    """
    return [
        (
            max(0.0, job.ends_s[name] - NOMINAL_REQUEST_S - NOMINAL_TOKEN_S * call.num_output),
            pace.seconds(job.new_prompts[name], call.num_output),
            pace.seconds(job.new_prompts[name], 0),
        )
        for name, call in job.calls.items()
    ]


def _waits_s(
    study: Study, works: dict[int, list[tuple[float, float, float]]], load: Load, draw: int
) -> list[float]:
    """Return how long the measured requests of a draw wait for their first token."""
    window = load.window(study.traffic, study.objectives, study.num_samples)
    coming = arrivals(study.traffic, load.amount, study.seed_of(draw))
    sent = sorted(
        (at_s + after_s, work_s, first_s)
        for at_s, job in takewhile(lambda one: one[0] < window.end_s, coming)
        for after_s, work_s, first_s in works[id(job)]
    )
    free_s, waits_s = 0.0, []
    for at_s, work_s, first_s in sent:
        begin_s = max(free_s, at_s)
        free_s = begin_s + work_s
        if window.holds(at_s):
            waits_s.append(begin_s + first_s - at_s)
    return waits_s or [0.0]
