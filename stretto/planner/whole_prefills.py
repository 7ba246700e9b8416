"""The steps of one LLM instance with policy `prefill_first`: whole prompts while there are any, then decodes.

The rules are those of `FastScheduler`, but all state is in local variables of a generator, which is several
times as fast. It uses nothing but numbers, lists and arrays, so that `compiled.py` can compile it.

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
from stretto.planner.idle_blocks import ENDED, HELD, STORED, evict

_BITS = 24
_MASK = (1 << _BITS) - 1
_HELD, _STORED, _ENDED = HELD << _BITS, STORED << _BITS, ENDED << _BITS
_TICK = _BITS + 2

Simulated: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, int]


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
    nothing = [0]
    nothing.clear()
    first, repeats, num_decodes = nothing.copy(), nothing.copy(), nothing.copy()
    prefills, singles, ended = nothing.copy(), nothing.copy(), nothing.copy()
    stays, begins, ends, offsets = nothing.copy(), nothing.copy(), nothing.copy(), nothing.copy()
    come_prompts, come_outputs, order = nothing.copy(), nothing.copy(), nothing.copy()
    follower, other = (
        [-1] * len(prompts),
        [-1] * len(prompts),
    )  # first follower of each call, and the next one
    for call in range(len(prompts) - 1, -1, -1):
        if previous[call] >= 0:
            other[call] = follower[previous[call]]
            follower[previous[call]] = call
    coming = [call for call in range(len(prompts)) if previous[call] < 0]
    for call in coming:
        order.append(call)
        come_prompts.append(prompts[call])
        come_outputs.append(outputs[call])
    num_preemptions = num_seen = 0
    for preempted, _ in steps(
        come_prompts,
        come_outputs,
        [maxsize],
        first,
        repeats,
        num_decodes,
        prefills,
        singles,
        stays,
        begins,
        ends,
        offsets,
        ended,
        num_blocks,
        size,
        max_running,
        max_batch_tokens,
        lookahead,
    ):
        num_preemptions = preempted
        coming.clear()
        while num_seen < len(ended):
            call = follower[order[ended[num_seen]]]
            while call >= 0:
                coming.append(call)
                call = other[call]
            num_seen += 2
        if coming:
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


def steps(
    prompts: list[int],
    outputs: list[int],
    most_steps: list[int],
    first_steps: list[int],
    repeats: list[int],
    num_decodes: list[int],
    prefills: list[int],
    singles: list[int],
    stays: list[int],
    begins: list[int],
    ends: list[int],
    offsets: list[int],
    ended: list[int],
    num_blocks: int,
    size: int,
    max_running: int,
    max_batch_tokens: int,
    lookahead: int,
) -> Iterator[tuple[int, int]]:
    """Simulate one interval after the other: a step with prefills, or decode steps between which nothing is
    decided. Yields the number of preemptions so far, and how many requests wait.

    Requests may be added to the ends of `prompts` and `outputs` between intervals.

    Args:
        most_steps: one number, the most decode steps of the next interval.
        first_steps, ...: columns of `StepLog`, to which each interval adds; rows of several numbers follow
            each other.
    """
    nothing = [0]
    nothing.clear()
    back = nothing.copy()  # preempted requests, the first on top
    stack = nothing.copy()  # running requests; also some that have ended
    begun = nothing.copy()  # admitted requests whose prefill waits for the next step
    slices = nothing.copy()  # requests whose prefill is in this step
    due = nothing.copy()  # heap of (last step, request)
    idle = nothing.copy()  # heap of stamps of cached blocks that are not used
    trail = nothing.copy()  # what was not yet done to it: stamps to add, and numbers of blocks to evict
    prefills_before = nothing.copy()  # steps with prefills before each decode step
    generated, start, used, kept = nothing.copy(), nothing.copy(), nothing.copy(), nothing.copy()
    stay_of, first, end = nothing.copy(), nothing.copy(), nothing.copy()
    counts = [0] * size  # decoding requests by the step, modulo the size of a block, in which they fill one
    free = available = num_blocks
    step = upcoming = running = decoding = num_outstanding = num_prefill_steps = num_preemptions = 0
    while running or back or upcoming < len(prompts):
        num = len(prompts)
        num_new = num - len(end)  # numba refuses `:=` in a generator
        if num_new:
            generated.extend([0] * num_new)
            start.extend([0] * num_new)
            used.extend([0] * num_new)
            kept.extend([0] * num_new)
            stay_of.extend([-1] * num_new)
            first.extend([0] * num_new)
            end.extend([-1] * num_new)
        now, before = step % size, (step - 1) % size
        is_prefill = len(begun) > 0
        if not is_prefill and running < max_running and (back or upcoming < num):
            request = back[-1] if back else upcoming
            num_needed = (prompts[request] + generated[request]) // size + 1 + counts[now] + counts[before]
            is_prefill = running == 0 or num_needed <= available
        if is_prefill:
            tick = (step + num_prefill_steps) << _TICK
            budget, num_left, num_acquired = max_batch_tokens, lookahead, 0
            outstanding = counts[now] + counts[before]
            slices.clear()
            if begun:
                waiting = begun.copy()
                begun.clear()
                for request in waiting:
                    length = prompts[request] + generated[request]
                    num_held = start[request] // size
                    num_missing = length - start[request]
                    if num_missing <= budget or not slices:
                        slices.append(request)
                        budget -= num_missing
                        num_acquired += -(-length // size) - num_held
                        num_outstanding -= length // size + 1 - num_held
                        if length % size == 0:
                            outstanding += 1
                    else:
                        begun.append(request)
                outstanding += num_outstanding
            while num_left and budget > 0 and running < max_running:
                if back:
                    request = back[-1]
                elif upcoming < num:
                    request = upcoming
                else:
                    break
                length = prompts[request] + generated[request]
                num_full = length // size
                if running and num_full + 1 + outstanding + num_acquired > available:
                    break
                num_left -= 1
                running += 1
                stack.append(request)
                num_held = 0
                if back:
                    back.pop()
                    available -= num_acquired  # first: this may evict blocks of this request
                    free -= num_acquired
                    num_acquired = 0
                    if free < 0:
                        trail.append(free)
                        free = 0
                    replay(trail, idle, kept, used)
                    num_held = kept[request]
                    kept[request] = 0
                    used[request] = tick | _HELD | request
                    available -= num_held
                else:
                    upcoming += 1
                start[request] = num_held * size
                num_missing = length - start[request]
                if num_missing > budget and slices:
                    outstanding += num_full + 1 - num_held
                    num_outstanding += num_full + 1 - num_held
                    begun.append(request)
                    continue
                if num_full * size < length:
                    num_acquired += num_full + 1 - num_held
                else:
                    num_acquired += num_full - num_held
                    outstanding += 1
                slices.append(request)
                budget -= num_missing
            available -= num_acquired
            free -= num_acquired
            if free < 0:
                trail.append(free)
                free = 0
            interval, stored = len(repeats), tick | _STORED
            num_prompts = num_tokens = longest = num_pairs = 0
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
                    num_pairs += num_missing * begin + num_missing * (num_missing + 1) // 2
                if length // size > begin // size:
                    used[request] = stored | request
                num_more = outputs[request] - generated[request] - 1
                if num_more:
                    offset = length + 1 - step
                    stay_of[request] = len(stays)
                    first[request] = step
                    last = end[request] = step + num_more - 1
                    stays.append(request)
                    begins.append(interval + 1)
                    ends.append(-1)
                    offsets.append(offset)
                    decoding += 1
                    counts[-offset % size] += 1
                    heappush(due, last << _BITS | request)
                else:
                    num_full, rest = length // size, length % size
                    kept[request] = num_full
                    if rest:
                        trail.append(tick | _ENDED | request)
                        available += num_full + 1
                    elif num_full:
                        trail.append(used[request])
                        available += num_full
                    running -= 1
                    end[request] = -2
                    ended.append(request)
                    ended.append(interval)
            if num_prompts:
                prefills.append(interval)
                prefills.append(num_prompts)
                prefills.append(num_tokens)
                prefills.append(longest)
                prefills.append(num_pairs)
            first_steps.append(step)
            repeats.append(1)
            num_decodes.append(0)
            num_prefill_steps += 1
            yield num_preemptions, len(back) + num - upcoming
            continue

        if counts[before] > available:
            num_needed = counts[before]
            while num_needed:
                num_taken = min(num_needed, available)
                num_needed -= num_taken
                available -= num_taken
                free -= num_taken
                if free < 0:
                    trail.append(free)
                    free = 0
                if not num_needed:
                    break
                while stay_of[stack[-1]] < 0:  # it has ended
                    stack.pop()
                request = stack.pop()
                stay = stay_of[request]
                offset = offsets[stay]
                num_computed = offset + step - 1
                num_full = num_computed // size
                filled = num_full * size - offset
                replay(trail, idle, kept, used)
                if filled >= first[request]:
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
                stay_of[request] = end[request] = -1
                generated[request] = num_computed + 1 - prompts[request]
                decoding -= 1
                running -= 1
                back.append(request)
                num_preemptions += 1
            num_steps = 1
        else:
            while end[due[0] & _MASK] != due[0] >> _BITS:  # it was preempted
                heappop(due)
            num_steps = min((due[0] >> _BITS) - step + 1, most_steps[0])
            rest = num_steps % size
            num_needed = num_steps // size * decoding + sum(counts[before : before + rest])
            if before + rest > size:
                num_needed += sum(counts[: before + rest - size])
            if num_needed > available:
                num_needed = num_steps = 0
                while num_needed + counts[before] <= available:
                    num_needed += counts[before]
                    num_steps += 1
                    before = (before + 1) % size
        available -= num_needed
        free -= num_needed
        if free < 0:
            trail.append(free)
            free = 0
        first_steps.append(step)
        repeats.append(num_steps)
        num_decodes.append(decoding)
        prefills_before.extend([num_prefill_steps] * num_steps)
        step += num_steps
        tail = (step - 1 + num_prefill_steps) << _TICK | _ENDED
        interval = len(repeats)
        while due and due[0] >> _BITS < step:
            last = heappop(due)
            request = last & _MASK
            if end[request] != last >> _BITS:  # it was preempted
                continue
            stay = stay_of[request]
            offset = offsets[stay]
            num_full = (offset + step - 1) // size
            filled = num_full * size - offset
            if filled >= first[request]:
                used[request] = (filled + prefills_before[filled]) << _TICK | _STORED | request
            kept[request] = num_full
            available += num_full
            if filled < step - 1:
                available += 1
                trail.append(tail | request)
            elif num_full:
                trail.append(used[request])
            ends[stay] = interval
            ended.append(request)
            ended.append(interval - 1)
            counts[-offset % size] -= 1
            stay_of[request] = -1
            end[request] = -2
            decoding -= 1
            running -= 1
        yield num_preemptions, len(back) + num - upcoming


def replay(trail: list[int], idle: list[int], kept: list[int], used: list[int]) -> None:
    """Add blocks to the idle ones and evict others, in the order of the trail, and clear it.

    Nobody asks for idle blocks until a request is preempted, so most runs never do this.
    """
    for entry in trail:
        if entry < 0:
            evict(idle, kept, used, -entry)
        else:
            heappush(idle, entry)
    trail.clear()
