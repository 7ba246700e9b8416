"""The steps of one LLM instance with policy `prefill_first`: whole prompts while there are any, then decodes.

The rules are those of `FastScheduler`, but the state is numbers, lists, and tuples of lists in a generator,
which is several times as fast, and which `compiled.py` can compile. Each function below it is one part of a
step: it changes the lists that it is given, and returns the numbers that have changed. These names mean the
same in all of them:

- request: number of a request in the order in which they come.
- size: tokens of a KV block.
- available: KV blocks that running requests do not use.
- outstanding: blocks that running requests still need for their prompts and their next tokens.
- room: available blocks without the outstanding ones.
- counts: decoding requests by the step, modulo the size of a block, in which they fill one.
- num_acquired: blocks acquired in this step that are not yet taken off the available ones.

Nobody asks for idle blocks until a request is preempted, so most runs never look at them. Until then, a
*trail* keeps what has happened to them: the stamp of each run of blocks that was left, and -n where n blocks
were acquired. `free` is the number of blocks without content, as it was before the trail.

The order in which cached blocks are evicted is that of *ticks*: each step has one, with prefills or decodes.
A stamp is a tick, a phase and a request in one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from sys import maxsize
from typing import TypeAlias

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.planner.idle_blocks import ENDED, HELD, PHASE_BITS, REQUEST_BITS, REQUEST_MASK, STORED, evict
from stretto.planner.step_log import Column, Log

_HELD, _STORED, _ENDED = HELD << REQUEST_BITS, STORED << REQUEST_BITS, ENDED << REQUEST_BITS
_TICK = REQUEST_BITS + PHASE_BITS

Simulated: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, int]
Requests: TypeAlias = tuple[Column, Column, Column, Column, Column, Column]
"""Columns by request: tokens of its prompt and of its answer, tokens generated when it was last preempted,
tokens that its prefill finds in the cache, its stay while it decodes (else -1), last step of that stay."""

Queues: TypeAlias = tuple[Column, Column, Column, Column, Column]
"""Preempted requests, the first on top; running ones, also some that have ended; admitted ones whose prefill
waits for the next step; those whose prefill is in this step; and a heap of (last step, request) of stays,
also of some that were cut."""

Cache: TypeAlias = tuple[Column, Column, Column, Column]
"""Columns by request: full blocks that are left, and the stamp of their last use. Then the heap of stamps of
idle runs, and the trail."""


def simulate(
    prompts: list[int],
    outputs: list[int],
    previous: list[int],
    num_blocks: int,
    size: int,
    max_running: int,
    max_batch_tokens: int,
    lookahead: int,
) -> Simulated:
    """Simulate until all calls have ended.

    A call is there from the beginning, or from the end of the call `previous` on, if that is not -1. Calls
    that come at once are ordered by their numbers.

    Returns the fields of `StepColumns`, where requests are numbered in the order in which they come; the
    call of each request; and the number of preemptions.
    """
    no = _nothing()
    come_prompts, come_outputs, coming, ended = no.copy(), no.copy(), no.copy(), no.copy()
    first, repeats, num_decodes, prefills, singles = no.copy(), no.copy(), no.copy(), no.copy(), no.copy()
    stays, begins, ends, offsets = no.copy(), no.copy(), no.copy(), no.copy()
    log = (first, repeats, num_decodes, prefills, singles, stays, begins, ends, offsets, ended)
    follower, sibling = followers(previous)
    order = [call for call in range(len(prompts)) if previous[call] < 0]
    for call in order:
        come_prompts.append(prompts[call])
        come_outputs.append(outputs[call])
    has_followers = len(order) < len(prompts)
    num_preemptions = num_seen = 0
    for preempted, _ in steps(
        come_prompts,
        come_outputs,
        [maxsize],
        log,
        num_blocks,
        size,
        max_running,
        max_batch_tokens,
        lookahead,
        has_followers,
    ):
        num_preemptions = preempted
        if has_followers and num_seen < len(ended):
            coming.clear()
            while num_seen < len(ended):
                call = follower[order[ended[num_seen]]]
                while call >= 0:
                    coming.append(call)
                    call = sibling[call]
                num_seen += 2
            coming.sort()
            for call in coming:
                order.append(call)
                come_prompts.append(prompts[call])
                come_outputs.append(outputs[call])
    return (
        np.array(first, np.int64),
        np.array(repeats, np.int64),
        np.array(num_decodes, np.int64),
        np.array(prefills, np.int64).reshape(-1, 5),
        np.array(singles, np.int64).reshape(-1, 2),
        np.array(stays, np.int64),
        np.array(begins, np.int64),
        np.array(ends, np.int64),
        np.array(offsets, np.int64),
        np.array(ended, np.int64).reshape(-1, 2),
        np.array(order, np.int64),
        num_preemptions,
    )


def followers(previous: list[int]) -> tuple[list[int], list[int]]:
    """Return the first call that follows each call, and the next one that follows the same; -1 for none."""
    follower, sibling = [-1] * len(previous), [-1] * len(previous)
    for call in range(len(previous) - 1, -1, -1):
        if previous[call] >= 0:
            sibling[call] = follower[previous[call]]
            follower[previous[call]] = call
    return follower, sibling


def _nothing() -> list[int]:
    """Return an empty list, of which numba knows what it holds."""
    nothing = [0]
    nothing.clear()
    return nothing


def steps(
    prompts: list[int],
    outputs: list[int],
    most_steps: list[int],
    log: Log,
    num_blocks: int,
    size: int,
    max_running: int,
    max_batch_tokens: int,
    lookahead: int,
    pauses: bool,
) -> Iterator[tuple[int, int]]:
    """Simulate one interval after the other: a step with prefills, or decode steps between which nothing is
    decided. Yields the number of preemptions so far, and how many requests wait.

    Args:
        most_steps: one number, the most decode steps of the next interval.
        log: columns to which each interval adds.
        pauses: whether to yield after each interval, when requests may be added to the ends of `prompts` and
            `outputs`; else once at the end. To yield takes numba longer than half an interval.
    """
    no = _nothing()
    generated, start, stay_of, last_steps = no.copy(), no.copy(), no.copy(), no.copy()
    back, stack, begun, slices, due = no.copy(), no.copy(), no.copy(), no.copy(), no.copy()
    kept, used, idle, trail = no.copy(), no.copy(), no.copy(), no.copy()
    requests = prompts, outputs, generated, start, stay_of, last_steps
    queues = back, stack, begun, slices, due
    cache = kept, used, idle, trail
    first_steps, repeats, num_decodes = log[0], log[1], log[2]
    prefills_before = no.copy()  # steps with prefills before each decode step
    counts = [0] * size
    available = free = num_blocks
    step = upcoming = running = decoding = num_prefill_steps = num_preemptions = 0
    outstanding_begun = 0  # blocks that prefills which wait for the next step need
    num = 0  # requests so far
    while running or back or upcoming < len(prompts):
        if num < len(prompts):
            num = make_room(requests, cache)
        now, before = step % size, (step - 1) % size
        room = available - counts[now] - counts[before] - outstanding_begun
        is_prefill = len(begun) > 0
        if not is_prefill and running < max_running and (back or upcoming < num):
            request = back[-1] if back else upcoming
            is_prefill = running == 0 or (prompts[request] + generated[request]) // size < room
        if is_prefill:
            tick = (step + num_prefill_steps) << _TICK
            budget, num_acquired = max_batch_tokens, 0
            slices.clear()
            if begun:
                budget, num_acquired, outstanding_begun = go_on(
                    requests, begun, slices, size, budget, outstanding_begun
                )
            most = max_running - running
            if most > lookahead:
                most = lookahead
            if back:
                num_back = len(back)
                budget, num_acquired, outstanding, room, available, free = resume(
                    requests,
                    queues,
                    cache,
                    size,
                    tick,
                    budget,
                    most,
                    running,
                    num_acquired,
                    room,
                    available,
                    free,
                )
                outstanding_begun += outstanding
                most -= num_back - len(back)
                running += num_back - len(back)
            if upcoming < num and not back:
                first = upcoming
                upcoming, num_more, outstanding = admit(
                    prompts, stack, begun, slices, upcoming, size, budget, most, running, room
                )
                num_acquired += num_more
                outstanding_begun += outstanding
                running += upcoming - first
            available -= num_acquired
            trail.append(-num_acquired)
            num_stays, num_ended, num_left = prefill(
                requests, slices, due, cache, log, counts, size, tick, step
            )
            decoding += num_stays
            running -= num_ended
            available += num_left
            first_steps.append(step)
            repeats.append(1)
            num_decodes.append(0)
            num_prefill_steps += 1
        else:
            num_steps, num_needed = 1, counts[before]
            if num_needed > available:
                num_back = len(back)
                available, free = preempt(
                    requests, back, stack, cache, log, counts, prefills_before, size, step, available, free
                )
                num_back = len(back) - num_back
                num_preemptions += num_back
                decoding -= num_back
                running -= num_back
            else:
                last = due[0]
                while last_steps[last & REQUEST_MASK] != last >> REQUEST_BITS:  # this stay was cut
                    heappop(due)
                    last = due[0]
                num_steps = (last >> REQUEST_BITS) - step + 1
                if num_steps > most_steps[0]:
                    num_steps = most_steps[0]
                if num_steps > 1:
                    num_steps, num_needed = steps_that_fit(counts, before, decoding, num_steps, available)
                available -= num_needed
                trail.append(-num_needed)
            first_steps.append(step)
            repeats.append(num_steps)
            num_decodes.append(decoding)
            prefills_before.extend([num_prefill_steps] * num_steps)
            step += num_steps
            if due and due[0] >> REQUEST_BITS < step:
                tick = (step - 1 + num_prefill_steps) << _TICK
                num_ended, num_left = finish(
                    requests, due, cache, log, counts, prefills_before, size, tick, step
                )
                decoding -= num_ended
                running -= num_ended
                available += num_left
        if pauses:
            yield num_preemptions, len(back) + num - upcoming
    yield num_preemptions, 0


def make_room(requests: Requests, cache: Cache) -> int:
    """Make room for requests that were added to the prompts. Returns how many there are."""
    prompts, _, generated, start, stay_of, last_steps = requests
    kept, used, _, _ = cache
    num = len(prompts)
    num_new = num - len(start)
    nothing, none = [0] * num_new, [-1] * num_new
    generated.extend(nothing)
    start.extend(nothing)
    stay_of.extend(none)
    last_steps.extend(none)
    kept.extend(nothing)
    used.extend(nothing)
    return num


def go_on(
    requests: Requests, begun: list[int], slices: list[int], size: int, budget: int, outstanding: int
) -> tuple[int, int, int]:
    """Let the admitted requests whose prefill has waited into this step, as far as the budget goes.

    Returns the budget that is left, the blocks that their prefills acquire, and the outstanding blocks of
    prefills that wait again.
    """
    prompts, _, generated, start, _, _ = requests
    num_acquired = 0
    waiting = begun.copy()
    begun.clear()
    for request in waiting:
        length = prompts[request] + generated[request]
        num_missing = length - start[request]
        if num_missing <= budget or not slices:
            num_held = start[request] // size
            slices.append(request)
            budget -= num_missing
            num_acquired += -(-length // size) - num_held
            outstanding -= length // size + 1 - num_held
        else:
            begun.append(request)
    return budget, num_acquired, outstanding


def resume(
    requests: Requests,
    queues: Queues,
    cache: Cache,
    size: int,
    tick: int,
    budget: int,
    most: int,
    running: int,
    num_acquired: int,
    room: int,
    available: int,
    free: int,
) -> tuple[int, int, int, int, int, int]:
    """Admit preempted requests while they fit, at most so many: each finds what the cache still has of it.

    Returns the budget, the blocks that are acquired, the outstanding ones of prefills that wait for the next
    step, and the blocks that there is room for, that are available and free.
    """
    prompts, _, generated, start, _, _ = requests
    back, stack, begun, slices, _ = queues
    kept, used, _, trail = cache
    outstanding = 0
    while back and most and budget > 0:
        request = back[-1]
        length = prompts[request] + generated[request]
        room -= length // size + 1
        if room < 0 and running:
            break
        most -= 1
        running += 1
        back.pop()
        stack.append(request)
        trail.append(-num_acquired)  # first: this may evict blocks of this request
        available -= num_acquired
        num_acquired = 0
        free = replay(cache, free)
        num_held = kept[request]
        available -= num_held
        kept[request] = 0
        used[request] = tick | _HELD | request
        start[request] = num_held * size
        num_missing = length - num_held * size
        if num_missing <= budget or not slices:
            slices.append(request)
            budget -= num_missing
            num_acquired = -(-length // size) - num_held
        else:
            begun.append(request)
            outstanding += length // size + 1 - num_held
    return budget, num_acquired, outstanding, room, available, free


def admit(
    prompts: list[int],
    stack: list[int],
    begun: list[int],
    slices: list[int],
    upcoming: int,
    size: int,
    budget: int,
    most: int,
    running: int,
    room: int,
) -> tuple[int, int, int]:
    """Admit requests that were never started while they fit, from `upcoming` on, at most so many.

    Returns the next one, the blocks that prefills of this step acquire, and the outstanding ones of those
    that wait for the next step.
    """
    num, num_acquired, outstanding = min(len(prompts), upcoming + most), 0, 0
    while upcoming < num and budget > 0:
        length = prompts[upcoming]
        num_needed = length // size + 1
        room -= num_needed
        if room < 0 and running:
            break
        running += 1
        stack.append(upcoming)
        if length <= budget or not slices:
            slices.append(upcoming)
            budget -= length
            num_acquired += -(-length // size)
        else:
            begun.append(upcoming)
            outstanding += num_needed
        upcoming += 1
    return upcoming, num_acquired, outstanding


def prefill(
    requests: Requests,
    slices: list[int],
    due: list[int],
    cache: Cache,
    log: Log,
    counts: list[int],
    size: int,
    tick: int,
    step: int,
) -> tuple[int, int, int]:
    """Log the prefills of a step, and let their requests decode from the decode step `step` on.

    Returns how many do, how many have ended, as the prefill has chosen their only token, and how many blocks
    those leave.
    """
    prompts, outputs, generated, start, stay_of, last_steps = requests
    kept, used, _, trail = cache
    _, repeats, _, prefills, singles, stays, begins, ends, offsets, ended = log
    interval, stored = len(repeats), tick | _STORED
    first_stay = stay = len(stays)
    num_prompts = num_tokens = longest = num_pairs = num_left = 0
    for request in slices:
        begin = start[request]
        length = prompts[request] + generated[request]
        num_missing = length - begin
        if num_missing == 1 and begin >= prompts[request]:
            singles.append(interval)
            singles.append(length)
        else:
            num_prompts += 1
            num_tokens += num_missing
            if num_missing > longest:
                longest = num_missing
            num_pairs += num_missing * (begin + length + 1) // 2
        num_full = length // size
        if num_full > begin // size:
            used[request] = stored | request
        num_more = outputs[request] - generated[request] - 1
        if num_more:
            offset = length + 1 - step
            stay_of[request] = stay
            stay += 1
            last = last_steps[request] = step + num_more - 1
            heappush(due, last << REQUEST_BITS | request)
            stays.append(request)
            begins.append(interval + 1)
            ends.append(-1)
            offsets.append(offset)
            counts[-offset % size] += 1
        else:
            kept[request] = num_full
            if num_full * size < length:
                trail.append(tick | _ENDED | request)
                num_left += num_full + 1
            elif num_full:
                trail.append(used[request])
                num_left += num_full
            ended.append(request)
            ended.append(interval)
    if num_prompts:
        prefills.append(interval)
        prefills.append(num_prompts)
        prefills.append(num_tokens)
        prefills.append(longest)
        prefills.append(num_pairs)
    num_stays = stay - first_stay
    return num_stays, len(slices) - num_stays, num_left


def preempt(
    requests: Requests,
    back: list[int],
    stack: list[int],
    cache: Cache,
    log: Log,
    counts: list[int],
    prefills_before: list[int],
    size: int,
    step: int,
    available: int,
    free: int,
) -> tuple[int, int]:
    """Acquire the blocks of the next decode step, and preempt the last requests until there are enough.

    Returns the blocks that are available and free.
    """
    prompts, _, generated, _, stay_of, last_steps = requests
    kept, used, _, trail = cache
    repeats, ends, offsets = log[1], log[7], log[8]
    before = (step - 1) % size
    num_needed = counts[before]
    while num_needed:
        num_taken = min(num_needed, available)
        trail.append(-num_taken)
        num_needed -= num_taken
        available -= num_taken
        if not num_needed:
            break
        while stay_of[stack[-1]] < 0:  # it has ended
            stack.pop()
        request = stack.pop()
        stay = stay_of[request]
        offset = offsets[stay]
        num_computed = offset + step - 1
        num_full = num_computed // size
        free = replay(cache, free)
        if num_full > (prompts[request] + generated[request]) // size:
            filled = num_full * size - offset
            used[request] = (filled + prefills_before[filled]) << _TICK | _STORED | request
        kept[request] = num_full
        if num_full:
            trail.append(used[request])
        available += num_full
        if num_full * size < num_computed:
            available += 1
            free += 1
        counts[-offset % size] -= 1
        if -offset % size == before:
            num_needed -= 1
        ends[stay] = len(repeats)
        stay_of[request] = last_steps[request] = -1
        generated[request] = num_computed + 1 - prompts[request]
        back.append(request)
    return available, free


def steps_that_fit(
    counts: list[int], before: int, decoding: int, num_steps: int, available: int
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


def finish(
    requests: Requests,
    due: list[int],
    cache: Cache,
    log: Log,
    counts: list[int],
    prefills_before: list[int],
    size: int,
    tick: int,
    step: int,
) -> tuple[int, int]:
    """End the requests whose last step was before `step`. Returns their number, and that of their blocks."""
    prompts, _, generated, _, stay_of, last_steps = requests
    kept, used, _, trail = cache
    repeats, ends, offsets, ended = log[1], log[7], log[8], log[9]
    interval, num_ended, num_left = len(repeats), 0, 0
    while due and due[0] >> REQUEST_BITS < step:
        last = heappop(due)
        request = last & REQUEST_MASK
        if last_steps[request] != last >> REQUEST_BITS:  # this stay was cut
            continue
        stay = stay_of[request]
        offset = offsets[stay]
        num_computed = offset + step - 1
        num_full = num_computed // size
        if num_full > (prompts[request] + generated[request]) // size:
            filled = num_full * size - offset
            used[request] = (filled + prefills_before[filled]) << _TICK | _STORED | request
        kept[request] = num_full
        num_left += num_full
        if num_full * size < num_computed:
            num_left += 1
            trail.append(tick | _ENDED | request)
        elif num_full:
            trail.append(used[request])
        ends[stay] = interval
        ended.append(request)
        ended.append(interval - 1)
        counts[-offset % size] -= 1
        stay_of[request] = last_steps[request] = -1
        num_ended += 1
    return num_ended, num_left


def replay(cache: Cache, free: int) -> int:
    """Let happen to the idle blocks what is on the trail, and clear it. Returns the free blocks after it."""
    kept, used, idle, trail = cache
    for entry in trail:
        if entry <= 0:
            free += entry
            continue
        if free < 0:
            evict(idle, kept, used, -free)
            free = 0
        heappush(idle, entry)
    if free < 0:
        evict(idle, kept, used, -free)
        free = 0
    trail.clear()
    return free


PARTS = (
    replay,
    finish,
    steps_that_fit,
    preempt,
    prefill,
    admit,
    resume,
    go_on,
    make_room,
    steps,
    followers,
    _nothing,
)
"""The functions that `simulate` calls; each calls none but those before it."""
