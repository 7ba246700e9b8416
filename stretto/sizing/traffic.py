"""Recorded traffic as a pool of jobs, from which loads are drawn.

A job is all requests that wait for each other. It may be drawn many times, each time under a number of its
own: what its prompts share with each other stays shared, what only this job has differs from number to
number, and blocks with which prompts of several jobs begin stay common to all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.trace.agents.requests import AgentTrace

SERVER_BLOCK_TOKENS, _MOST_BLOCK_TOKENS = 16, 128
_BLOCKS = 64
"""Number of blocks of a mean prompt up to which the simulation is fast."""


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

        Long blocks are simulated faster. Prefixes are found to the token in them.
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
