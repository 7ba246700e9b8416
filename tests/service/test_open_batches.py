"""The state machine of batches, under random events and crashes at any point."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.service.batches.actions import (
    BatchAction,
    CloseBatch,
    EndBatch,
    OpenBatch,
    SaveBatch,
    StartLine,
    WithdrawLine,
)
from stretto.service.batches.open_batches import MAX_ENDING, MAX_OPEN, OpenBatches
from stretto.service.batches.pace import BatchPace
from stretto.service.batches.records import ENDED, BatchProblem, BatchRecord, SpentTokens
from stretto.service.batches.started_lines import MAX_STARTED_BYTES, MAX_WAITING

SPENT = SpentTokens(3, 1, 2)


def record(name: str = "b", tenant: str = "t", window_s: float = 100.0) -> BatchRecord:
    return BatchRecord(name, tenant, "/v1/chat/completions", "file-1", "100s", window_s, 0)


def open_batch(machine: OpenBatches, name: str, num_lines: int, num_bytes: int = 10) -> list[BatchAction]:
    return machine.opened(name, [num_bytes] * num_lines, bytearray(num_lines), 0, SpentTokens(), 0.0)


def started(actions: list[BatchAction]) -> list[tuple[str, int, str]]:
    return [(one.batch, one.line, one.objective) for one in actions if isinstance(one, StartLine)]


def test_a_batch_runs_from_its_file_to_its_end() -> None:
    machine = OpenBatches()
    assert machine.add(record(), 0.0) == [OpenBatch("b")]
    actions = open_batch(machine, "b", 2)
    running = machine.get("b")
    assert running is not None
    assert actions == [SaveBatch(running), StartLine("b", 0, "offline"), StartLine("b", 1, "offline")]
    assert machine.answered("b", 1, 1.0, is_well=True, spent=SPENT) == []
    actions = machine.answered("b", 0, 2.0, is_well=False, spent=SpentTokens())
    found = machine.get("b")
    assert found is not None
    assert actions == [SaveBatch(found), EndBatch("b", "completed")]
    ended = machine.ended("b", "completed", "file-o", "file-e", 3.0)
    assert (ended.total, ended.num_completed, ended.num_failed, ended.spent) == (2, 1, 1, SPENT)
    assert ended.times == {"in_progress": 0, "finalizing": 2, "completed": 3}
    assert machine.get("b") is None


def test_few_lines_wait_at_a_time_and_as_many_run_as_engines_take() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    actions = started(open_batch(machine, "b", 10 * MAX_WAITING))
    assert len(actions) == MAX_WAITING
    for line in range(5 * MAX_WAITING):
        assert started(machine.sent("b", line, 1.0)) == [("b", MAX_WAITING + line, "offline")]
        assert started(machine.sent("b", line, 1.0)) == []
    machine.check_invariants()


def test_long_lines_start_one_after_the_other() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    assert len(started(open_batch(machine, "b", 3, MAX_STARTED_BYTES))) == 1
    assert started(machine.answered("b", 0, 1.0, is_well=True, spent=SPENT)) == [("b", 1, "offline")]


def test_tenants_take_turns_and_the_batch_that_expires_first_goes_first() -> None:
    machine = OpenBatches()
    for name, tenant, window_s in (("late", "s", 500.0), ("soon", "s", 50.0), ("other", "t", 90.0)):
        machine.add(record(name, tenant, window_s), 0.0)
    open_batch(machine, "late", 100)
    for line in range(MAX_WAITING):
        machine.not_answered("late", line, 0.0, is_refused=line == 0)
    open_batch(machine, "soon", 100)
    turns = started(open_batch(machine, "other", 100))
    turns += started(machine.wake(20.0))
    assert {batch for batch, _, _ in turns} <= {"soon", "other"}
    actions: list[BatchAction] = []
    for line in range(10):
        actions += machine.sent("soon", line, 20.0)
    assert [batch for batch, _, _ in started(actions)] == ["other", "soon"] * 5


def test_lines_that_wait_again_keep_others_from_starting() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    open_batch(machine, "b", 100)
    for line in range(20):
        machine.sent("b", line, 0.0)
    for line in range(5, 20):
        assert machine.sent("b", line, 1.0, is_sent=False) == []
    machine.check_invariants()
    for line in range(5, 20):
        assert machine.sent("b", line, 2.0) == []
    assert len(started(machine.sent("b", 20, 2.0))) == 1


def test_a_clock_that_is_set_back_lets_no_batch_rest_for_long() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    open_batch(machine, "b", 1)
    machine.wake(1e5)
    machine.add(record("c", window_s=1e6), 1e5)
    open_batch(machine, "c", 1)
    machine.not_answered("c", 0, 1e5, is_refused=True)
    machine.wake(10.0)
    assert started(machine.wake(41.0)) == [("c", 0, "offline")]
    machine.check_invariants()


def test_a_batch_that_would_miss_its_window_is_raised_and_waiting_lines_start_anew() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    open_batch(machine, "b", 1000)
    machine.sent("b", 0, 0.0)
    actions = machine.wake(51.0)
    withdrawn = [one.line for one in actions if isinstance(one, WithdrawLine)]
    assert withdrawn == [*range(1, MAX_WAITING + 1)]
    for line in withdrawn:
        actions = machine.not_answered("b", line, 51.0, is_refused=False)
        assert {objective for _, _, objective in started(actions)} == {"throughput"}
    machine.check_invariants()


def test_a_batch_keeps_its_class_while_it_keeps_its_window() -> None:
    pace = BatchPace(record(), 0.0)
    for _ in range(10):
        pace.answered()
    assert not pace.look(100, 1.0)
    assert pace.look(600, 2.0)
    assert pace.is_raised
    assert not pace.look(300, 3.0)
    assert pace.is_raised
    assert not pace.look(100, 4.0)
    assert not pace.is_raised


def test_a_batch_rests_when_engines_are_busy_longer_each_time() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    open_batch(machine, "b", 1)
    rests, now_s = [], 0.0
    for _ in range(8):
        assert started(machine.not_answered("b", 0, now_s, is_refused=True)) == []
        since_s = now_s
        while not started(machine.wake(now_s)):
            now_s += 0.25
        rests.append(now_s - since_s)
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_file_that_is_wrong_fails_its_batch_and_makes_room_for_another() -> None:
    machine = OpenBatches()
    for number in range(MAX_OPEN + 1):
        actions = machine.add(record(str(number)), 0.0)
    assert actions == []
    problem = BatchProblem("empty_file", "the file has no lines")
    failed, *others = machine.refused("0", [problem], 1.0)
    assert isinstance(failed, SaveBatch)
    assert (failed.batch.status, failed.batch.problems) == ("failed", (problem,))
    assert others == [CloseBatch("0"), OpenBatch(str(MAX_OPEN))]


def test_a_batch_that_is_cancelled_or_expires_does_not_wait_for_a_place() -> None:
    machine = OpenBatches()
    for number in range(MAX_OPEN + MAX_ENDING + 2):
        machine.add(record(str(number), window_s=100.0 if number < MAX_OPEN else 50.0), 0.0)
    saved, opened = machine.cancel(str(MAX_OPEN + 1), 1.0)
    assert isinstance(saved, SaveBatch)
    assert opened == OpenBatch(str(MAX_OPEN + 1))
    assert open_batch(machine, str(MAX_OPEN + 1), 3) == [EndBatch(str(MAX_OPEN + 1), "cancelled")]
    assert len(machine.wake(60.0)) == MAX_ENDING - 1
    machine.check_invariants()
    machine.ended(str(MAX_OPEN + 1), "cancelled", None, None, 61.0)
    assert len(machine.wake(62.0)) == 1
    machine.check_invariants()


def test_a_batch_whose_answers_cannot_be_written_is_opened_again_later() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    open_batch(machine, "b", 2)
    assert machine.broke("b", 1.0) == [WithdrawLine("b", 0), WithdrawLine("b", 1)]
    assert machine.not_answered("b", 1, 1.0, is_refused=True) == []
    assert machine.not_answered("b", 0, 1.0, is_refused=False) == [CloseBatch("b")]
    assert machine.wake(2.0) == []
    assert machine.wake(20.0) == [OpenBatch("b")]
    assert len(started(open_batch(machine, "b", 2))) == 2


@dataclass
class Disk:
    """What outlives a crash: batches as they were saved, and the lines that have answers."""

    batches: dict[str, BatchRecord] = field(default_factory=dict)
    lines: dict[str, dict[int, bool]] = field(default_factory=dict)


class Life:
    """A process that drives the machine in random order until it crashes."""

    def __init__(self, disk: Disk, sizes: dict[str, int], rng: random.Random, now_s: float) -> None:
        self.machine = OpenBatches()
        self.disk = disk
        self.now_s = now_s
        self._sizes = sizes
        self._rng = rng
        self._saves: deque[BatchRecord] = deque()
        self._opening: list[str] = []
        self._ending: list[EndBatch] = []
        self.running: dict[tuple[str, int], bool] = {}  # whether the line is withdrawn
        for one in list(disk.batches.values()):
            if one.status not in ENDED:
                self.act(self.machine.add(one, now_s))

    def act(self, actions: list[BatchAction]) -> None:
        for action in actions:
            match action:
                case OpenBatch(batch):
                    self._opening.append(batch)
                case StartLine(batch, line):
                    assert (batch, line) not in self.running, "a line runs once at a time"
                    assert line not in self.disk.lines[batch], "an answered line is not repeated"
                    self.running[batch, line] = False
                case WithdrawLine(batch, line) if (batch, line) in self.running:
                    self.running[batch, line] = True
                case SaveBatch(found):
                    self._saves.append(found)
                case EndBatch():
                    self._ending.append(action)
        self.machine.check_invariants()

    def step(self) -> None:
        choices = [self._wake]
        choices += [self._save] * bool(self._saves)
        choices += [self._open] * (3 * bool(self._opening))
        choices += [self._end] * bool(self._ending)
        choices += [self._line] * (8 * bool(self.running))
        self._rng.choice(choices)()

    def _wake(self) -> None:
        self.now_s += self._rng.random()
        self.act(self.machine.wake(self.now_s))

    def _save(self) -> None:
        found = self._saves.popleft()
        if self.disk.batches[found.id].status not in ENDED:
            self.disk.batches[found.id] = found

    def _open(self) -> None:
        batch = self._opening.pop(self._rng.randrange(len(self._opening)))
        if self._rng.random() < 0.1:
            self.act(self.machine.broke(batch, self.now_s))
            return
        num_lines, lines = self._sizes[batch], self.disk.lines[batch]
        is_done = bytearray(line in lines for line in range(num_lines))
        num_failed = sum(not is_well for is_well in lines.values())
        self.act(self.machine.opened(batch, [1] * num_lines, is_done, num_failed, SpentTokens(), self.now_s))

    def _end(self) -> None:
        action = self._ending.pop()
        assert not any(batch == action.batch for batch, _ in self.running)
        ended = self.machine.ended(action.batch, action.status, None, None, self.now_s)
        self.disk.batches[action.batch] = ended

    def _line(self) -> None:
        batch, line = self._rng.choice(list(self.running))
        what = self._rng.random()
        if what < 0.3:
            self.act(self.machine.sent(batch, line, self.now_s))
            return
        is_withdrawn = self.running.pop((batch, line))
        if what < 0.4 or (is_withdrawn and what < 0.7):
            is_refused = not is_withdrawn
            if self._rng.random() < 0.1:
                self.act(self.machine.broke(batch, self.now_s))
            self.act(self.machine.not_answered(batch, line, self.now_s, is_refused=is_refused))
            return
        is_well = what < 0.9
        self.disk.lines[batch][line] = is_well
        if self._rng.random() < 0.05:
            raise Crash
        self.act(self.machine.answered(batch, line, self.now_s, is_well=is_well, spent=SPENT))


class Crash(Exception):
    """The process is killed."""


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    windows=st.lists(st.sampled_from([3.0, 30.0, 100_000.0]), min_size=5, max_size=5),
)
def test_no_line_is_lost_or_repeated_by_crashes_at_any_point(
    seed: int, sizes: list[int], windows: list[float]
) -> None:
    rng = random.Random(seed)
    disk, cancelled = Disk(), set[str]()
    lengths = {f"b{number}": size for number, size in enumerate(sizes)}
    life = Life(disk, lengths, rng, 0.0)
    for (name, _), window_s in zip(lengths.items(), windows, strict=False):
        disk.batches[name], disk.lines[name] = record(name, rng.choice("st"), window_s), {}
        life.act(life.machine.add(disk.batches[name], 0.0))
    while any(one.status not in ENDED for one in disk.batches.values()):
        try:
            if rng.random() < 0.005:
                raise Crash
            unended = [name for name in lengths if life.machine.get(name) is not None]
            if unended and rng.random() < 0.002:
                name = rng.choice(unended)
                cancelled.add(name)
                life.act(life.machine.cancel(name, life.now_s))
            life.step()
        except Crash:
            life = Life(disk, lengths, rng, life.now_s)
    for name, one in disk.batches.items():
        lines = disk.lines[name]
        if one.status == "completed":
            assert len(lines) == lengths[name] == one.total
            assert (one.num_completed, one.num_failed) == (
                sum(lines.values()),
                len(lines) - one.num_completed,
            )
        elif one.status == "expired":
            assert life.now_s >= one.expires_at
            assert one.num_failed == lengths[name] - sum(lines.values())
        else:
            assert one.status == "cancelled"
            assert name in cancelled


def test_lines_that_wait_end_before_those_that_an_engine_has_whose_places_they_would_take() -> None:
    machine = OpenBatches()
    for name in "bc":
        machine.add(record(name), 0.0)
        open_batch(machine, name, 2)
        machine.sent(name, 0, 0.0)
    assert machine.stop() == [
        WithdrawLine("b", 1),
        WithdrawLine("c", 1),
        WithdrawLine("b", 0),
        WithdrawLine("c", 0),
    ]


def test_a_stopped_machine_starts_nothing() -> None:
    machine = OpenBatches()
    machine.add(record(), 0.0)
    open_batch(machine, "b", 1)
    assert machine.stop() == [WithdrawLine("b", 0)]
    assert machine.not_answered("b", 0, 0.0, is_refused=False) == []
    assert machine.add(record("c"), 0.0) == []
