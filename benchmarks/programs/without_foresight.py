"""What an order could know without foresight: the true distributions, from which programs are drawn.

The contestant has, for each call, the prompt tokens that are truly not cached when nothing else runs, and the
mean length of an answer of its kind and step; for each agent, how many calls agents make from here on. It
serves the program with the least expected work per program that ends (Gittins 1979). What it does not win of
the gain of the clairvoyant is for those who know lengths of answers and numbers of calls beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean

from benchmarks.programs import recorded
from benchmarks.programs.graphs import MOST_TOKENS
from benchmarks.programs.orders import ByProgramKey, CallKey
from benchmarks.programs.work import AGENT, ONE_CALL_KINDS, MixedProgram, written_tokens
from stretto.costs.work_left import Stops, least_per_end
from stretto.sched.orders.order import NewOrder, OrderConfig
from stretto.sched.queries.request import QueueEntry

_DRAWN = 2000


def least_expected(
    work_s: Mapping[CallKey, float], programs: Sequence[MixedProgram], output_s: float
) -> NewOrder:
    """Return an order that serves the program with the least expected work per end. It is for the queues of
    one run.

    Args:
        work_s: seconds of work of each call, as long as it is.
        output_s: seconds of a generated token.
    """
    owners = {query.name: one for one in programs for query in one.queries}
    numbers = {query.name: i for one in programs for i, query in enumerate(one.queries, 1)}
    expected_s = {key: _expected_s(key, owners[key[0]].kind, work_s[key], output_s) for key in work_s}
    later = [expected_s[query.name, "text", 0] for one in programs for query in one.queries[1:]]
    later_s = fmean(later) if later else 0.0
    left_s: dict[str, float] = {}
    for (query, _, _), seconds in expected_s.items():
        name = owners[query].name
        left_s[name] = left_s.get(name, 0.0) + seconds

    def key_of(entry: QueueEntry) -> float:
        program = owners[entry.query]
        if program.kind != AGENT:
            return left_s[program.name]
        stops = [(calls * later_s, ended) for calls, ended in _agent_stops(numbers[entry.query])]
        return least_per_end(expected_s[entry.query, entry.request.step, 0], stops)

    def started(entry: QueueEntry, lo: int, hi: int, _: OrderConfig) -> None:
        for item in range(lo, hi):
            left_s[owners[entry.query].name] -= expected_s[entry.query, entry.request.step, item]

    return lambda config: ByProgramKey(config, key_of, started)


def _expected_s(key: CallKey, kind: str, seconds: float, output_s: float) -> float:
    """Return the seconds of a call whose answer has the mean length of its kind and step."""
    query, step, item = key
    step = "text" if kind in ONE_CALL_KINDS else step
    written = min(MOST_TOKENS, written_tokens(query, kind, step, item))
    return max(0.0, seconds - output_s * written) + output_s * _mean_written(kind, step.split(".")[0])


@cache
def _mean_written(kind: str, step: str) -> float:
    return fmean(min(MOST_TOKENS, written_tokens(f"mean/{i}", kind, step, 0)) for i in range(_DRAWN))


@cache
def _agent_stops(number: int) -> Stops:
    """Return, for an agent at this call, the mean number of calls after it until each of the numbers of calls
    at which agents end, and the share that has ended by then.
    """
    lasting = [calls for calls in recorded.CALLS if calls >= number] or [number]
    return tuple(
        (fmean(min(calls, end) - number for calls in lasting), fmean(calls <= end for calls in lasting))
        for end in sorted(set(lasting))
    )
