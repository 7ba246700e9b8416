"""An emulated LLM instance: the simulator's instance, with its steps in real time.

Requests of which each token is wanted at once (streams) end jumps of steps at every token. The others run
whole jumps, so that they cost little however many they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.cluster.kv_events import KVEvent
from stretto.deployment import Engine
from stretto.emulate.answers import WrittenAnswer
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.lag import LagMeter
from stretto.emulate.replica_counts import ReplicaCounts
from stretto.emulate.running_request import RunningRequest
from stretto.messages import Event, LLMReport
from stretto.observer import StepsDone
from stretto.sim.llm_instance import LLMInstance
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import SyntheticOutput
from stretto.tasks import Decode, Done, LLMEvent, LLMTask, Piece

ENGINE = Engine("llm", contract="llm", timeout_s=None)
_SHARED = "all"
"""Name of the query of all requests: a server knows no queries, so no prefix is ever released."""


class EmulatedLLM:
    """One emulated LLM instance with its scheduler, its prefix cache and its counts.

    Its methods are called from the event loop of its clock.

    Args:
        number: number of the replica in its process.
        on_kv: called with the changes of the prefix cache.
    """

    def __init__(
        self,
        model: SimulatedModel,
        clock: EmulatedClock,
        lag: LagMeter,
        number: int = 0,
        on_kv: Callable[[Sequence[KVEvent]], None] = lambda _: None,
    ) -> None:
        self.model = model
        self.counts = ReplicaCounts()
        self.on_salt: Callable[[str], None] = lambda _: None
        """Called with the salt of each request."""
        self._clock = clock
        self._lag = lag
        self._number = number
        self._on_kv = on_kv
        self._slowness = 1.0
        self._running: dict[int, RunningRequest] = {}
        self._num_tasks = 0
        self._instance = self._fresh()

    # --- requests

    def submit(
        self,
        prompt: list[int],
        answer: WrittenAnswer,
        max_tokens: int,
        heard: Callable[[LLMEvent], None],
        *,
        is_streamed: bool,
        priority: int | None = None,
        salt: str = "",
        lost: Callable[[], None] = lambda: None,
    ) -> int:
        """Queue a request and return its number; `heard` is called with its events, and `lost` if the replica
        forgets it before it has ended.

        A `Piece` comes for each token of a streamed answer, and `Done` at the end.

        Args:
            priority: number by which waiting requests are sorted, smallest first; None for first come, first
                served.

        Raises:
            CapacityError: the request would not fit even if it were alone.
        """
        self._clock.arrive()
        self.on_salt(salt)
        number = self._num_tasks
        self._num_tasks += 1
        num_tokens = len(answer.ids)
        task = LLMTask(number, _SHARED, "", (), Decode(max_tokens=max(max_tokens, 1)), tenant=salt)
        said: SyntheticOutput | None
        if not num_tokens:
            said = None
        elif is_streamed:
            said = SyntheticOutput(list(answer.pieces), num_tokens, tuple(range(1, num_tokens + 1)))
        else:
            said = SyntheticOutput(answer.text, num_tokens)
        now_s = self._clock.now_s
        rank = () if priority is None else (float(priority), now_s)
        self._running[number] = RunningRequest(
            heard, lost, now_s, len(prompt), num_tokens, answer.finish, is_streamed, now_s
        )
        try:
            self._instance.add(task, prompt, said, list(answer.ids), rank)
        except BaseException:
            del self._running[number]
            raise
        return number

    def cancel(self, number: int) -> None:
        """Stop a request, of which no further event comes. Unknown and ended requests are passed over."""
        if self._running.pop(number, None) is not None:
            self._clock.arrive()
            self._instance.cancel(number)

    def num_cached(self, number: int) -> int:
        """Return how many tokens of a running request's prompt were found in the cache, in whole blocks."""
        return self.whole_blocks(self._instance.num_cached(number))

    def empty(self) -> None:
        """Forget all requests and the whole prefix cache, as a restart does."""
        self._clock.arrive()
        self._instance.kill()
        self._instance = self._fresh()
        forgotten = list(self._running.values())
        self._running.clear()
        for request in forgotten:
            request.lost()

    def clear_cache(self) -> None:
        """Evict all prefixes that no running request holds."""
        self._clock.arrive()
        self._instance.scheduler.cache.clear()
        if events := self._instance.scheduler.cache.take_events():
            self._on_kv(events)

    def slow_down(self, factor: float) -> None:
        """Let each step that begins from now on take `factor` times its predicted time."""
        self._clock.arrive()
        self._slowness = factor
        self._instance.replan()

    # --- load

    @property
    def num_running(self) -> int:
        """Number of requests in the batch of the present step."""
        return len(self._instance.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait to join the batch."""
        return len(self._instance.scheduler.waiting)

    @property
    def kv_used(self) -> float:
        """Share of the KV blocks that running requests hold."""
        scheduler = self._instance.scheduler
        return 1.0 - scheduler.cache.num_available / scheduler.config.num_blocks

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions since the instance was started empty."""
        return self._instance.scheduler.num_preemptions

    @property
    def slipped_s(self) -> float:
        """Real seconds by which the clock has slipped."""
        return self._clock.slipped_s

    # --- what the simulated instance asks of its surroundings

    @property
    def now_s(self) -> float:
        """Present time, in emulated seconds."""
        return self._clock.now_s

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the time `at_s`; what it reports goes to the requests."""
        self._clock.at(at_s, lambda: self._report(happen()), self._number)

    def at_last(self, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the present time, after all else of this time."""
        self._clock.at_last(lambda: self._report(happen()), self._number)

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """Return the factor by which steps are slower now than predicted."""
        return self._slowness

    def may_be_slow(self, engine: str, instance: int) -> bool:
        """Return that the instance may be slowed down, as a fault on request."""
        return True

    def break_down(self, engine: str, instance: int) -> None:
        """Fail: requests are checked before they come here, so nothing takes the instance down."""
        raise AssertionError("an emulated LLM instance broke down")

    def on_steps(self, steps: StepsDone) -> None:
        """Count steps."""
        self.counts.num_steps += len(steps.ends_s)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent]) -> None:
        """Pass on changes of the prefix cache."""
        self._on_kv(events)

    def _fresh(self) -> LLMInstance:
        return LLMInstance(ENGINE, self._number, self, self.model)

    def _report(self, events: Sequence[Event]) -> None:
        now_s = self._clock.now_s
        num_parts, waited_s = 0, 0.0
        for report in events:
            assert isinstance(report, LLMReport)
            request = self._running.get(report.event.task)
            if request is not None:
                if isinstance(report.event, Piece if request.is_streamed else Done):  # what clients see
                    num_parts += 1
                    waited_s += now_s - (request.last_s if request.is_streamed else request.arrived_s)
                if isinstance(report.event, Done):
                    del self._running[report.event.task]
                num_cached = request.count(report.event, now_s, self.counts)
                self.counts.num_cached_tokens += self.whole_blocks(num_cached)
                request.heard(report.event)
        if num_parts:
            speed, real_s = self._clock.speed, self._clock.real_s()
            self._lag.note(real_s / speed, (real_s - now_s) / speed, num_parts, waited_s / speed)

    def whole_blocks(self, num_tokens: int) -> int:
        """Return how many of the leading `num_tokens` fill whole KV blocks: those that vLLM would share."""
        size = self.model.scheduler.block_tokens
        return num_tokens // size * size
