"""When a run will end: at first as the plan predicts, later as the calls so far suggest."""

from __future__ import annotations


def left_s(elapsed_s: float, num_ended: int, num_left: int, planned_s: float | None) -> float | None:
    """Return the predicted seconds until a run ends; None if nothing is known.

    The share of the calls that have ended is the weight of their own rate against the plan's.

    Args:
        num_ended: calls that this run has ended in `elapsed_s`.
        planned_s: seconds that all of its calls take by the plan; None without a prediction.
    """
    if not num_left:
        return 0.0
    if not num_ended:
        return None if planned_s is None else max(0.0, planned_s - elapsed_s)
    measured_s = elapsed_s * num_left / num_ended
    if planned_s is None:
        return measured_s
    done = num_ended / (num_ended + num_left)
    return done * measured_s + (1 - done) * planned_s * (1 - done)
