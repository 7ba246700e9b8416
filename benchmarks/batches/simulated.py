"""A batch beside people before simulated servers, in virtual time.

The state machine of the router is that of production, and each server is the simulator's LLM instance, which
takes whatever it is sent in order of arrival, as an unmodified server does. The router knows nothing of the
servers' speed beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.table import PLACEMENTS
from stretto.cluster.prompt_keys import BYTES
from stretto.costs.known_costs import llm_device, llm_model
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.replica import Engine
from stretto.model.tasks import Decode, Done, LLMTask
from stretto.model.values import Segment
from stretto.router.config import RouterConfig
from stretto.router.messages import RoutedRequest, RouterAction, Send, Ticket, Withdraw, WorkerUsage
from stretto.router.offline_at_workers import USUAL_RULES, OfflineRules
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import StepsDone
from stretto.sim.llm_instance import LLMInstance
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import SyntheticOutput, filler, made_up_token_ids
from stretto.sim.virtual_time import VirtualTime

_MODEL = "m"
_ENGINE = Engine("llm", contract="llm", timeout_s=None)
_KV_TOKENS = 100_000
_BLOCK_TOKENS = 16
_LINES_WAITING = 8
"""Lines that wait at the router."""


@dataclass(frozen=True, slots=True)
class Load:
    """People, a batch, and the servers.

    Attributes:
        people: each asks again when answered, after a pause.
        prompt, output: shortest and longest new message of a person, and answer, in tokens.
        turns: questions of a conversation, each with all before it in its prompt.
        pause_s: mean seconds between an answer and the next question; 0 for none.
        line_prompt, line_output: tokens of a line.
        with_batch: whether there is a batch.
        device, model: names of costs.
        speed: emulated seconds in a second.
    """

    people: int
    servers: int
    prompt: tuple[int, int] = (20, 60)
    output: tuple[int, int] = (24, 24)
    turns: int = 1
    pause_s: float = 0.0
    line_prompt: int = 280
    line_output: int = 64
    with_batch: bool = True
    device: str = "A100-80G"
    model: str = "llama-2-7b"
    speed: float = 1.0
    warm_s: float = 20.0
    end_s: float = 80.0
    placement: str = "stretto"


@dataclass(slots=True)
class Found:
    """What was measured after the warm-up: seconds of people's requests, and lines that were answered."""

    seconds: list[float] = field(default_factory=list)
    num_lines: int = 0
    num_withdrawn: int = 0
    num_tokens: int = 0
    length_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of people's prompts, without what was cached, and answers in a second."""
        return self.num_tokens / self.length_s

    @property
    def lines_per_s(self) -> float:
        """Lines that were answered in a second."""
        return self.num_lines / self.length_s


@dataclass(slots=True)
class _Asked:
    """A request: of a person, or a line."""

    tokens: list[int]
    num_output: int
    arrived_s: float
    person: int | None
    worker: int | None = None
    task: int | None = None


class _Surroundings:
    """What the servers find around them."""

    def __init__(self, time: VirtualTime, speed: float) -> None:
        self._time, self._speed = time, speed

    @property
    def now_s(self) -> float:
        return self._time.now_s * self._speed

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        self._time.at(at_s / self._speed, happen, rank)

    def at_last(self, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        self._time.at_last(happen, rank)

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        return 1.0

    def may_be_slow(self, engine: str, instance: int) -> bool:
        return False

    def break_down(self, engine: str, instance: int) -> None:
        raise AssertionError("a simulated server broke down")

    def on_steps(self, steps: StepsDone) -> None:
        pass

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent]) -> None:
        pass


class Run:
    """One run. `rules` say how many lines run at servers."""

    def __init__(self, load: Load, seed: int, rules: OfflineRules = USUAL_RULES) -> None:
        self.found = Found(length_s=load.end_s - load.warm_s)
        self._load = load
        self._time = VirtualTime()
        self._draw = [Random(f"{seed}/{person}") for person in range(load.people)]
        config = RouterConfig(placement=load.placement, max_waiting=10**6, max_wait_s=1e6)
        self.router = RouterState(config, PLACEMENTS[load.placement](), offline=rules)
        model = _simulated_model(load)
        self._servers: dict[int, LLMInstance] = {}
        for number in range(load.servers):
            worker = self.router.membership.add(WorkerConfig(url=f"http://s{number}", kv_tokens=_KV_TOKENS))
            self.router.membership.check_passed(worker.id, {_MODEL: {}}, None, 0.0)
            around = _Surroundings(self._time, load.speed)
            self._servers[worker.id] = LLMInstance(_ENGINE, worker.id, around, model)
        self._asked: dict[Ticket, _Asked] = {}
        self._by_task: dict[int, Ticket] = {}
        self._num_tasks = self._num_lines = self._num_waiting = 0
        self._histories = [""] * load.people
        self._turns = [0] * load.people
        self._due_s = float("inf")

    def run(self) -> Found:
        """Run to the end."""
        load, time = self._load, self._time
        for person in range(load.people):
            time.at(self._draw[person].random() * 2.0, lambda one=person: self._ask(one))  # type: ignore[misc]
        if load.with_batch:
            time.at(5.0, self._more_lines)
        while time.now_s < load.end_s:
            events = time.next_events()
            for event in events:
                assert isinstance(event, LLMReport)
                if isinstance(event.event, Done):
                    self._answered(event.event)
        return self.found

    # --- people and lines

    def _ask(self, person: int) -> Sequence[Event]:
        load, draw = self._load, self._draw[person]
        if self._turns[person] % load.turns == 0:
            self._histories[person] = ""
        turn = f"{person}.{self._turns[person]}"
        self._turns[person] += 1
        num_new = draw.randint(*load.prompt)
        self._histories[person] += filler(f"q{turn}", num_new) + "?"
        self._send(self._histories[person], draw.randint(*load.output), person)
        return ()

    def _more_lines(self) -> Sequence[Event]:
        load = self._load
        while self._num_waiting < _LINES_WAITING:
            self._num_waiting += 1
            self._num_lines += 1
            self._send(filler(f"line{self._num_lines}", load.line_prompt), load.line_output, None)
        return ()

    def _send(self, text: str, num_output: int, person: int | None) -> None:
        key = PromptKey(BYTES.hashes((Segment(text),), _MODEL), BYTES.block_tokens)
        tokens, now_s = made_up_token_ids(text), self._time.now_s
        request = RoutedRequest(
            model=_MODEL,
            num_tokens=len(tokens),
            max_tokens=num_output,
            key=key,
            objective="offline" if person is None else "throughput",
        )
        ticket, actions = self.router.arrive(request, now_s)
        self._asked[ticket] = _Asked(tokens, num_output, now_s, person)
        self._act(actions)

    def _answered(self, done: Done) -> None:
        if (ticket := self._by_task.pop(done.task, None)) is None:
            return
        asked, now_s, load = self._asked.pop(ticket), self._time.now_s, self._load
        is_counted = now_s >= load.warm_s
        usage = done.usage
        counts = WorkerUsage(
            usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens, is_older_api=True
        )
        self._act(self.router.answered(ticket, 200, counts, now_s))
        if (person := asked.person) is None:
            self.found.num_lines += is_counted
            return
        if is_counted:
            self.found.seconds.append(now_s - asked.arrived_s)
            new_tokens = usage.num_prompt_tokens - usage.num_cached_tokens
            self.found.num_tokens += new_tokens + usage.num_output_tokens
        self._histories[person] += filler(f"a{person}.{self._turns[person]}", asked.num_output)
        pause_s = self._draw[person].expovariate(1 / load.pause_s) if load.pause_s else 0.002
        self._time.at(now_s + pause_s, lambda: self._ask(person))

    # --- the driver of the router

    def _act(self, actions: Sequence[RouterAction]) -> None:
        for action in actions:
            if isinstance(action, Withdraw):
                asked = self._asked[action.ticket]
                assert asked.worker is not None
                assert asked.task is not None
                self._servers[asked.worker].cancel(asked.task)
                del self._by_task[asked.task]
                self.found.num_withdrawn += 1
                self._num_waiting += 1
        for action in actions:
            if isinstance(action, Send):
                self._begin(action)
        due_s = self.router.timers.next_due_s
        if due_s is not None and due_s < self._due_s:
            self._due_s = due_s
            self._time.at(max(due_s, self._time.now_s), self._expire)
        if self._load.with_batch and self._num_waiting < _LINES_WAITING and self._time.now_s >= 5.0:
            self._time.at(self._time.now_s, self._more_lines)

    def _begin(self, send: Send) -> None:
        asked = self._asked[send.ticket]
        self._num_waiting -= asked.person is None
        asked.worker, asked.task = send.worker, self._num_tasks
        self._num_tasks += 1
        self._by_task[asked.task] = send.ticket
        said = SyntheticOutput(filler(f"t{asked.task}", asked.num_output), asked.num_output)
        task = LLMTask(asked.task, "all", "", (), Decode(max_tokens=asked.num_output))
        self._servers[send.worker].add(task, asked.tokens, said, made_up_token_ids(str(said.value)), ())

    def _expire(self) -> Sequence[Event]:
        self._due_s = float("inf")
        self._act(self.router.timers.expire(self._time.now_s))
        return ()


def _simulated_model(load: Load) -> SimulatedModel:
    preset = llm_device(load.device)
    scheduler = SchedulerConfig(
        _KV_TOKENS // _BLOCK_TOKENS,
        _BLOCK_TOKENS,
        max_running=256,
        max_batch_tokens=2048,
        num_groups=1,
        level_s=1e-6,
        shares_partial_blocks=False,
    )
    return SimulatedModel(
        scheduler, preset.step_cost(llm_model(load.model, preset), 1), _no_source, keeps_released=True
    )


def _no_source(task: LLMTask, decode: Decode) -> SyntheticOutput:
    raise AssertionError("answers are written before requests are sent")
