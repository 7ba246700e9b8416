"""What becomes of requests that an LLM instance has lost or failed: they are tried again, or fail."""

from __future__ import annotations

from collections.abc import Callable

from stretto.cluster.fleet import Fleet
from stretto.model.errors import BadServer, EngineUnreachable, StrettoError
from stretto.model.replica import Engine
from stretto.sched.llm.eligible import EligibleInstances
from stretto.sched.llm.reuse_forecasts import ReuseForecasts
from stretto.sched.llm.running_requests import Running
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.results import Report, failed, is_attempt, is_worth_retrying


class LostRequests:
    """Queues requests again that were lost, or answers that they have failed.

    Args:
        requeue: queues an entry again.
    """

    def __init__(
        self,
        engine: Engine,
        fleet: Fleet,
        eligible: EligibleInstances,
        reuse: ReuseForecasts,
        account: ProgramAccount,
        requeue: Callable[[QueueEntry], None],
    ) -> None:
        self._engine = engine
        self._fleet = fleet
        self._eligible = eligible
        self._reuse = reuse
        self._account = account
        self._requeue = requeue

    def failed(self, running: Running, error: StrettoError, now_s: float) -> list[Report]:
        """Try a request again that has failed alone, if another attempt may help."""
        if is_worth_retrying(error) or (isinstance(error, BadServer) and self._has_untried(running)):
            return self.again([running], error, now_s)
        return [self._fail(running, error)]

    def _has_untried(self, running: Running) -> bool:
        """Return whether another instance may answer a request that was answered wrongly where it runs."""
        fleet = self._fleet
        tried = running.entry.wrong_at | {running.slot}
        return self._eligible.has_untried(running, tried) or any(
            fleet.state[instance] == "starting" and fleet.slot(instance) not in tried
            for instance in fleet.live
        )

    def again(
        self, lost: list[Running], error: StrettoError, now_s: float, *, killed: bool = False
    ) -> list[Report]:
        """Queue again what was lost. What only found out that an instance is still down was no attempt, and
        neither was what never reached it, or was refused before it was begun, or met a server that answers
        nobody well; but what has been refused again and again for `recover_s` seconds fails. `killed` says
        that the instance died of one of them, perhaps.
        """
        reports: list[Report] = []
        for running in lost:
            entry, item = running.entry, running.item
            found_it_down = running.is_probe and not running.offset
            was_begun = is_attempt(error) and not isinstance(error, EngineUnreachable)
            was_attempt = was_begun and not found_it_down
            attempt = entry.attempt + was_attempt
            if attempt >= self._engine.max_attempts or entry.is_refused_too_long(
                self._engine.recover_s, now_s
            ):
                reports.append(self._fail(running, error))
            else:
                again = entry.again(item, item + 1, attempt=attempt, alone=False)
                again.after(error, {running.slot}, now_s, was_attempt=was_attempt)
                again.is_suspected = again.is_suspected or killed
                if running.offset and again.said_by != running.output_key:
                    again.generated = ()
                self._requeue(left_by(running, again) if running.offset else again)
        return reports

    def _fail(self, running: Running, error: StrettoError) -> Report:
        request, item = running.entry.request, running.item
        self._reuse.withdrawn(request.query, request.node.id)
        self._account.withdrawn(request.query, request.node.id, {item})
        return failed(request, item, item + 1, error)


def left_by(running: Running, entry: QueueEntry) -> QueueEntry:
    """Return what is to go on elsewhere, with a note of who has generated, perhaps shown, a part of it."""
    entry.said_by = running.output_key
    entry.is_shown = entry.is_shown or (running.offset > 0 and entry.request.shows)
    return entry
