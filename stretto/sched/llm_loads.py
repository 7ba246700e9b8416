"""What the instances of an LLM engine are busy with, and where a request would end first.

A running request counts against an instance's budget with its prompt and the output expected of it. It
delays others by its prefill until its first output, and by its part of every step while it decodes: all
sequences of an instance decode side by side, so a request ends after

    prefills not yet done + its own prefill + its own output tokens × seconds of a step with all of them

Its prefill also delays each sequence that decodes there, which counts against that instance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core import Prompt
from stretto.engine import Engine
from stretto.sched.expected_outputs import ExpectedOutputs
from stretto.sched.load_order import LoadOrder
from stretto.sched.request import Entry

_COMPARED = 8
"""How many of the least loaded instances are compared by the exact price of a request."""


@dataclass(slots=True, eq=False)
class Running:
    """One item of an entry, at an instance.

    Attributes:
        num_prompt: tokens of its prompt.
        num_expected: tokens of output that were expected of it.
        num_output: the same, raised when it writes more.
        prefill_s: predicted seconds of its prefill; 0 once it has written something.
        offset: items or characters of its output that have been passed on.
        num_written: estimated tokens of its output so far.
        has_started: the instance has begun its prefill.
        is_decoding: it has written something.
    """

    task: int
    instance: int
    entry: Entry
    item: int
    prompt: Prompt
    num_prompt: int
    num_expected: int
    prefill_s: float
    num_output: int = field(init=False)
    offset: int = 0
    num_written: int = 0
    has_started: bool = False
    is_decoding: bool = False

    def __post_init__(self) -> None:
        self.num_output = self.num_expected

    @property
    def num_tokens(self) -> int:
        """What it takes of the budget."""
        return self.num_prompt + self.num_output


@dataclass(slots=True)
class InstanceLoad:
    """Requests of one instance by task, and their sums."""

    running: dict[int, Running] = field(default_factory=dict)
    num_tokens: int = 0
    num_decoding: int = 0
    prefill_s: float = 0.0


class InstanceLoads:
    """The loads of all instances of an engine. A price or a choice changes nothing."""

    def __init__(self, engine: Engine, outputs: ExpectedOutputs) -> None:
        self._engine = engine
        self._outputs = outputs
        self._loads: dict[int, InstanceLoad] = {}
        self._order = LoadOrder()
        self._num_running = 0
        for instance in range(engine.instances):
            self._loads[instance] = InstanceLoad()
            self._note(instance)

    @property
    def roomiest(self) -> int:
        """The most tokens for which an instance has room."""
        return self._order.roomiest

    @property
    def num_running(self) -> int:
        """Requests at all instances."""
        return self._num_running

    def of(self, instance: int) -> InstanceLoad:
        """The load of an instance."""
        return self._loads[instance]

    def add(self, running: Running) -> None:
        """A request is handed to its instance."""
        load = self._loads[running.instance]
        load.running[running.task] = running
        load.num_tokens += running.num_tokens
        load.prefill_s += running.prefill_s
        self._num_running += 1
        self._note(running.instance)

    def remove(self, running: Running) -> None:
        """A request has left its instance."""
        load = self._loads[running.instance]
        del load.running[running.task]
        load.num_tokens -= running.num_tokens
        load.num_decoding -= running.is_decoding
        load.prefill_s = load.prefill_s - running.prefill_s if load.running else 0.0
        self._num_running -= 1
        self._note(running.instance)

    def wrote(self, running: Running, num_tokens: int) -> None:
        """A request has written so much more: its prefill is over, and it may exceed what was expected."""
        decode = running.entry.request.decode
        limit = decode.max_tokens if decode else 0
        load = self._loads[running.instance]
        running.num_written += num_tokens
        num_expected = running.num_output
        if running.num_written > num_expected:
            running.num_output = max(num_expected, min(limit, 2 * running.num_written))
        if not running.is_decoding:
            running.is_decoding = True
            load.num_decoding += 1
            load.prefill_s -= running.prefill_s
            running.prefill_s = 0.0
        elif running.num_output == num_expected:
            return
        load.num_tokens += running.num_output - num_expected
        self._note(running.instance)

    def place(self, entry: Entry, num_tokens: int, num_output: int) -> int | None:
        """The instance with room where the next item of an entry ends first; a holder of its prefix wins a
        tie."""
        hint = entry.request.hint
        candidates = list(self._order.candidates(max(num_tokens, 1), _COMPARED))
        if hint in self._loads and hint not in candidates and self._room(hint) >= max(num_tokens, 1):
            candidates.append(hint)
        if len(candidates) < 2:
            return candidates[0] if candidates else None

        def price(instance: int) -> tuple[float, bool, int, int]:
            load = self._loads[instance]
            step_s = self._engine.profile.decode_s(len(load.running) + 1)
            prefill_s = self.prefill_s(entry, num_tokens - num_output, instance)
            end_s = load.prefill_s + prefill_s + num_output * step_s
            return end_s + load.num_decoding * prefill_s, instance != hint, load.num_tokens, instance

        return min(candidates, key=price)

    def is_empty(self, instance: int | None) -> bool:
        """Whether it is an instance, and runs nothing."""
        return instance in self._loads and not self._loads[instance].running

    def empty_one(self) -> int | None:
        """The first instance that runs nothing, if there is one."""
        found = next(self._order.candidates(self._engine.batch_units, 1), None)
        return found if self.is_empty(found) else None

    def prefill_s(self, entry: Entry, num_prompt: int, instance: int) -> float:
        """Predicted seconds for what an instance does not hold of a prompt."""
        request = entry.request
        num_held = request.num_held_tokens if request.hint == instance else 0
        return self._engine.profile.batch_s(max(0, num_prompt - num_held))

    def check_invariants(self) -> None:
        """For tests: sums agree with what runs, and what was expected of it keeps within the limits."""
        for load in self._loads.values():
            assert load.num_tokens == sum(running.num_tokens for running in load.running.values())
            num_planned = sum(running.num_prompt + running.num_expected for running in load.running.values())
            assert num_planned <= self._engine.batch_units or len(load.running) == 1
            assert len(load.running) <= self._engine.max_running
        assert self._num_running == sum(len(load.running) for load in self._loads.values())
        assert self.roomiest == max(map(self._room, self._loads))

    def _room(self, instance: int) -> int:
        load = self._loads[instance]
        if len(load.running) >= self._engine.max_running:
            return 0
        return max(0, self._engine.batch_units - load.num_tokens)

    def _note(self, instance: int) -> None:
        load = self._loads[instance]
        neighbours_s = self._outputs.typical * self._engine.profile.per_neighbour_s * len(load.running)
        self._order.update(instance, self._room(instance), load.prefill_s + neighbours_s, load.num_tokens)
