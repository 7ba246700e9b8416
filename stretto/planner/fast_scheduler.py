"""A fast model of the local scheduler of one LLM instance, with policy `chunked`.

Its steps are the same, without tokens and block tables.

While nothing comes from outside, admission, blocks and preemption depend on the *numbers* of steps alone. So
the clock here counts steps, and what happens in them is priced later, all at once.

Rules that make this fast (each holds for `LocalScheduler` if no two prompts share a prefix):

- Requests are admitted in their order, and the last one is preempted first. So all running requests come
  before all waiting ones, and the running ones lie on a stack.
- Every decoding request gets one token in each decode step, so its end is known when its prefill ends, and it
  fills its blocks in those steps that have the right remainder. Requests are counted by that remainder.
- If the next request does not fit, none fits until one ends or is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from sys import maxsize

from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.errors import CapacityError, ConfigError
from stretto.planner.idle_blocks import (
    ENDED,
    HELD,
    MAX_REQUESTS,
    REQUEST_BITS,
    REQUEST_MASK,
    STORED,
    IdleBlocks,
    stamp,
)
from stretto.planner.step_log import StepLog


class FastScheduler:
    """A fast simulation of one LLM instance, step by step or many steps at once.

    Attributes:
        log: what was done so far.
        num_preemptions: number of preemptions so far.
        step: number of steps so far.

    Raises:
        ConfigError: the configuration cannot work.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        if config.policy != "chunked":
            raise ConfigError(f"policy must be chunked, got {config.policy!r}")
        config.check()
        self.log = StepLog()
        self.num_preemptions = 0
        self.step = 0
        self._config = config
        self._size = config.block_tokens
        self._prompts: list[int] = []
        self._outputs: list[int] = []
        self._generated: dict[int, int] = {}  # of requests that were preempted
        self._idle = IdleBlocks()
        self._num_free = config.num_blocks
        self._num_available = config.num_blocks
        self._next = 0
        self._back: list[int] = []  # preempted ones, the first on top
        self._stack: list[int] = []  # running ones; also some that have ended
        self._num_running = 0
        self._num_decoding = 0
        self._by_remainder = [0] * self._size
        self._stay: list[int] = []  # number of each request's stay; -1 while it does not decode
        self._first: list[int] = []  # first decode step of each request on a stay
        self._end: list[int] = []  # last decode step of each request on a stay
        self._ends: list[int] = []  # heap of (end, request)
        self._begun: dict[int, int] = {}  # missing tokens of each request in mid-prefill, in order

    def add(self, prompts: Sequence[int], outputs: Sequence[int]) -> None:
        """Add requests to the end of the queue: tokens of their prompts and of their answers.

        Raises:
            CapacityError: a request would not fit even if it were alone.
            ConfigError: a request has no prompt or no answer, or there are too many.
        """
        most = self._config.num_blocks * self._size
        for prompt, output in zip(prompts, outputs, strict=True):
            if prompt < 1 or output < 1:
                raise ConfigError(f"a request needs a prompt and an answer, got {prompt} and {output} tokens")
            if prompt + output > most:
                raise CapacityError(f"{prompt + output} tokens do not fit; the KV blocks hold {most}")
        if (total := len(self._prompts) + len(prompts)) > MAX_REQUESTS:
            raise ConfigError(f"at most {MAX_REQUESTS} requests can be simulated, got {total}")
        self._prompts += prompts
        self._outputs += outputs
        num = len(prompts)
        self._stay += [-1] * num
        self._first += [0] * num
        self._end += [-1] * num
        for _ in range(num):
            self._idle.add_request()

    @property
    def is_waiting(self) -> bool:
        """Whether some request has not been started, or was preempted."""
        return bool(self._back) or self._next < len(self._prompts)

    def has_work(self) -> bool:
        """Return whether some request has not ended."""
        return self._num_running > 0 or self.is_waiting

    def run(self) -> StepLog:
        """Simulate until all requests have ended."""
        advance = self.advance
        while self._num_running or self._back or self._next < len(self._prompts):
            advance(maxsize)
        return self.log

    def advance(self, max_steps: int) -> None:
        """Simulate the next step, or up to `max_steps` decode steps between which nothing is decided."""
        num_needed = self._by_remainder[(self.step - 1) % self._size]
        is_short = num_needed > self._num_available
        if is_short:
            self._preempt()
        elif not self._begun and not self._fits_next(num_needed, self.step):
            self._decode(max_steps)
            return
        else:
            self._acquire(num_needed)
        budget = self._config.max_batch_tokens - self._num_decoding
        slices: list[tuple[int, int, int]] = []
        for request, num_missing in list(self._begun.items()):
            num_computed = self._length(request) - num_missing
            num_tokens = min(num_missing, budget)
            num_new = -(-(num_computed + num_tokens) // self._size) - -(-num_computed // self._size)
            if num_new > self._num_available:
                self._give_up(request)
                is_short = True
                continue
            self._acquire(num_new)
            slices.append((request, num_computed, num_tokens))
            budget -= num_tokens
        fresh = (0, 0)
        if not is_short:
            size = self._size
            outstanding = self._by_remainder[self.step % size]
            for request, num_computed, num_tokens in slices:
                outstanding += self._length(request) // size + 1 + -(num_computed + num_tokens) // size
            fresh = self._admit(slices, budget, outstanding)
        self._log_step(slices, fresh, self._num_decoding)
        self.step += 1
        self._end_prefills(slices, fresh, self.step - 1)
        self._finish_due()

    # --- decodes

    def _decode(self, max_steps: int) -> None:
        """Do as many decode steps as nothing interrupts: up to the next end, or until blocks run out."""
        step, size, counts = self.step, self._size, self._by_remainder
        ends, end = self._ends, self._end
        while end[ends[0] & REQUEST_MASK] != ends[0] >> REQUEST_BITS:  # it was preempted
            heappop(ends)
        num_steps = (ends[0] >> REQUEST_BITS) - step + 1
        if num_steps > max_steps:
            num_steps = max_steps
        rounds, rest = divmod(num_steps, size)
        at = (step - 1) % size
        num_needed = rounds * self._num_decoding + sum(counts[at : at + rest])
        if at + rest > size:
            num_needed += sum(counts[: at + rest - size])
        if num_needed > self._num_available:
            num_needed = num_steps = 0
            while (more := num_needed + counts[at]) <= self._num_available:
                num_needed = more
                num_steps += 1
                at = (at + 1) % size
        self._acquire(num_needed)
        log = self.log
        log.first.append(step)
        log.repeats.append(num_steps)
        log.num_decodes.append(self._num_decoding)
        self.step = step + num_steps
        self._finish_due()

    def _finish_due(self) -> None:
        """End the requests whose last step this was."""
        ends, step = self._ends, self.step
        if not ends or ends[0] >> REQUEST_BITS >= step:
            return
        log, stays, end, counts = self.log, self._stay, self._end, self._by_remainder
        size, interval, offsets = self._size, len(log.repeats), log.offsets
        used, leave = self._idle.used, self._idle.leave
        tail = stamp(step - 1, True, 0, ENDED, 0)
        num_ended = num_blocks = 0
        while ends and (due := ends[0]) >> REQUEST_BITS < step:
            heappop(ends)
            request = due & REQUEST_MASK
            if end[request] != due >> REQUEST_BITS:  # it was preempted
                continue
            stay = stays[request]
            offset = offsets[stay]
            num_full, rest = divmod(offset + step - 1, size)
            filled = num_full * size - offset
            last = used[request]
            if filled >= self._first[request]:
                last = stamp(filled, True, 0, STORED, request)
            leave(request, num_full, last, tail | request if rest else 0)
            num_blocks += num_full + 1 if rest else num_full
            log.ends[stay] = interval
            log.ended += (request, interval - 1)
            counts[-offset % size] -= 1
            stays[request] = -1
            end[request] = -2
            num_ended += 1
        self._num_available += num_blocks
        self._num_decoding -= num_ended
        self._num_running -= num_ended

    def _finish_prefill(self, request: int, step: int) -> None:
        """End a request whose only token the prefill has chosen."""
        num_computed = self._prompts[request] + self._outputs[request] - 1
        num_full, rest = divmod(num_computed, self._size)
        tail = self._stamp(step, ENDED) | request if rest else 0
        self._idle.leave(request, num_full, self._idle.used[request], tail)
        self._num_available += num_full + (rest > 0)
        self._num_running -= 1
        self._end[request] = -2
        self.log.ended += (request, len(self.log.repeats) - 1)

    def _last_filled(self, request: int, num_full: int, offset: int) -> int:
        """Return the stamp of the last full block of a decoding request."""
        step = num_full * self._size - offset
        if step >= self._first[request]:
            return stamp(step, True, 0, STORED, request)
        return self._idle.used[request]

    def _stamp(self, step: int, phase: int) -> int:
        """Return the stamp, less the request, of blocks used in a step that has prefills."""
        return stamp(step, True, 0, phase, 0)

    # --- admission, prefill and preemption

    def _length(self, request: int) -> int:
        """Return the tokens that a request has so far."""
        return self._prompts[request] + self._generated.get(request, 0)

    def _fits_next(self, num_acquired: int, *remainders: int) -> bool:
        """Return whether the next waiting request can be admitted; `num_acquired` blocks are needed first."""
        if self._back:
            request = self._back[-1]
        elif self._next < len(self._prompts):
            request = self._next
        else:
            return False
        if self._num_running >= self._config.max_running:
            return False
        if not self._num_running:
            return True
        num_needed = num_acquired - (-(self._length(request) + 1) // self._size)
        for remainder in remainders:
            num_needed += self._by_remainder[remainder % self._size]
        return num_needed <= self._num_available

    def _admit(self, slices: list[tuple[int, int, int]], budget: int, outstanding: int) -> tuple[int, int]:
        """Admit waiting requests while they fit, and append their slices.

        Requests that were never started, and whose prompts fit into the budget, are a range [first, end) of
        their own, which is returned.

        Args:
            budget: tokens that the step may still compute.
            outstanding: blocks that running requests still need for their next tokens.
        """
        size, max_running = self._size, self._config.max_running
        num_left = self._config.lookahead
        first = end = 0
        while num_left and budget > 0 and self.is_waiting and self._num_running < max_running:
            if not self._back and not end:
                first, end = (
                    self._next,
                    self._end_of_fresh(min(num_left, max_running - self._num_running), budget, outstanding),
                )
                if first < end:
                    num_left -= end - first
                    for length in self._prompts[first:end]:
                        budget -= length
                        outstanding += not length % size
                    self._start_fresh(end)
                    continue
            request = self._back[-1] if self._back else self._next
            length = self._length(request)
            if self._num_running and -(-(length + 1) // size) + outstanding > self._num_available:
                break
            num_left -= 1
            num_computed = self._start(request)
            num_tokens = min(length - num_computed, budget)
            self._acquire(-(-(num_computed + num_tokens) // size) - num_computed // size)
            slices.append((request, num_computed, num_tokens))
            budget -= num_tokens
            outstanding += length // size + 1 + -(num_computed + num_tokens) // size
        return first, end

    def _end_of_fresh(self, most: int, budget: int, outstanding: int) -> int:
        """Return up to which request those that were never started fit whole."""
        size, room, at = self._size, self._num_available - outstanding, self._next
        for length in self._prompts[at : at + most]:
            budget -= length
            room -= length // size + 1  # with the first block after the prompt, if it begins one
            if room < 0 or budget < 0:
                break
            at += 1
            if not budget:
                break
        return at

    def _start_fresh(self, end: int) -> None:
        """Move the requests up to `end`, which were never started, to the running ones."""
        size, first = self._size, self._next
        self._acquire(sum([-(-length // size) for length in self._prompts[first:end]]))
        self._stack.extend(range(first, end))
        self._num_running += end - first
        self._next = end

    def _start(self, request: int) -> int:
        """Move a request from the queue to the running ones; return its tokens found in the cache."""
        if self._back:
            self._back.pop()
        else:
            self._next += 1
        self._stack.append(request)
        self._num_running += 1
        num_kept = 0
        if request in self._generated:
            num_kept = self._idle.hold(request, self._stamp(self.step, HELD) | request)
        self._num_available -= num_kept
        self._begun[request] = self._length(request) - num_kept * self._size
        return num_kept * self._size

    def _end_prefills(self, slices: list[tuple[int, int, int]], fresh: tuple[int, int], step: int) -> None:
        """Record what prefills have computed; those that have their whole prompt start to decode."""
        size, stored = self._size, self._stamp(step, STORED)
        used, prompts, outputs = self._idle.used, self._prompts, self._outputs
        for request, start, num_tokens in slices:
            num_computed = start + num_tokens
            if num_computed // size > start // size:
                used[request] = stored | request
            generated = self._generated.get(request, 0)
            if num_missing := prompts[request] + generated - num_computed:
                self._begun[request] = num_missing
                continue
            del self._begun[request]
            num_left = outputs[request] - generated - 1
            if num_left:
                self._begin_stay(request, num_computed, num_left, step + 1)
            else:
                self._finish_prefill(request, step)
        for request in range(*fresh):
            num_computed = prompts[request]
            if num_computed >= size:
                used[request] = stored | request
            if (num_left := outputs[request] - 1) > 0:
                self._begin_stay(request, num_computed, num_left, step + 1)
            else:
                self._finish_prefill(request, step)

    def _begin_stay(self, request: int, num_computed: int, num_left: int, first: int) -> None:
        """Let a request decode from step `first` on, for `num_left` steps."""
        log = self.log
        offset = num_computed + 1 - first
        self._stay[request] = len(log.requests)
        self._first[request] = first
        log.requests.append(request)
        log.begins.append(len(log.repeats))
        log.ends.append(-1)
        log.offsets.append(offset)
        self._num_decoding += 1
        self._by_remainder[-offset % self._size] += 1
        end = self._end[request] = first + num_left - 1
        heappush(self._ends, end << REQUEST_BITS | request)

    def _preempt(self) -> None:
        """Acquire the blocks of the next decode step; preempt the last requests until they suffice."""
        remainder = (self.step - 1) % self._size
        num_needed = self._by_remainder[remainder]
        while num_needed:
            num_now = min(num_needed, self._num_available)
            self._acquire(num_now)
            num_needed -= num_now
            if not num_needed:
                return
            stack = self._stack
            while self._stay[stack[-1]] < 0 and stack[-1] not in self._begun:
                stack.pop()
            request = stack[-1]
            stay = self._stay[request]
            if stay >= 0 and -self.log.offsets[stay] % self._size == remainder:
                num_needed -= 1
            self._give_up(request)

    def _give_up(self, request: int) -> None:
        """Preempt the last running request: it waits again, and its full blocks stay in the cache."""
        stack = self._stack
        while stack[-1] != request:  # those above it have ended
            stack.pop()
        stack.pop()
        size, stay, log = self._size, self._stay[request], self.log
        used = self._idle.used[request]
        if stay >= 0:
            offset = log.offsets[stay]
            num_computed = offset + self.step - 1
            used = self._last_filled(request, num_computed // size, offset)
            self._by_remainder[-offset % size] -= 1
            self._num_decoding -= 1
            log.ends[stay] = len(log.repeats)
            self._stay[request] = -1
            self._end[request] = -1
            self._generated[request] = num_computed + 1 - self._prompts[request]
        else:
            num_computed = self._length(request) - self._begun.pop(request)
            self._generated.setdefault(request, 0)
        num_full = num_computed // size
        is_partial = num_full * size < num_computed
        self._num_free += is_partial
        self._num_available += num_full + is_partial
        self._idle.leave(request, num_full, used, 0)
        self._num_running -= 1
        self._back.append(request)
        self.num_preemptions += 1

    def _acquire(self, num_blocks: int) -> None:
        self._num_available -= num_blocks
        self._num_free -= num_blocks
        if self._num_free < 0:
            self._idle.evict(-self._num_free)
            self._num_free = 0

    def _log_step(self, slices: list[tuple[int, int, int]], fresh: tuple[int, int], num_decodes: int) -> None:
        """Log one step with these prefills, as (request, tokens before, tokens computed), and those of a
        range of whole prompts.
        """
        log = self.log
        interval = len(log.repeats)
        lengths = self._prompts[fresh[0] : fresh[1]]
        num, tokens, longest = len(lengths), sum(lengths), max(lengths, default=0)
        pairs = (sum([length * length for length in lengths]) + tokens) // 2
        for request, start, num_tokens in slices:
            if num_tokens == 1 and start >= self._prompts[request]:
                log.single += (interval, start + 1)
                continue
            num += 1
            tokens += num_tokens
            if num_tokens > longest:
                longest = num_tokens
            pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
        if num:
            log.prefills += (interval, num, tokens, longest, pairs)
        log.first.append(self.step)
        log.repeats.append(1)
        log.num_decodes.append(num_decodes)
