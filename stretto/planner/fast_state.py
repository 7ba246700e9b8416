"""The state of one simulated LLM instance, and what has happened in it, in named fields.

Its functions and those of `fast_scheduler.py` run as they are or are compiled by numba. There a state is a
named tuple of the same lists, and the numbers that change are a record (`compiled.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import TypeAlias

from stretto.planner.step_log import StepLog

REQUEST_BITS = 24
REQUEST_MASK = (1 << REQUEST_BITS) - 1
MAX_REQUESTS = REQUEST_MASK
_PHASE_BITS = 2
TICK_BITS = REQUEST_BITS + _PHASE_BITS
HELD, STORED, LEFT = 0 << REQUEST_BITS, 1 << REQUEST_BITS, 2 << REQUEST_BITS
"""Phases of a step in which blocks are used: found again, filled, or left as the tail of an ended request."""
NO_STAY, ENDED = -1, -2

Column: TypeAlias = list[int]


@dataclass(slots=True)
class Numbers:
    """The sizes of an instance, and the numbers in its state. All are whole numbers.

    Attributes:
        num_blocks, block_tokens, max_running, max_batch_tokens, lookahead: values of the `SchedulerConfig`.
        is_whole: 1 if prompts are computed whole, in steps without decodes (policy `prefill_first`); 0 if in
            chunks, beside decodes.
        step: number of the next step that has decodes, or may have some.
        num_prefill_steps: steps so far that could not have decodes.
        num_requests: requests so far.
        upcoming: the next request that was never started.
        running: requests that run; those that have ended do not.
        decoding: requests of these that decode.
        available: KV blocks that running requests do not use.
        acquired: blocks acquired in this step, not yet taken off the available ones.
        free: blocks without content, as it was before the trail.
        cut: the last request in `slices`, if this step does not compute its prompt to the end; else -1.
        cut_at: tokens of it that are computed, or were found in the cache, after the step.
        outstanding: blocks that begun prefills need for the rest of their prompts and their first tokens.
        num_preemptions: preemptions so far.
    """

    num_blocks: int
    block_tokens: int
    max_running: int
    max_batch_tokens: int
    lookahead: int
    is_whole: int
    step: int = 0
    num_prefill_steps: int = 0
    num_requests: int = 0
    upcoming: int = 0
    running: int = 0
    decoding: int = 0
    available: int = 0
    acquired: int = 0
    free: int = 0
    cut: int = -1
    cut_at: int = 0
    outstanding: int = 0
    num_preemptions: int = 0


@dataclass(slots=True)
class FastState:
    """The state of an instance, less its numbers: columns by request, queues, and the log.

    Nobody asks for idle blocks until a request is preempted, so most runs never look at them. Until then, the
    trail keeps what has happened to them.

    A *tick* numbers the steps of all kinds. A *stamp* is a tick, a phase and a request in one number: cached
    blocks are evicted in the order of the stamps of their last use.

    Attributes:
        prompts, outputs: tokens of each prompt and of each answer.
        generated: tokens that each request had generated when it was last preempted.
        start: tokens of each request that its prefill has computed or found in the cache.
        stay_of: number of each request's stay while it decodes, else `NO_STAY` or `ENDED`.
        last_steps: last decode step of each request's stay.
        kept: full blocks that each request has left in the cache.
        used: stamp of the last use of each request's full blocks.
        back: preempted requests, the first on top.
        stack: running requests, the first to be preempted on top; also some that have ended.
        begun: admitted requests whose prefill goes on in the next step.
        slices: requests that have a prefill in this step.
        due: heap of (last decode step, request) of stays, also of some that were cut.
        idle: heap of the stamps of runs of cached blocks that no running request uses, and of tails.
        trail: stamp of each run or tail that was left, and -n where n blocks were acquired.
        counts: decoding requests by the decode step, modulo the size of a block, in which they fill one.
        prefills_before: number of steps without decodes before each decode step.
    """

    prompts: Column
    outputs: Column
    generated: Column
    start: Column
    stay_of: Column
    last_steps: Column
    kept: Column
    used: Column
    back: Column
    stack: Column
    begun: Column
    slices: Column
    due: Column
    idle: Column
    trail: Column
    counts: Column
    prefills_before: Column
    log: StepLog


def column() -> Column:
    """Return an empty list, of which numba knows what it holds."""
    nothing = [0]
    nothing.clear()
    return nothing


def new_log() -> StepLog:
    """Return an empty log."""
    return StepLog(
        column(), column(), column(), column(), column(), column(), column(), column(), column(), column()
    )


def new_state(numbers: Numbers) -> FastState:
    """Return the state of an instance without requests. The numbers that change must be 0."""
    numbers.available = numbers.free = numbers.num_blocks
    return FastState(
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        column(),
        [0] * numbers.block_tokens,
        column(),
        new_log(),
    )


def make_room(state: FastState, numbers: Numbers) -> None:
    """Make room in the columns for requests that were added to the prompts."""
    num = len(state.prompts)
    num_new = num - numbers.num_requests
    nothing = [0] * num_new
    state.generated.extend(nothing)
    state.start.extend(nothing)
    state.kept.extend(nothing)
    state.used.extend(nothing)
    state.stay_of.extend([NO_STAY] * num_new)
    state.last_steps.extend([-1] * num_new)
    numbers.num_requests = num


def acquire(state: FastState, numbers: Numbers) -> None:
    """Take the blocks that this step has acquired off the available ones."""
    state.trail.append(-numbers.acquired)
    numbers.available -= numbers.acquired
    numbers.acquired = 0


def replay_trail(state: FastState, numbers: Numbers) -> None:
    """Let happen to the idle blocks what is on the trail, and clear it."""
    idle, trail = state.idle, state.trail
    free = numbers.free
    for entry in trail:
        if entry <= 0:
            free += entry
            continue
        if free < 0:
            evict(idle, state.kept, state.used, -free)
            free = 0
        heappush(idle, entry)
    if free < 0:
        evict(idle, state.kept, state.used, -free)
        free = 0
    trail.clear()
    numbers.free = free


def evict(idle: Column, kept: Column, used: Column, num_blocks: int) -> None:
    """Evict idle blocks, the least recently used first; there must be as many.

    The order is that of the production prefix cache: a tail (a last block that is not full) before the run
    that it ends, and the last block of a run first.
    """
    while num_blocks:
        first = idle[0]
        request = first & REQUEST_MASK
        if first & LEFT:
            num_blocks -= 1
            if kept[request]:
                heapreplace(idle, used[request])
            else:
                heappop(idle)
        elif used[request] != first:
            heappop(idle)
        elif kept[request] > num_blocks:
            kept[request] -= num_blocks
            return
        else:
            num_blocks -= kept[request]
            kept[request] = 0
            heappop(idle)


PARTS = (column, new_log, new_state, make_room, acquire, evict, replay_trail)
"""The functions of this file; each calls none but those before it."""
