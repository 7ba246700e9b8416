"""The contestants: orders of service by name, and servers with endless memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.programs.orders import CallKey, least_attained, least_left
from benchmarks.programs.without_foresight import least_expected
from benchmarks.programs.work import MixedProgram
from stretto.model.replica import Engine
from stretto.sched.orders.order import NewOrder

ARRIVAL = "arrival"
CLAIRVOYANT = "clairvoyant"
ATTAINED = "least_attained"
EXPECTED = "without_foresight"
"""The least expected work per end by the true distributions: what can be known without foresight."""
ENDLESS = "endless_memory"
BEFORE = "least_work"
"""The default order before programs had one of their own."""
OURS = "ours"
PLACED = "ours, placed by prefixes"
"""Ours where requests are placed by the prefixes that instances are believed to hold, reported or not."""
TOLD = "ours, told of caches"
"""Ours where the servers report what their caches hold."""
ENDLESS_FACTOR = 8
"""KV memory that counts as endless, in times of what a server has."""


@dataclass(frozen=True, slots=True)
class ProgramContestant:
    """One contestant.

    Attributes:
        policy: policy of all engines; None for an order of the judge's own.
        kv_factor: KV memory of the servers, in times of what they have.
        placement: placement of the LLM; None for the default one.
        reports: whether the servers report what their caches hold.
    """

    name: str
    policy: str | None
    kv_factor: int = 1
    placement: str | None = None
    reports: bool = False

    def order(
        self, work_s: Mapping[CallKey, float], programs: Sequence[MixedProgram], output_s: float
    ) -> NewOrder | None:
        """Return the order of the judge's own for one run; None if it has a policy.

        Args:
            work_s: seconds of work of each call, as long as it is.
            output_s: seconds of a generated token.
        """
        if self.policy is not None:
            return None
        if self.name == EXPECTED:
            return least_expected(work_s, programs, output_s)
        if self.name == ATTAINED:
            return least_attained()
        return least_left(work_s, {query.name: one.name for one in programs for query in one.queries})


def contestant(name: str) -> ProgramContestant:
    """Return a contestant by its name, or by the name of a policy."""
    default = Engine("llm").policy
    known = {
        ARRIVAL: ProgramContestant(ARRIVAL, "throughput"),
        ATTAINED: ProgramContestant(ATTAINED, None),
        CLAIRVOYANT: ProgramContestant(CLAIRVOYANT, None),
        EXPECTED: ProgramContestant(EXPECTED, None),
        ENDLESS: ProgramContestant(ENDLESS, default, ENDLESS_FACTOR),
        OURS: ProgramContestant(OURS, default),
        TOLD: ProgramContestant(TOLD, default, reports=True),
        PLACED: ProgramContestant(PLACED, default, placement="stretto"),
    }
    return known.get(name) or ProgramContestant(name, name)


def all_names() -> tuple[str, ...]:
    """Return the names of the contestants of a report, arrival order first."""
    return ARRIVAL, BEFORE, ATTAINED, OURS, EXPECTED, CLAIRVOYANT, ENDLESS
