"""The state machine of the batches that have not ended: which lines run when, and how a batch ends.

Methods are events; they take the time and return actions. `wake` is to be called a few times a second. Rules:

- A batch is opened when there is a place for it: its file is read through, and what an earlier process has
  answered of it is found. Places go to the tenant with the fewest open batches, and there to the batch that
  expires first.
- Whose line starts next, and how many may be started, is in `started_lines.py`.
- Lines are "offline": they take what others leave. Those that run may have to wait again because others
  come. When a batch is likely to miss its window, it is raised: its lines are "throughput", and those that
  wait are started anew.
- A line that is refused because engines are busy or away is tried again later, for as long as the batch may
  run. The whole batch rests meanwhile.
- A batch that is cancelled or expires ends when none of its lines runs any more. To write what was answered,
  one that is not open is opened before all others, and has places of its own.
- A batch whose answers cannot be written rests, and is opened again.

                  opened                 all lines done           files written
    validating ───────────▶ in_progress ───────────────▶ finalizing ───────────▶ completed
        │  file is wrong         │  cancel                                          cancelled
        └───────────▶ failed     └─────────▶ cancelling ──────────────────────────▶ expired
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from stretto.service.batches.actions import (
    BatchAction,
    CloseBatch,
    EndBatch,
    OpenBatch,
    SaveBatch,
    StartLine,
)
from stretto.service.batches.pace import BatchPace
from stretto.service.batches.records import BatchProblem, BatchRecord, BatchStatus, SpentTokens
from stretto.service.batches.started_lines import StartedLines
from stretto.service.batches.unended_batch import UnendedBatch

MAX_OPEN = 64
"""Batches that are open at once. Each takes some 0.5 MB and three files."""
MAX_ENDING = 4
"""Further batches that are open at once only to end."""
_REST_S = (0.5, 30.0)
"""Shortest and longest time for which a batch rests after a line was refused."""
_REOPEN_S = 15.0
"""Seconds after which a batch is opened again whose answers could not be written."""


class OpenBatches:
    """The batches of a service that have not ended."""

    def __init__(self) -> None:
        self._batches: dict[str, UnendedBatch] = {}
        self._open: dict[str, UnendedBatch] = {}  # those that are not closed
        self._to_end: dict[str, UnendedBatch] = {}  # closed ones that are only opened to end
        self._started = StartedLines()
        self._is_stopped = False
        self._woken_s = -math.inf

    def __iter__(self) -> Iterator[UnendedBatch]:
        """Iterate over the batches, the eldest first. They are not to be changed."""
        return iter(self._batches.values())

    def get(self, batch: str) -> BatchRecord | None:
        """Return a batch as it is now; None if it has ended."""
        found = self._batches.get(batch)
        return None if found is None else found.record

    def uses(self, file: str) -> bool:
        """Whether a batch that has not ended reads a file."""
        return any(one.record.input_file_id == file for one in self._batches.values())

    def num_of(self, tenant: str) -> int:
        """Number of batches of a tenant that have not ended."""
        return sum(one.record.tenant == tenant for one in self._batches.values())

    # --- events

    def add(self, record: BatchRecord, now_s: float) -> list[BatchAction]:
        """Take a batch that is new, or that an earlier process has not ended."""
        self._batches[record.id] = one = UnendedBatch(record, BatchPace(record, now_s))
        if record.status == "cancelling":
            one.ends_as, self._to_end[record.id] = "cancelled", one
        return self._go_on(now_s)

    def opened(
        self,
        batch: str,
        sizes: Sequence[int],
        is_done: bytearray,
        num_failed: int,
        spent: SpentTokens,
        now_s: float,
    ) -> list[BatchAction]:
        """Handle that a batch has been opened.

        Args:
            sizes: bytes of each of its lines.
            is_done: whether each line is answered; the machine goes on with it.
            num_failed: number of its lines that are answered with an error.
            spent: tokens of its answers so far.
        """
        one = self._batches[batch]
        num_done = sum(is_done)
        one.stage, one.sizes, one.is_done = "open", sizes, is_done
        one.num_left, one.next_line = len(is_done) - num_done, 0
        one.again.clear()
        one.is_broken, one.rest_s, one.rests_until_s = False, 0.0, now_s
        one.record = msgspec.structs.replace(
            one.record,
            total=len(is_done),
            num_completed=num_done - num_failed,
            num_failed=num_failed,
            spent=spent,
        )
        actions: list[BatchAction] = []
        if one.record.status == "validating":
            actions = self._move(one, "in_progress", now_s)
        return [*actions, *self._settle(one, now_s), *self._go_on(now_s)]

    def refused(self, batch: str, problems: Sequence[BatchProblem], now_s: float) -> list[BatchAction]:
        """Handle that the input file of a batch is wrong as a whole."""
        one = self._forget(batch)
        failed = msgspec.structs.replace(one.record.moved("failed", now_s), problems=tuple(problems))
        return [SaveBatch(failed), CloseBatch(batch), *self._go_on(now_s)]

    def sent(self, batch: str, line: int, now_s: float, *, is_sent: bool = True) -> list[BatchAction]:
        """Handle that a line waits no more for an engine, or waits again."""
        if (started := self._batches[batch].started.get(line)) is not None:
            self._started.sent(started, is_sent=is_sent)
        return self._go_on(now_s)

    def answered(
        self, batch: str, line: int, now_s: float, *, is_well: bool, spent: SpentTokens
    ) -> list[BatchAction]:
        """Handle that the answer of a line, or the error that it has ended with, is on the disk."""
        one = self._batches[batch]
        self._started.end(one, line)
        one.is_done[line] = True
        one.num_left -= 1
        one.rest_s = 0.0
        one.pace.answered()
        one.record = msgspec.structs.replace(
            one.record,
            num_completed=one.record.num_completed + is_well,
            num_failed=one.record.num_failed + (not is_well),
            spent=one.record.spent.plus(spent),
        )
        return [*self._settle(one, now_s), *self._go_on(now_s)]

    def not_answered(self, batch: str, line: int, now_s: float, *, is_refused: bool) -> list[BatchAction]:
        """Handle that a line has ended without an answer.

        Args:
            is_refused: whether engines are busy or away, so that the batch rests.
        """
        one = self._batches[batch]
        was_withdrawn = self._started.end(one, line).is_withdrawn
        one.again.append(line)
        if is_refused and not was_withdrawn and now_s >= one.rests_until_s:
            shortest_s, longest_s = _REST_S
            one.rest_s = min(longest_s, max(shortest_s, 2 * one.rest_s))
            one.rests_until_s = now_s + one.rest_s
        return [*self._settle(one, now_s), *self._go_on(now_s)]

    def cancel(self, batch: str, now_s: float) -> list[BatchAction]:
        """End a batch because its tenant wants so. Nothing happens if it ends already."""
        one = self._batches[batch]
        if one.ends_as is not None or one.stage == "ending":
            return []
        actions = self._move(one, "cancelling", now_s)
        return [*actions, *self._end(one, "cancelled", now_s), *self._go_on(now_s)]

    def broke(self, batch: str, now_s: float) -> list[BatchAction]:
        """Handle that the files of a batch cannot be read or written now."""
        one = self._batches[batch]
        one.is_broken = True
        return [*self._started.withdraw([one]), *self._settle(one, now_s), *self._go_on(now_s)]

    def ended(
        self, batch: str, status: BatchStatus, output_file: str | None, error_file: str | None, now_s: float
    ) -> BatchRecord:
        """Return a batch that has ended, whose files have been written. It is forgotten here."""
        one = self._forget(batch)
        num_expired = one.num_left if status == "expired" else 0
        return msgspec.structs.replace(
            one.record.moved(status, now_s),
            output_file_id=output_file,
            error_file_id=error_file,
            num_failed=one.record.num_failed + num_expired,
        )

    def wake(self, now_s: float) -> list[BatchAction]:
        """Handle that time has passed, or that the clock was set back."""
        actions: list[BatchAction] = []
        if now_s < self._woken_s:
            for one in self._batches.values():
                one.rests_until_s = min(one.rests_until_s, now_s + _REST_S[1])
                one.pace.clock_set_back(now_s)
        self._woken_s = now_s
        for one in list(self._batches.values()):
            if one.ends_as is not None or one.stage == "ending":
                continue
            if now_s >= one.record.expires_at:
                actions += self._end(one, "expired", now_s)
            elif one.stage == "open" and one.pace.look(one.num_left, now_s):
                actions += self._started.withdraw([one], "offline")
        return [*actions, *self._go_on(now_s)]

    def stop(self) -> list[BatchAction]:
        """End the lines that run, and start none any more: the process ends."""
        self._is_stopped = True
        return self._started.withdraw(self._batches.values())

    # --- parts

    def _go_on(self, now_s: float) -> list[BatchAction]:
        """Open batches and start lines, as far as there is room."""
        actions: list[BatchAction] = []
        if self._is_stopped:
            return actions
        while (one := self._next_to_open(now_s)) is not None:
            one.stage = "opening"
            self._to_end.pop(one.record.id, None)
            self._open[one.record.id] = one
            actions.append(OpenBatch(one.record.id))
        while (one := self._started.next(self._open.values(), now_s)) is not None:
            actions.append(StartLine(one.record.id, *self._started.start(one)))
        return actions

    def _next_to_open(self, now_s: float) -> UnendedBatch | None:
        if len(self._open) < MAX_OPEN + MAX_ENDING:
            for one in self._to_end.values():
                if now_s >= one.rests_until_s:
                    return one
        if len(self._open) >= MAX_OPEN or len(self._open) == len(self._batches):
            return None
        num_open = Counter(one.record.tenant for one in self._open.values())
        closed = [
            one for one in self._batches.values() if one.stage == "closed" and now_s >= one.rests_until_s
        ]
        return min(closed, key=lambda one: (num_open[one.record.tenant], one.record.expires_at), default=None)

    def _end(self, one: UnendedBatch, status: BatchStatus, now_s: float) -> list[BatchAction]:
        one.ends_as = status
        if one.stage == "closed":
            self._to_end[one.record.id] = one
        return [*self._started.withdraw([one]), *self._settle(one, now_s)]

    def _settle(self, one: UnendedBatch, now_s: float) -> list[BatchAction]:
        """Go on with a batch of which no line runs: end it, or open it again later."""
        if self._is_stopped or one.started or one.stage not in ("open", "opening"):
            return []
        if one.is_broken:
            one.stage, one.rest_s = "closed", _REOPEN_S
            del self._open[one.record.id]
            if one.ends_as is not None:
                self._to_end[one.record.id] = one
            one.rests_until_s = now_s + _REOPEN_S
            return [CloseBatch(one.record.id)]
        if one.stage != "open":
            return []
        if one.ends_as is not None:
            one.stage = "ending"
            return [EndBatch(one.record.id, one.ends_as)]
        if one.num_left:
            return []
        one.stage, one.ends_as = "ending", "completed"
        return [*self._move(one, "finalizing", now_s), EndBatch(one.record.id, "completed")]

    def _forget(self, batch: str) -> UnendedBatch:
        self._open.pop(batch, None)
        return self._batches.pop(batch)

    def _move(self, one: UnendedBatch, status: BatchStatus, now_s: float) -> list[BatchAction]:
        one.record = one.record.moved(status, now_s)
        return [SaveBatch(one.record)]

    def check_invariants(self) -> None:
        """Check that counts are the sums of what has started. For tests."""
        self._started.check_invariants(self._batches.values())
        assert [one for one in self._batches.values() if one.stage != "closed"] == [
            one for one in self._batches.values() if one.record.id in self._open
        ]
        assert len(self._open) <= MAX_OPEN + MAX_ENDING
        assert list(self._to_end.values()) == [self._batches[name] for name in self._to_end]
        assert self._to_end.keys() == {
            name for name, one in self._batches.items() if one.stage == "closed" and one.ends_as is not None
        }
        for one in self._batches.values():
            assert one.num_left == one.is_done.count(0)
            assert not any(one.is_done[line] for line in (*one.started, *one.again))
