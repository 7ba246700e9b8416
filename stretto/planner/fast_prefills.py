"""The part of the fast scheduler that follows prefills: which go on, which start, and what they compute."""

from __future__ import annotations

from heapq import heappush

from stretto.planner.fast_decodes import finish, give_up
from stretto.planner.fast_state import (
    ENDED,
    HELD,
    LEFT,
    REQUEST_BITS,
    STORED,
    TICK_BITS,
    FastState,
    Numbers,
    acquire,
    replay_trail,
)


def prefill_step(state: FastState, numbers: Numbers, room: int, is_short: bool) -> None:
    """Simulate a step with prefills: those that have begun go on, and waiting requests start while they fit.

    Args:
        room: available blocks that no running request needs for its prompt and its next tokens.
        is_short: whether requests were preempted in this step. Then none starts.
    """
    log, back, step, is_whole = state.log, state.back, numbers.step, numbers.is_whole
    budget, num_decodes = numbers.max_batch_tokens, 0
    if not is_whole:
        num_decodes = numbers.decoding
        budget -= num_decodes
        if not is_short:
            numbers.acquired = state.counts[(step - 1) % numbers.block_tokens]
    tick = (step + numbers.num_prefill_steps) << TICK_BITS
    state.slices.clear()
    if state.begun:
        num_preemptions = numbers.num_preemptions
        budget = go_on(state, numbers, budget)
        is_short = is_short or num_preemptions < numbers.num_preemptions
    if not is_short:
        most = numbers.max_running - numbers.running
        if most > numbers.lookahead:
            most = numbers.lookahead
        if back:
            most, budget, room = resume(state, numbers, tick, most, budget, room)
        if not back and numbers.upcoming < numbers.num_requests:
            admit(state, numbers, most, budget, room)
    state.trail.append(-numbers.acquired)
    numbers.available -= numbers.acquired
    numbers.acquired = 0
    log.first.append(step)
    log.num_decodes.append(num_decodes)
    if is_whole:
        end_prefills(state, numbers, tick, step)
        log.repeats.append(1)
        numbers.num_prefill_steps += 1
        return
    numbers.step = step + 1
    end_prefills(state, numbers, tick, step + 1)
    log.repeats.append(1)
    state.prefills_before.append(numbers.num_prefill_steps)
    if state.due and state.due[0] >> REQUEST_BITS <= step:
        finish(state, numbers)


def put(state: FastState, numbers: Numbers, request: int, budget: int) -> int:
    """Put a request's prefill into this step, as far as the budget goes; return what is left of the budget.

    A whole prompt for which the budget does not suffice waits, unless it is the first of the step.
    """
    size = numbers.block_tokens
    start, length = state.start[request], state.prompts[request] + state.generated[request]
    end = length
    if length - start > budget:
        if not numbers.is_whole:
            end = numbers.cut_at = start + budget
            numbers.cut = request
        elif state.slices:
            state.begun.append(request)
            numbers.outstanding += length // size + 1 + -start // size
            return budget
    state.slices.append(request)
    numbers.acquired += -start // size - -end // size
    return budget - end + start


def go_on(state: FastState, numbers: Numbers, budget: int) -> int:
    """Let the prefills that have begun go on; return what is left of the budget.

    One in chunks for which there are too few blocks is preempted.
    """
    prompts, generated, starts = state.prompts, state.generated, state.start
    begun, slices, size, is_whole = state.begun, state.slices, numbers.block_tokens, numbers.is_whole
    waiting = begun.copy()
    begun.clear()
    for request in waiting:
        start, length = starts[request], prompts[request] + generated[request]
        if is_whole and slices and length - start > budget:
            begun.append(request)
            continue
        numbers.outstanding -= length // size + 1 + -start // size
        num_blocks = -start // size - -min(start + budget, length) // size
        if is_whole or num_blocks <= numbers.available - numbers.acquired:
            budget = put(state, numbers, request, budget)
        else:
            acquire(state, numbers)
            give_up(state, numbers, request)
    return budget


def resume(
    state: FastState, numbers: Numbers, tick: int, most: int, budget: int, room: int
) -> tuple[int, int, int]:
    """Start preempted requests while they fit, at most so many: each finds what the cache still has of it.

    Returns what is left of `most`, the budget, and the room.
    """
    size = numbers.block_tokens
    back = state.back
    while back and most and budget > 0:
        request = back[-1]
        room -= (state.prompts[request] + state.generated[request]) // size + 1
        if room < 0 and numbers.running:
            return 0, budget, room
        most -= 1
        numbers.running += 1
        back.pop()
        state.stack.append(request)
        acquire(state, numbers)  # first: this may evict blocks of this request
        replay_trail(state, numbers)
        num_held = state.kept[request]
        numbers.available -= num_held
        state.kept[request] = 0
        state.used[request] = tick | HELD | request
        state.start[request] = num_held * size
        budget = put(state, numbers, request, budget)
    return most, budget, room


def admit(state: FastState, numbers: Numbers, most: int, budget: int, room: int) -> None:
    """Start requests that were never started while they fit, at most so many."""
    size, is_whole = numbers.block_tokens, numbers.is_whole
    prompts, stack, slices = state.prompts, state.stack, state.slices
    first = upcoming = numbers.upcoming
    last, running, num_acquired = upcoming + most, numbers.running, 0
    if last > numbers.num_requests:
        last = numbers.num_requests
    while upcoming < last and budget > 0:
        length = prompts[upcoming]
        num_blocks = length // size + 1  # with the one for its first token
        room -= num_blocks
        if room < 0 and (running or upcoming > first):
            break
        stack.append(upcoming)
        if length <= budget or (is_whole and not slices):
            slices.append(upcoming)
            budget -= length
            num_acquired += -(-length // size)
        elif is_whole:
            state.begun.append(upcoming)
            numbers.outstanding += num_blocks
        else:
            slices.append(upcoming)
            numbers.cut, numbers.cut_at = upcoming, budget
            num_acquired += -(-budget // size)
            budget = 0
        upcoming += 1
    numbers.running += upcoming - first
    numbers.upcoming = upcoming
    numbers.acquired += num_acquired


def end_prefills(state: FastState, numbers: Numbers, tick: int, step: int) -> None:
    """Log the prefills of a step, and let those that have their whole prompt decode from `step` on. Those
    whose only token the prefill has chosen have ended.
    """
    log, prompts = state.log, state.prompts
    outputs, generated, start, cut = state.outputs, state.generated, state.start, numbers.cut
    used, stay_of, last_steps = state.used, state.stay_of, state.last_steps
    counts, due = state.counts, state.due
    requests, begins, ends, offsets = log.requests, log.begins, log.ends, log.offsets
    size, interval, stored = numbers.block_tokens, len(log.repeats), tick | STORED
    first_stay = stay = len(requests)
    num_prompts = num_tokens = longest = num_pairs = 0
    for request in state.slices:
        begin, num_before = start[request], generated[request]
        length = prompts[request] + num_before
        end = length if request != cut else numbers.cut_at
        num_computed = end - begin
        if num_computed == 1 and begin >= prompts[request]:
            log.single.append(interval)
            log.single.append(end)
        else:
            num_prompts += 1
            num_tokens += num_computed
            if num_computed > longest:
                longest = num_computed
            num_pairs += num_computed * (begin + end + 1) // 2
        if end // size > begin // size:
            used[request] = stored | request
        if end < length:
            start[request] = end
            state.begun.append(request)
            numbers.outstanding += length // size + 1 + -end // size
            numbers.cut = -1
            continue
        num_more = outputs[request] - num_before - 1
        if not num_more:
            leave(state, numbers, request, end, tick, interval)
            continue
        offset = end + 1 - step
        stay_of[request] = stay
        stay += 1
        last = last_steps[request] = step + num_more - 1
        heappush(due, last << REQUEST_BITS | request)
        requests.append(request)
        begins.append(interval + 1)
        ends.append(-1)
        offsets.append(offset)
        counts[-offset % size] += 1
    if num_prompts:
        log.prefills.append(interval)
        log.prefills.append(num_prompts)
        log.prefills.append(num_tokens)
        log.prefills.append(longest)
        log.prefills.append(num_pairs)
    numbers.decoding += stay - first_stay


def leave(
    state: FastState, numbers: Numbers, request: int, num_computed: int, tick: int, interval: int
) -> None:
    """End a request whose only token its prefill has chosen."""
    num_full = num_computed // numbers.block_tokens
    state.kept[request] = num_full
    if num_full * numbers.block_tokens < num_computed:
        state.trail.append(tick | LEFT | request)
        numbers.available += 1
    elif num_full:
        state.trail.append(state.used[request])
    state.stay_of[request] = ENDED
    state.log.ended.append(request)
    state.log.ended.append(interval)
    numbers.running -= 1
    numbers.available += num_full


PARTS = (put, go_on, resume, admit, leave, end_prefills, prefill_step)
"""The functions of this file; each calls none but those before it."""
