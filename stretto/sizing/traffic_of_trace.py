"""Recorded traffic made of a trace: jobs with their calls, and what prompts share within and between jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise, takewhile
from pathlib import Path

from stretto.sim.agent_load import UNKNOWN_OUTPUT_TOKENS
from stretto.sizing.traffic import Call, RecordedJob, Traffic
from stretto.trace.agents.known_prompts import known_prompts
from stretto.trace.agents.requests import AgentRequest, AgentTrace, BlockRuns, SizedPrompt

NOMINAL_REQUEST_S = 0.2


NOMINAL_TOKEN_S = 0.02
"""Assumed seconds of a request and of each token of its answer, where a job is entered in its middle."""


_MOST_DISTANCE = 1 << 20


_PLACEHOLDER = SizedPrompt(1)


def traffic_of(trace: AgentTrace, scale: float = 1.0, most_pause_s: float = float("inf")) -> Traffic:
    """Return the traffic of a trace.

    Args:
        scale: number by which tokens and seconds are divided.
        most_pause_s: longest pause between a request and what it waits for, after scaling.
    """
    by_job: dict[str, list[AgentRequest]] = defaultdict(list)
    for request in trace.requests:
        by_job[trace.jobs[request.id]].append(request)
    blocks = _blocks(trace)
    common = _common_blocks(by_job, blocks)
    jobs = tuple(
        _recorded(trace.path, requests, blocks, common.get(name, {}), scale, most_pause_s)
        for name, requests in by_job.items()
    )
    roots = [[one.arrival_s for one in requests if not one.after] for requests in by_job.values()]
    starts_s = sorted(min(arrivals) / scale for arrivals in roots)
    span_s = starts_s[-1] - starts_s[0]
    if not span_s:
        return Traffic(trace.path, jobs)
    mean_s = span_s / (len(starts_s) - 1)
    gaps = tuple((after - before) / mean_s for before, after in pairwise(starts_s))
    return Traffic(trace.path, jobs, gaps, 1 / mean_s)


def _blocks(trace: AgentTrace) -> Mapping[str, tuple[Sequence[Hashable], int, int]]:
    """Return the blocks of each request's prompt, the length of a block and that of the prompt."""
    known = zip(trace.requests, known_prompts(trace), strict=True)
    return {request.id: (one.blocks, one.block_tokens, one.num_tokens) for request, one in known}


def _common_blocks(
    by_job: Mapping[str, Iterable[AgentRequest]],
    blocks: Mapping[str, tuple[Sequence[Hashable], int, int]],
) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Return the leading blocks of each prompt that a prompt of another job has too, as numbers that are
    equal for equal beginnings, by job and request.
    """
    firsts: dict[Hashable, set[str]] = defaultdict(set)
    for job, requests in by_job.items():
        for request in requests:
            for first in islice(blocks[request.id][0], 1):
                firsts[first].add(job)
    meeting = {job for jobs in firsts.values() if len(jobs) > 1 for job in jobs}
    owners: dict[tuple[int, Hashable], tuple[int, str | None]] = {}
    paths: dict[str, dict[str, list[tuple[int, Hashable]]]] = {}
    for job in by_job:
        if job not in meeting:
            continue
        for request in by_job[job]:
            parent, path = 0, []
            for block in blocks[request.id][0]:
                number, owner = owners.setdefault((parent, block), (len(owners) + 1, job))
                if owner != job:
                    owners[parent, block] = number, None
                path.append((parent, block))
                parent = number
            paths.setdefault(job, {})[request.id] = path
    return {
        job: {
            name: tuple(owners[node][0] for node in takewhile(lambda node: owners[node][1] is None, path))
            for name, path in of_job.items()
        }
        for job, of_job in paths.items()
    }


def _recorded(
    path: Path,
    requests: Sequence[AgentRequest],
    blocks: Mapping[str, tuple[Sequence[Hashable], int, int]],
    common: Mapping[str, tuple[int, ...]],
    scale: float,
    most_pause_s: float,
) -> RecordedJob:
    start_s = min(one.arrival_s for one in requests if not one.after)
    numbers: dict[Hashable, int] = {}
    least = _least_id(requests, blocks, common)
    own, calls = [], {}
    for one in requests:
        after = tuple(replace(a, delay_s=min(a.delay_s / scale, most_pause_s)) for a in one.after)
        arrival_s = max(0.0, one.arrival_s - start_s) / scale
        own.append(replace(one, arrival_s=arrival_s, after=after, prompt=_PLACEHOLDER))
        found, size, num_prompt = blocks[one.id]
        num_output = UNKNOWN_OUTPUT_TOKENS if one.output_tokens is None else one.output_tokens / scale
        calls[one.id] = Call(
            common.get(one.id, ()),
            _runs(found, len(common.get(one.id, ())), numbers, least),
            max(1, round(size / scale)),
            max(1, round(num_prompt / scale)),
            max(1, round(num_output)),
        )
    own_trace = AgentTrace(path, tuple(own), {one.id: own[0].id for one in own})
    ends_s = nominal_ends_s(own_trace, calls)
    pauses_s = max(nominal_ends_s(own_trace, calls, 0.0, 0.0).values())
    return RecordedJob(own_trace, calls, ends_s, pauses_s)


def _least_id(
    requests: Iterable[AgentRequest],
    blocks: Mapping[str, tuple[Sequence[Hashable], int, int]],
    common: Mapping[str, Sequence[int]],
) -> int | None:
    """Return the smallest id of a job's blocks if their distance from it may be their number, else None."""
    runs: list[tuple[int, int]] = []
    for one in requests:
        found = blocks[one.id][0]
        if not isinstance(found, BlockRuns) or common.get(one.id):
            return None
        runs += found.runs
    least = min((first for first, _ in runs), default=0)
    most = max((first + count for first, count in runs), default=0)
    return least if most - least <= _MOST_DISTANCE else None


def _runs(
    blocks: Sequence[Hashable], num_common: int, numbers: dict[Hashable, int], least: int | None
) -> tuple[tuple[int, int], ...]:
    """Return blocks as runs of their numbers within the job, which `numbers` keeps, unless they are the
    distances of ids from `least`.
    """
    if isinstance(blocks, BlockRuns) and least is not None:
        return tuple((first - least, count) for first, count in blocks.runs)
    runs: list[tuple[int, int]] = []
    for block in blocks[num_common:]:
        number = numbers.setdefault(block, len(numbers))
        if runs and sum(runs[-1]) == number:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((number, 1))
    return tuple(runs)


def nominal_ends_s(
    trace: AgentTrace,
    calls: Mapping[str, Call],
    request_s: float = NOMINAL_REQUEST_S,
    token_s: float = NOMINAL_TOKEN_S,
) -> Mapping[str, float]:
    """Return when each request of a job ends if it takes `request_s`, and `token_s` for a token of its
    answer.
    """
    starts_s: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    waiting = list(reversed(trace.requests))
    by_id = {one.id: one for one in trace.requests}
    while waiting:
        one = waiting[-1]
        if missing := [by_id[a.request] for a in one.after if a.request not in ends_s]:
            waiting += missing
            continue
        waiting.pop()
        times = {"start": starts_s, "end": ends_s}
        start_s = max([one.arrival_s, *(times[a.event][a.request] + a.delay_s for a in one.after)])
        starts_s[one.id] = start_s
        ends_s[one.id] = start_s + request_s + token_s * calls[one.id].num_output
    return ends_s
