"""The jobs that arrive at a rate. Equal seeds draw equal jobs at all rates, so that loads can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from stretto.sizing.traffic import RecordedJob, Traffic


def seeded(seed: int, name: str) -> Random:
    """Return the source of one kind of choices of a draw."""
    return Random(f"size/{seed}/{name}")


def arrivals(traffic: Traffic, per_s: float, seed: int) -> Iterator[tuple[float, RecordedJob]]:
    """Yield jobs with the times at which they arrive, without end: at the recorded gaps from a place in the
    record on, or at random where there are none.
    """
    gaps, draw, drawn_jobs = traffic.gaps, seeded(seed, "gaps"), seeded(seed, "jobs")
    place, at_s = draw.randrange(len(gaps)) if gaps else 0, 0.0
    while True:
        at_s += (gaps[place % len(gaps)] if gaps else draw.expovariate(1.0)) / per_s
        place += 1
        yield at_s, drawn_jobs.choice(traffic.jobs)
