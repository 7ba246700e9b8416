"""An LLM instance in virtual time: the production local scheduler, and a cost for each of its steps.

Decodes that nothing can disturb are computed in one jump (`StepBatch.num_repeats`): to the next end or item
of one of them, or until blocks run short, or until a waiting sequence might be let in. What comes from
outside in the middle of a jump ends it at the next step boundary, exactly as if each step had been taken by
itself:

    real      step | step | step | step | step | …
    jump      ----------------------------- 5 steps
    arrival          ^
    cut       ------------- and the blocks for the other three are given back

Requests, cancels and releases that come while a step runs take effect when it ends, as they do in an
in-process engine, whose driver thread listens between steps. Each task reports often enough for the engine's
timeout.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from stretto.llm.cache.received import num_missing, receive
from stretto.llm.local_scheduler import LocalScheduler
from stretto.llm.output.output import DecodeOutput
from stretto.llm.sequence import TokenSequence
from stretto.model.errors import StrettoError
from stretto.model.replica import Engine
from stretto.model.tasks import Failed, LLMEvent, LLMTask, Reuse, Started
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import StepsDone
from stretto.sim.simulated_model import SimulatedModel, Surroundings
from stretto.sim.step_jump import Jitter, StepJump
from stretto.sim.step_times import batch_shape, reading_shared_once, step_times_s
from stretto.sim.synthetic_output import SyntheticOutput, output_ids
from stretto.sim.task_progress import ProgressTable, TaskProgress

__all__ = ["LLMInstance", "SimulatedModel", "Surroundings"]

_AT_ONCE = 64
_LEAST_REACH = 4


class LLMInstance:
    """A simulated LLM instance: the production scheduler of an in-process LLM engine forms its batches, and a
    cost function predicts the time of each step.

    `rank` says in which order several instances act at the same instant. (The order in which the ends of
    their steps were planned would not do: the end of a jump, many steps simulated at once, is planned before
    the ends of single steps would be.)
    """

    def __init__(
        self,
        engine: Engine,
        instance: int,
        surroundings: Surroundings,
        model: SimulatedModel,
        *,
        rank: int = 0,
        jitter: float = 0.0,
        seed: str = "",
    ) -> None:
        self.scheduler = LocalScheduler(model.scheduler)
        self._engine = engine
        self._instance = instance
        self._around = surroundings
        self._model = model
        self._rank = rank
        self._jitter = Jitter(jitter, f"{seed}/{engine.name}/{instance}")
        self._reports_kv = model.scheduler.with_events
        self._is_steady = not jitter and not surroundings.may_be_slow(engine.name, instance)
        self._progress = ProgressTable(math.inf if engine.timeout_s is None else engine.timeout_s / 4)
        self._jump: StepJump | None = None
        self._reach = model.max_jump
        """Largest number of steps of the next jump: few where jumps are often cut, as blocks for steps that
        are cut off are acquired in vain.
        """
        self._deferred: list[Callable[[], None]] = []
        self._num_sequences = 0
        self._num_jumps = 0
        self._will_begin = False
        self._is_dead = False

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Put a request into the instance's queue with the sort key `rank` (smaller goes first); if the
        request is invalid, report its failure at once.
        """
        try:
            self._admit(task, rank if self._model.takes_hints else ())
        except StrettoError as error:
            failed = error.at(task.step)
            self._around.at(
                self._around.now_s, lambda: self._report([Started(task.id), Failed(task.id, failed)])
            )
            return
        except Exception:  # as in a real driver, what escapes the engine takes the instance down
            self._around.break_down(self._engine.name, self._instance)

    def add(
        self,
        task: LLMTask,
        tokens: list[int],
        said: SyntheticOutput | None,
        ids: list[int],
        rank: tuple[float, ...],
    ) -> TokenSequence:
        """Queue a request at place `rank` (smaller goes first) whose prompt is `tokens` and whose output is
        known: `said`, with the token ids `ids`; None and no ids for a prefill. Return its sequence.

        Raises:
            CapacityError: the request would not fit even if it were alone.
        """
        decode = task.decode
        sequence = TokenSequence(
            self._num_sequences,
            tokens,
            0 if decode is None or said is None else max(decode.max_tokens, said.num_tokens),
            rank=rank,
            query=task.query,
            salt=task.tenant if self._model.caches else str(task.id),
            is_offline=task.objective == "offline",
        )
        sequence.resume(task.generated[: len(ids)])
        self.scheduler.add(sequence, self._around.now_s)
        self._num_sequences += 1
        self._progress.add(TaskProgress(task, sequence, said, ids))
        self.replan()
        return sequence

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank of a request that waits there, if ranks count."""
        request = self._progress.find(task)
        if request is not None and self._model.takes_hints:
            self.scheduler.reprioritise(request.sequence, rank)
            self.replan()

    def cancel(self, task: int) -> None:
        """Cancel a task: it sends no further message, and its sequence is removed when the current step
        ends.
        """
        request = self._progress.cancel(task)
        if request is not None:
            self._between_steps(lambda: self._drop(request))

    def num_cached(self, task: int) -> int:
        """Return how many tokens of a task's prompt were found in the cache; 0 if the task has not begun or
        has ended.
        """
        request = self._progress.find(task)
        return 0 if request is None else request.sequence.num_cached or 0

    def num_missing(self, tokens: list[int], salt: str) -> int:
        """Return how many tokens of a prompt have no full block in the cache."""
        block_tokens = self._model.scheduler.block_tokens
        return num_missing(self.scheduler.cache, salt, tokens, block_tokens)

    def receive(self, tokens: list[int], salt: str, query: str) -> None:
        """Put the KV of a prompt, which another instance has computed, into the cache, when the current step
        ends. If there is no room for it, it is computed here.
        """
        cache, block_tokens = self.scheduler.cache, self._model.scheduler.block_tokens
        self._between_steps(lambda: receive(cache, salt, tokens, block_tokens, query))

    def release(self, query: str) -> None:
        """Drop the prefixes that `query` left in the cache, when the current step ends.

        Where they are kept, only what `retain` has noted of the query is forgotten. That orders evictions
        alone, so that it cuts no jump, but it comes after cancels of the query.
        """
        cache = self.scheduler.cache
        if not self._model.keeps_released:
            self._between_steps(lambda: cache.forget(query))
        elif self._deferred:
            self._deferred.append(lambda: cache.keep_released(query))
        else:
            cache.keep_released(query)

    def retain(self, reuse: Reuse) -> None:
        """Note when a query will need cached prefixes again, if that counts.

        It orders evictions only, so that it cuts no jump.
        """
        if self._model.takes_hints:
            self.scheduler.retain(reuse, self._model.tokenize, self._around.now_s)

    def suspend(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the tasks that have not ended, as (id, ids of the tokens generated in completed steps)
        pairs, so that they can go on elsewhere.
        """
        jump = self._jump
        num_ended = 0 if jump is None else bisect_right(jump.ends_s, self._around.now_s)
        return self._progress.suspended(() if jump is None else jump.batch.slices, num_ended)

    def kill(self) -> None:
        """Stop the simulated instance for ever: no task sends a further message."""
        self._is_dead = True
        self._progress.clear()

    @property
    def jump(self) -> StepJump | None:
        """The jump that is being computed now; None between two steps."""
        return self._jump

    def is_idle(self) -> bool:
        """Return whether no request waits or runs, and every cancel or release has taken effect."""
        return self._jump is None and not self.scheduler.has_work() and not self._deferred

    def _admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        decode = task.decode
        ids: list[int] = []
        said = None
        if decode is not None:
            DecodeOutput(decode)  # whether the decode makes sense
            said = self._model.output_source(task, decode)
            ids = output_ids(said)
        self.add(task, self._model.tokenize(task.prompt), said, ids, rank)

    def _drop(self, request: TaskProgress) -> None:
        self.scheduler.abort(request.sequence)
        self._progress.drop(request)

    # --- steps

    def _between_steps(self, change: Callable[[], None]) -> None:
        if self._jump is None:
            change()
            self._tell_kv()
        else:
            self._deferred.append(change)
        self.replan()

    def replan(self) -> None:
        """Cut the current jump at the next step boundary, or begin a step: something came from outside."""
        jump, now_s = self._jump, self._around.now_s
        if jump is None:
            self._begin_soon()
            return
        num_repeats = jump.num_repeats_by(now_s)
        if num_repeats < jump.num_repeats:
            self._reach = max(_LEAST_REACH, 2 * num_repeats)
            self._cut(jump, num_repeats)
            self._fly(jump)

    def _begin_soon(self) -> None:
        """Begin a step when all else of this instant has happened."""
        if not self._will_begin and not self._is_dead:
            self._will_begin = True
            self._around.at_last(self._begin, self._rank)

    def _begin(self) -> Sequence[Event]:
        """Take the next step, or as many as nothing can disturb."""
        self._will_begin = False
        if self._is_dead or self._jump is not None or not self.scheduler.has_work():
            return ()
        now_s = self._around.now_s
        batch = self.scheduler.schedule(self._max_repeats())
        self._tell_kv()
        if not batch.slices:
            return ()
        shape = batch_shape(batch)
        if self._model.reads_shared_once:
            shape = reading_shared_once(shape, batch, self._model.scheduler.block_tokens)
        self._jump = StepJump(batch, shape, now_s, batch.num_repeats)
        self._extend(self._jump)
        return self._report(self._progress.start(batch, now_s))

    def _extend(self, jump: StepJump) -> None:
        """Compute when some more repeats of a jump end: a few at a time, as a cut may make them useless.

        It goes no further than the time at which some task must report again.
        """
        until_s = self._progress.beat_due_s
        num_known = len(jump.ends_s)
        num_new = min(_AT_ONCE, jump.num_repeats - num_known)
        times_s = step_times_s(self._model.cost, jump.shape, num_known, num_new)
        if not num_known and jump.batch.num_loaded:
            times_s[0] += jump.batch.num_loaded * self._model.host_token_s
        if self._is_steady:
            jump.extend(times_s)
        else:
            jump.extend_unsteadily(times_s, self._jitter.take(num_new), self._slowness)
        if jump.ends_s[-1] >= until_s:
            self._cut(jump, bisect_left(jump.ends_s, until_s, num_known) + 1)
        self._fly(jump)

    def _slowness(self, at_s: float) -> float:
        return self._around.slowness(self._engine.name, self._instance, at_s)

    def _cut(self, jump: StepJump, num_repeats: int) -> None:
        self._jitter.give_back(jump.cut(num_repeats, self.scheduler))

    def _fly(self, jump: StepJump) -> None:
        self._num_jumps += 1
        jump.number = number = self._num_jumps
        self._around.at(jump.ends_s[-1], lambda: self._land(number), self._rank)

    def _max_repeats(self) -> int:
        """Return how many steps can run before an output, or an item of one, is complete."""
        scheduler = self.scheduler
        if self._model.max_jump == 1 or not scheduler.running:
            return 1
        return max(1, min(self._model.max_jump, self._reach, self._progress.nearest_stop(scheduler.running)))

    def _land(self, number: int) -> Sequence[Event]:
        """Complete the steps of a jump: its time has come."""
        jump = self._jump
        if self._is_dead or jump is None or jump.number != number:
            return ()
        batch, num_repeats = jump.batch, jump.num_repeats
        if len(jump.ends_s) < num_repeats:
            self._extend(jump)
            return ()
        self._jump = None
        if num_repeats == self._reach:
            self._reach *= 4
        now_s = self._around.now_s
        sampled, to_tell = self._progress.sample(batch, num_repeats, now_s)
        self.scheduler.complete(batch, sampled)
        told: list[LLMEvent] = []
        for request in self._progress.tell(to_tell, now_s, told):
            self.scheduler.finish(request.sequence)
        for change in self._deferred:
            change()
        self._deferred.clear()
        self._progress.note_beat(now_s)
        self._tell_kv()
        self._around.on_steps(
            StepsDone(
                self._engine.name,
                self._instance,
                jump.start_s,
                jump.ends_s,
                len(batch.slices),
                jump.shape.prefill_tokens + jump.shape.num_decodes,
            )
        )
        self._begin_soon()
        return self._report(told)

    def _report(self, told: Sequence[LLMEvent]) -> Sequence[Event]:
        if self._is_dead or not told:
            return ()
        return [LLMReport(self._engine.name, self._instance, event) for event in told]

    def _tell_kv(self) -> None:
        if not self._reports_kv:
            return
        events = self.scheduler.cache.take_events()
        if self.scheduler.host is not None:
            events += self.scheduler.host.take_events()
        if events:
            self._around.on_kv(self._engine.name, self._instance, events)
