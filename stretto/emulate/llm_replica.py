"""An emulated LLM instance: the simulator's instance, with its steps in real time.

Requests run whole jumps of steps, so that they cost little however many they are. Where each token is wanted
at once (streams), `StepTicker` tells of it at the end of its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stretto.cluster.kv_events import KVEvent
from stretto.emulate.answers import WrittenAnswer
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.lag import LagMeter
from stretto.emulate.replica_counts import ReplicaCounts
from stretto.emulate.running_request import RunningRequest
from stretto.emulate.step_ticker import StepTicker
from stretto.emulate.surroundings import EmulatedSurroundings
from stretto.llm.local_scheduler import LocalScheduler
from stretto.model.replica import Engine
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sim.llm_instance import LLMInstance
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import SyntheticOutput

ENGINE = Engine("llm", contract="llm", timeout_s=None)
_SHARED = "all"
"""Name of the query of all requests: a server knows no queries, so no prefix is ever released."""


class EmulatedLLM:
    """One emulated LLM instance with its scheduler, its prefix cache and its counts.

    Its methods are called from the event loop of its clock.

    Args:
        number: number of the replica in its process.
        on_kv: called with the changes of the prefix cache.
        arrival_s: emulated seconds of a request's way from the server's port to the instance.
    """

    def __init__(
        self,
        model: SimulatedModel,
        clock: EmulatedClock,
        lag: LagMeter,
        number: int = 0,
        on_kv: Callable[[Sequence[KVEvent]], None] = lambda _: None,
        arrival_s: float = 0.0,
    ) -> None:
        self.model = model
        self.counts = ReplicaCounts()
        self.on_salt: Callable[[str], None] = lambda _: None
        """Called with the salt of each request."""
        self.clock = clock
        self._lag = lag
        self._on_kv = on_kv
        self._arrival_s = arrival_s
        self._around = EmulatedSurroundings(clock, number, self.counts, on_kv, self._report, self._follow)
        self._running: dict[int, RunningRequest] = {}
        self._num_tasks = 0
        self._new_instance = partial(LLMInstance, ENGINE, number, self._around, model)
        self._instance = self._new_instance()
        self._ticker = StepTicker(clock, self._tick)

    # --- requests

    async def wait_arrival(self) -> None:
        """Wait as long as a request is on its way from the server's port to the instance."""
        if self._arrival_s:
            await self.clock.wait(self._arrival_s)

    async def receive_kv(self, prompt: list[int], salt: str, token_s: float) -> None:
        """Wait for the KV of a prompt that another server has computed, and put it into the cache.

        Args:
            token_s: emulated seconds for each token that is not there already.
        """
        await self.clock.wait(token_s * self._instance.num_missing(prompt, salt))
        self.clock.arrive()
        self._instance.receive(prompt, salt, _SHARED)

    def submit(
        self,
        prompt: list[int],
        answer: WrittenAnswer,
        max_tokens: int,
        heard: Callable[[LLMEvent], None],
        *,
        on_token: Callable[[int], None] | None = None,
        priority: int | None = None,
        salt: str = "",
        lost: Callable[[], None] = lambda: None,
    ) -> int:
        """Queue a request and return its number; `heard` is called with its events, and `lost` if the replica
        forgets it before it has ended.

        Args:
            on_token: called with the number of each token of the answer when it exists, before `heard` is
                called with `Done`; None if nobody wants single tokens.
            priority: number by which waiting requests are sorted, smallest first; None for first come, first
                served.

        Raises:
            CapacityError: the request would not fit even if it were alone.
        """
        self.clock.arrive()
        self.on_salt(salt)
        number = self._num_tasks
        self._num_tasks += 1
        num_tokens = len(answer.ids)
        task = LLMTask(number, _SHARED, "", (), Decode(max_tokens=max(max_tokens, 1)), tenant=salt)
        said = SyntheticOutput(answer.text, num_tokens) if num_tokens else None
        now_s = self.clock.now_s
        rank = () if priority is None else (float(priority), now_s)
        request = RunningRequest(heard, on_token, lost, now_s, len(prompt), num_tokens, answer.finish, now_s)
        sequence = self._instance.add(task, prompt, said, list(answer.ids), rank)
        self._running[number] = request
        if on_token is not None:
            self._ticker.add(sequence, request)
        return number

    def cancel(self, number: int) -> None:
        """Stop a request, of which no further event comes. Unknown and ended requests are passed over."""
        request = self._running.pop(number, None)
        if request is not None:
            self._ticker.drop(request)
            self.clock.arrive()
            self._instance.cancel(number)

    def num_cached(self, number: int) -> int:
        """Return how many tokens of a running request's prompt were found in the cache, in whole blocks."""
        return self._instance.num_cached(number)

    def empty(self) -> None:
        """Forget all requests and the whole prefix cache, as a restart does."""
        self.clock.arrive()
        self._instance.kill()
        self._instance = self._new_instance()
        self._ticker.clear()
        forgotten = list(self._running.values())
        self._running.clear()
        for request in forgotten:
            request.lost()

    def clear_cache(self) -> None:
        """Evict all prefixes that no running request holds."""
        self.clock.arrive()
        self.scheduler.cache.clear()
        if events := self.scheduler.cache.take_events():
            self._on_kv(events)

    def slow_down(self, factor: float) -> None:
        """Let each step that begins from now on take `factor` times its predicted time."""
        self.clock.arrive()
        self._around.factor = factor
        self._instance.replan()

    # --- load

    @property
    def scheduler(self) -> LocalScheduler:
        """The scheduler of the present instance, with the requests that run and wait."""
        return self._instance.scheduler

    @property
    def kv_used(self) -> float:
        """Share of the KV blocks that running requests hold."""
        return 1.0 - self.scheduler.cache.num_available / self.scheduler.config.num_blocks

    def _follow(self) -> None:
        if self._instance.jump is not None:
            self._ticker.follow(self._instance.jump)

    def _tick(self, streams: Sequence[tuple[RunningRequest, int]], since_s: float | None) -> None:
        """Report a token to each of `streams`, which are requests with the number of their token.

        Args:
            since_s: time of the last report to all of them; None if they differ in it.
        """
        now_s, counts = self.clock.now_s, self.counts
        begun_s = self.clock.real_s()
        num_parts = len(streams)
        counts.num_output_tokens += num_parts
        if since_s is None:
            waited_s = sum(now_s - request.last_s for request, _ in streams)
            for request, _ in streams:
                request.count_report(now_s, counts)
        else:
            waited_s = (now_s - since_s) * num_parts
            counts.between_tokens_s.observe(now_s - since_s, num_parts)
        for request, number in streams:
            request.last_s = now_s
            assert request.on_token is not None
            request.on_token(number)
        self._note_lag(begun_s, num_parts, waited_s)

    def _report(self, events: Sequence[Event]) -> None:
        now_s, begun_s = self.clock.now_s, self.clock.real_s()
        num_ended, waited_s = 0, 0.0
        for report in events:
            assert isinstance(report, LLMReport)
            event = report.event
            request = self._running.get(event.task)
            if request is None or (request.is_streamed and isinstance(event, Piece)):  # told by its ticks
                continue
            if isinstance(event, Done):
                del self._running[event.task]
                if request.is_streamed:
                    self._ticker.drop(request)
                else:
                    num_ended += 1
                    waited_s += now_s - request.arrived_s
            num_cached = request.count(event, now_s, self.counts)
            self.counts.num_cached_tokens += num_cached
            request.heard(event)
        if num_ended:
            self._note_lag(begun_s, num_ended, waited_s)

    def _note_lag(self, begun_s: float, num_parts: int, waited_s: float) -> None:
        """Count parts that were due now, and went out from `begun_s` of the real clock up to this moment."""
        speed, due_s, real_s = self.clock.speed, self.clock.now_s, self.clock.real_s()
        first_late_s, last_late_s = (begun_s - due_s) / speed, (real_s - due_s) / speed
        self._lag.note(real_s / speed, first_late_s, last_late_s, num_parts, waited_s / speed)
