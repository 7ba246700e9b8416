"""Recorded traffic as a pool of jobs, from which loads are drawn.

A job is all requests that wait for each other. It may be drawn many times, each time under a number of its
own: what its prompts share with each other stays shared, what only this job has differs from number to
number, and blocks with which prompts of several jobs begin stay common to all.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice, pairwise, takewhile
from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.sim.agent_load import UNKNOWN_OUTPUT_TOKENS
from stretto.trace.agents.known_prompts import known_prompts
from stretto.trace.agents.requests import AgentRequest, AgentTrace, BlockRuns, SizedPrompt

NOMINAL_REQUEST_S = 0.2
NOMINAL_TOKEN_S = 0.02
"""Assumed seconds of a request and of each token of its answer, where a job is entered in its middle."""
SERVER_BLOCK_TOKENS, _MOST_BLOCK_TOKENS = 16, 128
_BLOCKS = 64
"""Number of blocks of a mean prompt up to which the simulation is fast."""
_MOST_DISTANCE = 1 << 20
_PLACEHOLDER = SizedPrompt(1)


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a job: its prompt in blocks, and the length of its answer.

    Attributes:
        common: leading blocks that other jobs have too.
        runs: all further blocks, numbered within the job, as (first, number) pairs of consecutive ones.
    """

    common: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    block_tokens: int
    num_prompt: int
    num_output: int

    def text(self, number: int) -> str:
        """Return the prompt's text, of four characters for each token, in the job with this number."""
        size = self.block_tokens
        parts = [_common_text(block, size) for block in self.common]
        parts.append(f"{number:016x}")
        own = _own_texts(size)
        parts += [own.text(first, count) for first, count in self.runs]
        return "".join(parts)[: 4 * self.num_prompt - 1]


@dataclass(frozen=True)
class RecordedJob:
    """A job: its requests with what they wait for, in seconds after its beginning, and their prompts.

    Attributes:
        trace: the requests, whose own prompts stand for nothing.
        ends_s: nominal end of each request; see `NOMINAL_REQUEST_S`.
        pauses_s: seconds that pass even if every request is answered at once.
    """

    trace: AgentTrace
    calls: Mapping[str, Call]
    ends_s: Mapping[str, float] = field(default_factory=dict)
    pauses_s: float = 0.0

    @cached_property
    def duration_s(self) -> float:
        """Nominal seconds from its beginning to its end."""
        return max(self.ends_s.values())

    @property
    def most_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max(call.num_prompt for call in self.calls.values())

    @cached_property
    def new_prompts(self) -> Mapping[str, int]:
        """Tokens of each prompt that no prompt before it has, by request; about, as blocks are taken to be
        numbered in the order in which they come.
        """
        num_seen, found = 0, {}
        for name, call in self.calls.items():
            ends = [first + count for first, count in call.runs]
            num_old = sum(max(0, min(first + count, num_seen) - first) for first, count in call.runs)
            num_seen = max(num_seen, *ends, 0)
            found[name] = max(1, call.num_prompt - call.block_tokens * (len(call.common) + num_old))
        return found

    @property
    def most_output(self) -> int:
        """Tokens of the longest answer."""
        return max(call.num_output for call in self.calls.values())


@dataclass(frozen=True)
class Traffic:
    """A pool of recorded jobs.

    Attributes:
        source: the file it comes from.
        gaps: times between the arrivals of jobs, divided by their mean, as recorded; empty if unknown.
        per_s: jobs that began in a second of the record; None if unknown.
        num_left_out: jobs that are left out, because they do not fit a model.
    """

    source: Path
    jobs: tuple[RecordedJob, ...]
    gaps: tuple[float, ...] = ()
    per_s: float | None = None
    num_left_out: int = 0

    @cached_property
    def requests_per_job(self) -> float:
        """Mean number of requests."""
        return sum(len(job.calls) for job in self.jobs) / len(self.jobs)

    @cached_property
    def mean_s(self) -> float:
        """Mean nominal seconds of a job."""
        return sum(job.duration_s for job in self.jobs) / len(self.jobs)

    @cached_property
    def most_output(self) -> int:
        """Tokens of the longest answer, which every request may have, as clients leave room."""
        return max(job.most_output for job in self.jobs)

    @cached_property
    def mean_prompt(self) -> float:
        """Mean number of tokens of a prompt."""
        return statistics.fmean(call.num_prompt for job in self.jobs for call in job.calls.values())

    @cached_property
    def mean_new_prompt(self) -> float:
        """Mean number of tokens of a prompt that no other request has had before in a prompt."""
        return statistics.fmean(new for job in self.jobs for new in job.new_prompts.values())

    @cached_property
    def mean_output(self) -> float:
        """Mean number of tokens of an answer."""
        return statistics.fmean(call.num_output for job in self.jobs for call in job.calls.values())

    @cached_property
    def block_tokens(self) -> int:
        """Length of simulated KV blocks: 16 tokens, as servers have them, and more for long prompts.

        Long blocks are simulated faster. Prefixes are found to the token in them, so that they are as long as
        on servers, but for less than a server's block.
        """
        wanted = self.mean_prompt / _BLOCKS
        return min(_MOST_BLOCK_TOKENS, max(SERVER_BLOCK_TOKENS, 1 << round(math.log2(max(1.0, wanted)))))

    @property
    def is_of_sessions(self) -> bool:
        """Whether jobs have several requests, so that a number of sessions at once describes a load."""
        return self.requests_per_job >= 2

    def fitting(self, most_tokens: int) -> Traffic:
        """Return the traffic without jobs whose prompts, with the longest answer, have more tokens.

        Raises:
            ConfigError: no job fits.
        """
        jobs = tuple(job for job in self.jobs if job.most_prompt + self.most_output <= most_tokens)
        if not jobs:
            least = min(job.most_prompt for job in self.jobs)
            raise ConfigError(
                f"{self.source}: no job fits the model's {most_tokens} tokens; the smallest has a request of "
                f"{least}. Take a model with a longer context, or --scale"
            )
        return replace(self, jobs=jobs, num_left_out=self.num_left_out + len(self.jobs) - len(jobs))


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


class _OwnTexts:
    """The texts of the blocks of one length that a job has alone, one after the other."""

    def __init__(self, block_tokens: int) -> None:
        self._length = 4 * block_tokens
        self._text = ""
        self._num = 0

    def text(self, first: int, count: int) -> str:
        """Return the text of so many blocks, from the one with the number `first` on."""
        length = self._length
        if (end := first + count) > self._num:
            end = max(end, 2 * self._num)
            blocks = [f"{block:08x}".ljust(length, "x")[-length:] for block in range(self._num, end)]
            self._text, self._num = self._text + "".join(blocks), end
        return self._text[first * length : (first + count) * length]


@lru_cache(maxsize=64)
def _own_texts(block_tokens: int) -> _OwnTexts:
    return _OwnTexts(block_tokens)


@lru_cache(maxsize=4096)
def _common_text(block: int, block_tokens: int) -> str:
    return f"c{block:015x}".ljust(4 * block_tokens, "x")[: 4 * block_tokens]
