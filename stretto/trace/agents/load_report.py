"""What a replay measured: the times of each request, and their summary."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from stretto.trace.agents.requests import AgentTrace
from stretto.trace.summary import quantile


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times of one request of a replay, in seconds since the replay began, and its tokens.

    Attributes:
        due_s: when it should have been sent.
        start_s: when it was sent.
        first_s: when the first piece of the answer came; None if none did.
        num_cached: number of prompt tokens that the server found in its prefix cache.
        error: what went wrong; None for a request that was answered.
    """

    request: str
    due_s: float
    start_s: float
    first_s: float | None
    end_s: float
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a time in seconds: its mean, some percentiles and its maximum."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """A summary of a replay. Spreads are None where nothing was measured.

    Attributes:
        answered, failed: numbers of requests that ended so.
        not_ended: number of requests that were not sent, because one that they wait for failed or the replay
            was interrupted, or had no answer then.
        jobs_done: number of jobs of which every request was answered.
        duration_s: seconds from the first request to the last end.
        first_token: time from sending a request to the first piece of its answer.
        per_token: time from the first piece to the end, for each token after the first.
        end_to_end: time from sending a request to the end of its answer.
        job: time from when the first request of a job was due to the end of the job.
        lateness: time from when a request was due to when it was sent.
        errors: number of requests by error.
    """

    requests: int
    answered: int
    failed: int
    not_ended: int
    jobs: int
    jobs_done: int
    duration_s: float
    jobs_per_hour: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token: Spread | None
    per_token: Spread | None
    end_to_end: Spread | None
    job: Spread | None
    lateness: Spread | None
    errors: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON."""
        return asdict(self)


def summarise_load(trace: AgentTrace, times: Sequence[RequestTimes]) -> LoadSummary:
    """Return the summary of a replay of `trace`, given the times of the requests that have ended."""
    answered = [one for one in times if one.error is None]
    jobs: dict[str, list[RequestTimes]] = defaultdict(list)
    for one in answered:
        jobs[trace.jobs[one.request]].append(one)
    sizes = Counter(trace.jobs.values())
    done = [ended for job, ended in jobs.items() if len(ended) == sizes[job]]
    duration_s = max((t.end_s for t in times), default=0.0) - min((t.start_s for t in times), default=0.0)
    return LoadSummary(
        requests=len(trace.requests),
        answered=len(answered),
        failed=len(times) - len(answered),
        not_ended=len(trace.requests) - len(times),
        jobs=len(sizes),
        jobs_done=len(done),
        duration_s=duration_s,
        jobs_per_hour=3600 * len(done) / duration_s if duration_s > 0 else 0.0,
        prompt_tokens=sum(t.num_prompt for t in answered),
        cached_tokens=sum(t.num_cached for t in answered),
        output_tokens=sum(t.num_output for t in answered),
        first_token=_spread([t.first_s - t.start_s for t in answered if t.first_s is not None]),
        per_token=_spread(
            [
                (t.end_s - t.first_s) / (t.num_output - 1)
                for t in answered
                if t.first_s is not None and t.num_output > 1
            ]
        ),
        end_to_end=_spread([t.end_s - t.start_s for t in answered]),
        job=_spread([max(t.end_s for t in ended) - min(t.due_s for t in ended) for ended in done]),
        lateness=_spread([t.start_s - t.due_s for t in times]),
        errors=dict(Counter(t.error for t in times if t.error is not None).most_common()),
    )


def _spread(seconds: Sequence[float]) -> Spread | None:
    if not seconds:
        return None
    p50, p90, p99 = (quantile(seconds, share) for share in (0.5, 0.9, 0.99))
    return Spread(statistics.fmean(seconds), p50, p90, p99, max(seconds))
