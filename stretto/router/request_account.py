"""The account of programs as a router keeps it: it gets what happens to requests late, and not of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.costs.learned_work import LearnedWork
from stretto.model.backlog import DeferredMachine
from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.model.tasks import Usage
from stretto.router.messages import RoutedRequest, Ticket, WorkerUsage
from stretto.router.queued_request import step_of, step_usage
from stretto.router.routed_client import Client
from stretto.sched.orders.order import prices_s
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.request import StepRequest

_WATCHED = 8
"""Number of programs of which the first request of one is made known to the account in any case."""
_MOST_UNTOLD = 64
"""Most events that the account gets later."""


class RequestAccount(DeferredMachine[ProgramAccount]):
    """The account of the programs of a router's requests.

    Args:
        is_asked: returns whether the account is being asked, so that it gets each event at once.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        tenant_weights: Mapping[str, float],
        learned: LearnedWork | None,
        is_asked: Callable[[], bool],
    ) -> None:
        account = ProgramAccount(*prices_s(engine, profile), tenant_weights, learned)
        super().__init__(account, _MOST_UNTOLD, is_asked)

    def is_left_out(self, ticket: Ticket, request: RoutedRequest) -> bool:
        """Return whether the request of a program need not be made known while nothing waits: a first request
        where nearly all programs make only one, but for one of `_WATCHED`, by which it is noticed when that
        changes.
        """
        if request.program.has_returned or request.step is not None:
            return False
        return ticket % _WATCHED != 0 and self.machine.makes_one_query(request.model)

    def step_of(self, ticket: Ticket, client: Client) -> StepRequest:
        """Return a request as queues and accounts know it. Those that belong to no program, and need not
        wait, are not made known.
        """
        if client.step is None:
            num_tokens, since_s = client.placed.num_tokens, client.arrived_s
            client.step = step_of(ticket, client.request, num_tokens, since_s, client.deadline_s)
            self.tell(self.machine.arrived, client.step, client.expected_output, since_s)
        return client.step

    def sent(self, client: Client, now_s: float) -> None:
        """Note that a request is sent to a worker."""
        if client.step is not None:
            self.tell(self.machine.sent, client.step, now_s)

    def ended(self, client: Client, usage: WorkerUsage, now_s: float) -> None:
        """Note that a request has left the router, with the counts of its answer if there was one."""
        if (step := client.step) is None:
            return
        tell, account = self.tell, self.machine
        if usage.num_output is not None:
            tell(account.answered, step, step_usage(usage) or Usage(), usage.num_output, now_s)
        else:
            tell(account.withdrawn, step.query, step.node.id)
        tell(account.query_ended, step.query)
        if client.request.program.is_final:
            tell(account.program_ended, client.request.program.name, step.record.tenant)
