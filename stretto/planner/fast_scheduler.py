"""A fast model of the local scheduler of one LLM instance. Its steps are the same, without tokens and tables.

While nothing comes from outside, admission, blocks and preemption depend on the *numbers* of steps alone. So
the clock here counts steps, and what happens in them is priced later, all at once.

Rules that make this fast (each holds for `LocalScheduler` if no two prompts share a prefix):

- Requests are admitted in their order, and the last one is preempted first. So all running requests come
  before all waiting ones, and the running ones lie on a stack.
- Every decoding request gets one token in each step with decodes, so its end is known when its prefill ends,
  and it fills its blocks in those steps that have the right remainder. Requests are counted by that
  remainder.
- If the next request does not fit, none fits until one ends or is preempted.
- Policy `chunked`: only the last of the running requests can be within its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop
from sys import maxsize
from typing import TypeAlias

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.errors import ConfigError
from stretto.planner import fast_decodes, fast_prefills, fast_state
from stretto.planner.fast_decodes import finish, preempt, steps_that_fit
from stretto.planner.fast_prefills import prefill_step
from stretto.planner.fast_state import (
    REQUEST_BITS,
    REQUEST_MASK,
    Column,
    FastState,
    Numbers,
    column,
    make_room,
    new_state,
)

Simulated: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints]


class FastScheduler:
    """A fast simulation of one LLM instance whose requests arrive while it runs, interval by interval.

    Attributes:
        log: what was done so far.

    Raises:
        ConfigError: the configuration cannot work.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._numbers = numbers_of(config)
        self._state = new_state(self._numbers)
        self.log = self._state.log

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions so far."""
        return self._numbers.num_preemptions

    @property
    def step(self) -> int:
        """Number of the next step that has decodes, or may have some."""
        return self._numbers.step

    def add(self, prompts: Sequence[int], outputs: Sequence[int]) -> None:
        """Add requests to the end of the queue: tokens of their prompts and of their answers.

        They must have passed `check_requests`.
        """
        self._state.prompts.extend(prompts)
        self._state.outputs.extend(outputs)

    def num_free_steps(self) -> int:
        """Return how many decode steps follow in which nothing is decided: until one ends, or KV blocks are
        short. It is 0 if the next step has prefills or needs more blocks than there are, or others wait.
        """
        state, numbers = self._state, self._numbers
        before = (numbers.step - 1) % numbers.block_tokens
        if self.is_waiting or state.begun or state.counts[before] > numbers.available or not numbers.decoding:
            return 0
        due, last_steps = state.due, state.last_steps
        while last_steps[due[0] & REQUEST_MASK] != due[0] >> REQUEST_BITS:  # this stay was cut
            heappop(due)
        num_steps = (due[0] >> REQUEST_BITS) - numbers.step + 1
        return steps_that_fit(state.counts, before, numbers.decoding, num_steps, numbers.available)[0]

    @property
    def is_waiting(self) -> bool:
        """Whether some request has not been started, or was preempted."""
        return bool(self._state.back) or self._numbers.upcoming < len(self._state.prompts)

    def has_work(self) -> bool:
        """Return whether some request has not ended."""
        return len(self.log.ended) < 2 * len(self._state.prompts)

    def advance(self, max_steps: int) -> None:
        """Simulate the next step, or up to `max_steps` decode steps between which nothing is decided."""
        advance(self._state, self._numbers, max_steps, -1)


def numbers_of(config: SchedulerConfig) -> Numbers:
    """Return the numbers of an instance at its start.

    Raises:
        ConfigError: the configuration cannot work.
    """
    if config.policy not in ("chunked", "prefill_first"):
        raise ConfigError(f"policy must be chunked or prefill_first, got {config.policy!r}")
    config.check()
    return Numbers(
        config.num_blocks,
        config.block_tokens,
        config.max_running,
        config.max_batch_tokens,
        config.lookahead,
        int(config.policy == "prefill_first"),
    )


def simulate(prompts: Column, outputs: Column, previous: Column, numbers: Numbers) -> Simulated:
    """Simulate until all calls have ended.

    A call is there from the beginning, or from the end of the call `previous` on, if that is not -1. Calls
    that come at once are ordered by their numbers.

    Returns the fields of `StepColumns`, where requests are numbered in the order in which they come; and the
    call of each request.
    """
    state = new_state(numbers)
    log, ended = state.log, state.log.ended
    follower, sibling = followers(previous)
    order = [call for call in range(len(prompts)) if previous[call] < 0]
    for call in order:
        state.prompts.append(prompts[call])
        state.outputs.append(outputs[call])
    if len(order) == len(prompts):
        advance(state, numbers, maxsize, maxsize)
    coming, num_seen = column(), 0
    while len(ended) < 2 * len(state.prompts):
        advance(state, numbers, maxsize, num_seen)
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
            state.prompts.append(prompts[call])
            state.outputs.append(outputs[call])
    return (
        np.array(log.first, np.int64),
        np.array(log.repeats, np.int64),
        np.array(log.num_decodes, np.int64),
        np.array(log.prefills, np.int64).reshape(-1, 5),
        np.array(log.single, np.int64).reshape(-1, 2),
        np.array(log.requests, np.int64),
        np.array(log.begins, np.int64),
        np.array(log.ends, np.int64),
        np.array(log.offsets, np.int64),
        np.array(ended, np.int64).reshape(-1, 2),
        np.array(order, np.int64),
    )


def followers(previous: Column) -> tuple[Column, Column]:
    """Return the first call that follows each call, and the next one that follows the same; -1 for none."""
    follower, sibling = [-1] * len(previous), [-1] * len(previous)
    for call in range(len(previous) - 1, -1, -1):
        if previous[call] >= 0:
            sibling[call] = follower[previous[call]]
            follower[previous[call]] = call
    return follower, sibling


def advance(state: FastState, numbers: Numbers, most_steps: int, most_ended: int) -> None:
    """Simulate until all requests have ended, interval by interval: each is a step with prefills, or decode
    steps between which nothing is decided.

    Args:
        most_steps: most decode steps of an interval.
        most_ended: length of `log.ended` that, once it is exceeded, no further interval follows.
    """
    log, counts, due, last_steps = state.log, state.counts, state.due, state.last_steps
    prompts, generated, back, begun = state.prompts, state.generated, state.back, state.begun
    first_steps, repeats, num_decodes, ended = log.first, log.repeats, log.num_decodes, log.ended
    size, max_running, is_whole = numbers.block_tokens, numbers.max_running, numbers.is_whole
    trail, prefills_before, num = state.trail, state.prefills_before, len(prompts)
    if numbers.num_requests < num:
        make_room(state, numbers)
    while numbers.running or back or numbers.upcoming < num:
        step, available = numbers.step, numbers.available
        num_needed = counts[(step - 1) % size]
        is_prefill, room = len(begun) > 0, available - counts[step % size] - num_needed - numbers.outstanding
        if not is_prefill and numbers.running < max_running and (back or numbers.upcoming < num):
            request = back[-1] if back else numbers.upcoming
            is_prefill = numbers.running == 0 or (prompts[request] + generated[request]) // size < room
        is_short = num_needed > available and not (is_prefill and is_whole)
        if is_short:
            preempt(state, numbers)
        if is_prefill and (not is_short or begun):
            prefill_step(state, numbers, room, is_short)
        else:
            num_steps = 1
            if not is_short:
                last = due[0]
                while last_steps[last & REQUEST_MASK] != last >> REQUEST_BITS:  # this stay was cut
                    heappop(due)
                    last = due[0]
                num_steps = (last >> REQUEST_BITS) - step + 1
                if num_steps > most_steps:
                    num_steps = most_steps
                if num_steps > 1:
                    num_steps, num_needed = steps_that_fit(
                        counts, (step - 1) % size, numbers.decoding, num_steps, available
                    )
                numbers.available = available - num_needed
                trail.append(-num_needed)
            first_steps.append(step)
            repeats.append(num_steps)
            num_decodes.append(numbers.decoding)
            prefills_before.extend([numbers.num_prefill_steps] * num_steps)
            numbers.step = step = step + num_steps
            if due and due[0] < step << REQUEST_BITS:
                finish(state, numbers)
        if len(ended) > most_ended:
            return


PARTS = (*fast_state.PARTS, *fast_decodes.PARTS, *fast_prefills.PARTS, followers, advance)
"""The functions that `simulate` calls; each calls none but those before it."""
