"""A fast model of the local scheduler of one LLM instance: the same steps, without tokens and block tables.

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

from stretto.errors import CapacityError, ConfigError
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.idle_blocks import ENDED, HELD, MAX_REQUESTS, STORED, IdleBlocks, stamp
from stretto.planner.step_log import StepLog

_SHIFT = 24
_MASK = (1 << _SHIFT) - 1


class FastScheduler:
    """A fast simulation of one LLM instance, step by step or many steps at once.

    Attributes:
        log: what was done so far.
        num_preemptions: number of preemptions so far.
        step: number of decode steps so far (with policy `chunked`: of all steps).

    Raises:
        ConfigError: the configuration cannot work.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        if config.policy not in ("chunked", "prefill_first"):
            raise ConfigError(f"policy must be chunked or prefill_first, got {config.policy!r}")
        config.check()
        self.log = StepLog()
        self.num_preemptions = 0
        self.step = 0
        self._config = config
        self._size = config.block_tokens
        self._is_chunked = config.policy == "chunked"
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
        self._end: list[int] = []  # last decode step of each request on a stay
        self._ends: list[int] = []  # heap of (end, request)
        self._begun: dict[int, int] = {}  # tokens computed of each request in mid-prefill, in order
        self._num_prefill_steps = 0

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
        self._prompts += prompts
        self._outputs += outputs
        if len(self._prompts) > MAX_REQUESTS:
            raise ConfigError(f"at most {MAX_REQUESTS} requests can be simulated, got {len(self._prompts)}")
        num = len(prompts)
        self._stay += [-1] * num
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
        if self._is_chunked:
            self._chunked(max_steps)
        elif not self._prefill_whole():
            is_short = self._by_remainder[(self.step - 1) % self._size] > self._num_available
            if is_short:
                self._preempt()
            self._decode(1 if is_short else max_steps, is_first_acquired=is_short)

    # --- policy `chunked`

    def _chunked(self, max_steps: int) -> None:
        num_needed = self._by_remainder[(self.step - 1) % self._size]
        is_short = num_needed > self._num_available
        if is_short:
            self._preempt()
        elif not self._begun and not self._fits_next(num_needed, self.step):
            self._decode(max_steps, is_first_acquired=False)
            return
        else:
            self._acquire(num_needed)
        budget = self._config.max_batch_tokens - self._num_decoding
        slices: list[tuple[int, int, int]] = []
        for request, num_computed in list(self._begun.items()):
            num_tokens = min(self._length(request) - num_computed, budget)
            num_new = -(-(num_computed + num_tokens) // self._size) - -(-num_computed // self._size)
            if num_new > self._num_available:
                self._give_up(request)
                is_short = True
                continue
            self._acquire(num_new)
            slices.append((request, num_computed, num_tokens))
            budget -= num_tokens
        if not is_short:
            self._start_chunks(slices, budget)
        self._log_step(slices, self._num_decoding)
        self.step += 1
        self._end_prefills(slices, self.step - 1, is_decode=True)
        self._finish_due()

    def _start_chunks(self, slices: list[tuple[int, int, int]], budget: int) -> None:
        """Admit requests while they fit, and append their slices."""
        size = self._size
        outstanding = self._by_remainder[self.step % size]
        outstanding += sum(
            self._length(request) // size + 1 - -(-(computed + num_tokens) // size)
            for request, computed, num_tokens in slices
        )
        for _ in range(self._config.lookahead):
            if budget <= 0 or not self.is_waiting or self._num_running >= self._config.max_running:
                return
            request = self._back[-1] if self._back else self._next
            length = self._length(request)
            if self._num_running and -(-(length + 1) // size) + outstanding > self._num_available:
                return
            num_computed = self._start(request, stamp(self.step, True, 0, HELD, request))
            num_tokens = min(length - num_computed, budget)
            self._acquire(-(-(num_computed + num_tokens) // size) - num_computed // size)
            slices.append((request, num_computed, num_tokens))
            budget -= num_tokens
            outstanding += length // size + 1 - -(-(num_computed + num_tokens) // size)

    # --- policy `prefill_first`

    def _prefill_whole(self) -> bool:
        """Do a step of whole prefills; return False, and do nothing, if there are none."""
        if not self._begun and not self._fits_next(0, self.step, self.step - 1):
            return False
        size = self._size
        budget = self._config.max_batch_tokens
        slices: list[tuple[int, int, int]] = []
        outstanding = self._by_remainder[self.step % size] + self._by_remainder[(self.step - 1) % size]
        for request, num_computed in self._begun.items():
            length = self._length(request)
            if budget > 0 and (length - num_computed <= budget or not slices):
                slices.append((request, num_computed, length - num_computed))
                budget -= length - num_computed
                self._acquire(-(-length // size) - num_computed // size)
                outstanding += length // size + 1 - -(-length // size)
            else:
                outstanding += length // size + 1 - num_computed // size
        max_running = self._config.max_running
        for _ in range(self._config.lookahead):
            if budget <= 0 or not self.is_waiting or self._num_running >= max_running:
                break
            request = self._back[-1] if self._back else self._next
            length = self._length(request)
            if self._num_running and -(-(length + 1) // size) + outstanding > self._num_available:
                break
            num_computed = self._start(
                request, stamp(self.step, False, self._num_prefill_steps, HELD, request)
            )
            num_tokens = length - num_computed
            if num_tokens <= budget or not slices:
                slices.append((request, num_computed, num_tokens))
                budget -= num_tokens
                self._acquire(-(-length // size) - num_computed // size)
                outstanding += length // size + 1 - -(-length // size)
            else:
                outstanding += length // size + 1 - num_computed // size
        self._log_step(slices, 0)
        self._end_prefills(slices, self.step, is_decode=False)
        self._num_prefill_steps += 1
        return True

    # --- decodes

    def _decode(self, max_steps: int, *, is_first_acquired: bool) -> None:
        """Do as many decode steps as nothing interrupts: up to the next end, or until blocks run out."""
        step, size, counts = self.step, self._size, self._by_remainder
        ends, end = self._ends, self._end
        while end[ends[0] & _MASK] != ends[0] >> _SHIFT:  # it was preempted
            heappop(ends)
        num_steps = (ends[0] >> _SHIFT) - step + 1
        if num_steps > max_steps:
            num_steps = max_steps
        if not is_first_acquired:
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
        ends, end, step = self._ends, self._end, self.step
        while ends and ends[0] >> _SHIFT < step:
            due = heappop(ends)
            request = due & _MASK
            if end[request] == due >> _SHIFT:
                self._finish(request, stamp(step - 1, True, 0, ENDED, request))

    def _finish(self, request: int, tail: int) -> None:
        size, log = self._size, self.log
        num_computed = self._prompts[request] + self._outputs[request] - 1
        num_full = num_computed // size
        stay = self._stay[request]
        used = self._idle.used[request]
        if stay >= 0:
            offset = log.offsets[stay]
            log.ends[stay] = len(log.repeats)
            self._stay[request] = -1
            self._num_decoding -= 1
            self._by_remainder[-offset % size] -= 1
            used = self._last_filled(request, num_full, stay)
        log.ended.append((request, len(log.repeats) - 1))
        self._num_running -= 1
        self._end[request] = -2
        has_tail = num_full * size < num_computed
        self._num_available += num_full + has_tail
        self._idle.leave(request, num_full, used, tail if has_tail else 0)

    def _last_filled(self, request: int, num_full: int, stay: int) -> int:
        """Return the stamp of the last full block of a decoding request."""
        step = num_full * self._size - self.log.offsets[stay]
        first = self._first_step(stay)
        return stamp(step, True, 0, STORED, request) if step >= first else self._idle.used[request]

    def _first_step(self, stay: int) -> int:
        """Return the decode step with which a stay begins."""
        request = self.log.requests[stay]
        generated = self._generated.get(request, 0)
        return self._prompts[request] + generated + 1 - self.log.offsets[stay]

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

    def _start(self, request: int, held: int) -> int:
        """Move a request from the queue to the running ones; return its tokens found in the cache."""
        if self._back:
            self._back.pop()
        else:
            self._next += 1
        self._stack.append(request)
        self._num_running += 1
        num_kept = self._idle.hold(request, held) if request in self._generated else 0
        self._num_available -= num_kept
        self._begun[request] = num_kept * self._size
        return num_kept * self._size

    def _end_prefills(self, slices: list[tuple[int, int, int]], step: int, *, is_decode: bool) -> None:
        """Record what prefills have computed; those that have their whole prompt start to decode."""
        log, size = self.log, self._size
        decodes_from = step + 1 if is_decode else step
        begin = len(log.repeats)
        for request, start, num_tokens in slices:
            num_computed = start + num_tokens
            if num_computed // size > start // size:
                self._idle.used[request] = stamp(
                    step, is_decode, 0 if is_decode else self._num_prefill_steps, STORED, request
                )
            generated = self._generated.get(request, 0)
            if num_computed < self._prompts[request] + generated:
                self._begun[request] = num_computed
                continue
            del self._begun[request]
            num_left = self._outputs[request] - generated - 1
            if not num_left:
                continue
            offset = num_computed + 1 - decodes_from
            self._stay[request] = len(log.requests)
            log.requests.append(request)
            log.begins.append(begin)
            log.ends.append(-1)
            log.offsets.append(offset)
            self._num_decoding += 1
            self._by_remainder[-offset % size] += 1
            end = self._end[request] = decodes_from + num_left - 1
            heappush(self._ends, end << _SHIFT | request)
        ended = [
            request
            for request, start, num_tokens in slices
            if self._stay[request] < 0 and request not in self._begun
        ]
        if ended and is_decode:
            self._finish_due()  # decodes end before prefills
        for request in ended:
            prefill = 0 if is_decode else self._num_prefill_steps
            self._finish(request, stamp(step, is_decode, prefill, ENDED, request))

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
            used = self._last_filled(request, num_computed // size, stay)
            self._by_remainder[-offset % size] -= 1
            self._num_decoding -= 1
            log.ends[stay] = len(log.repeats)
            self._stay[request] = -1
            self._end[request] = -1
            self._generated[request] = num_computed + 1 - self._prompts[request]
        else:
            num_computed = self._begun.pop(request)
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

    def _log_step(self, slices: list[tuple[int, int, int]], num_decodes: int) -> None:
        """Log one step with these prefills, as (request, tokens before, tokens computed)."""
        log = self.log
        interval = len(log.repeats)
        num = tokens = longest = pairs = 0
        for request, start, num_tokens in slices:
            if num_tokens == 1 and start >= self._prompts[request]:
                log.single.append((interval, start + 1))
                continue
            num += 1
            tokens += num_tokens
            if num_tokens > longest:
                longest = num_tokens
            pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
        if num:
            log.prefills.append((interval, num, tokens, longest, pairs))
        log.first.append(self.step)
        log.repeats.append(1)
        log.num_decodes.append(num_decodes)
