"""The part of the fast scheduler that follows decodes: how many steps fit, who ends, who is preempted."""

from __future__ import annotations

from heapq import heappop

from stretto.planner.fast_state import (
    ENDED,
    LEFT,
    NO_STAY,
    REQUEST_BITS,
    REQUEST_MASK,
    STORED,
    TICK_BITS,
    Column,
    FastState,
    Numbers,
    acquire,
    replay_trail,
)


def preempt(state: FastState, numbers: Numbers) -> None:
    """Acquire the blocks of the next decode step, and preempt the last requests until there are enough."""
    counts, stack, stay_of = state.counts, state.stack, state.stay_of
    before = (numbers.step - 1) % numbers.block_tokens
    num_needed = counts[before]
    while num_needed:
        numbers.acquired = min(num_needed, numbers.available)
        num_needed -= numbers.acquired
        acquire(state, numbers)
        if not num_needed:
            return
        while stay_of[stack[-1]] == ENDED:
            stack.pop()
        num_others = counts[before]
        give_up(state, numbers, stack[-1])
        num_needed -= num_others - counts[before]


def give_up(state: FastState, numbers: Numbers, request: int) -> None:
    """Preempt the last running request: it waits again, and its full blocks stay in the cache."""
    size, log = numbers.block_tokens, state.log
    stack, generated = state.stack, state.generated
    while stack[-1] != request:  # those above it have ended
        stack.pop()
    stack.pop()
    replay_trail(state, numbers)
    stay = state.stay_of[request]
    num_computed = state.start[request]
    if stay == NO_STAY:
        state.begun.clear()
        numbers.outstanding = 0
    else:
        offset = log.offsets[stay]
        num_computed = offset + numbers.step - 1
        filled = num_computed // size * size - offset
        if num_computed // size > (state.prompts[request] + generated[request]) // size:
            state.used[request] = (filled + state.prefills_before[filled]) << TICK_BITS | STORED | request
        state.counts[-offset % size] -= 1
        numbers.decoding -= 1
        log.ends[stay] = len(log.repeats)
        state.stay_of[request] = NO_STAY
        state.last_steps[request] = -1
        generated[request] = num_computed + 1 - state.prompts[request]
    num_full = num_computed // size
    is_partial = num_full * size < num_computed
    state.kept[request] = num_full
    if num_full:
        state.trail.append(state.used[request])
    numbers.available += num_full + is_partial
    numbers.free += is_partial
    numbers.running -= 1
    numbers.num_preemptions += 1
    state.back.append(request)


def steps_that_fit(
    counts: Column, before: int, decoding: int, num_steps: int, available: int
) -> tuple[int, int]:
    """Return how many of the next decode steps the available blocks suffice for, at most `num_steps`, and how
    many blocks those acquire.

    Args:
        before: remainder of the requests that need a block in the first of these steps.
    """
    size = len(counts)
    rest = num_steps % size
    num_needed = num_steps // size * decoding + sum(counts[before : before + rest])
    if before + rest > size:
        num_needed += sum(counts[: before + rest - size])
    if num_needed > available:
        num_rounds = available // decoding  # in `size` steps, each request needs one block
        num_needed, num_steps = num_rounds * decoding, num_rounds * size
        while num_needed + counts[before] <= available:
            num_needed += counts[before]
            num_steps += 1
            before = (before + 1) % size
    return num_steps, num_needed


def finish(state: FastState, numbers: Numbers) -> None:
    """End the requests whose last step is done."""
    log, counts, due = state.log, state.counts, state.due
    prompts, generated, last_steps, stay_of = (
        state.prompts,
        state.generated,
        state.last_steps,
        state.stay_of,
    )
    kept, used, trail, prefills_before = state.kept, state.used, state.trail, state.prefills_before
    ends, offsets, ended = log.ends, log.offsets, log.ended
    size, step, interval = numbers.block_tokens, numbers.step, len(log.repeats)
    left = (step - 1 + prefills_before[step - 1]) << TICK_BITS | LEFT
    num_ended = num_left = 0
    limit = step << REQUEST_BITS
    while due and due[0] < limit:
        last = heappop(due)
        request = last & REQUEST_MASK
        if last_steps[request] != last >> REQUEST_BITS:  # this stay was cut
            continue
        stay = stay_of[request]
        offset = offsets[stay]
        num_computed = offset + step - 1
        num_full = num_computed // size
        if num_full > (prompts[request] + generated[request]) // size:  # a decode has filled the last one
            filled = num_full * size - offset
            used[request] = (filled + prefills_before[filled]) << TICK_BITS | STORED | request
        kept[request] = num_full
        num_left += num_full
        if num_full * size < num_computed:
            num_left += 1
            trail.append(left | request)
        elif num_full:
            trail.append(used[request])
        ends[stay] = interval
        ended.append(request)
        ended.append(interval - 1)
        counts[-offset % size] -= 1
        stay_of[request] = ENDED
        last_steps[request] = -1
        num_ended += 1
    numbers.decoding -= num_ended
    numbers.running -= num_ended
    numbers.available += num_left


PARTS = (steps_that_fit, finish, give_up, preempt)
"""The functions of this file; each calls none but those before it."""
