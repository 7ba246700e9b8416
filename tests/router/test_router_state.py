"""The state machine of the router: events in, actions out, without IO."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.early_placement import SoonestStart

from stretto.cluster.placement import Dispatched, Ended, Joined, KeyUse, Placement
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.e2 import E2
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.prefix_hashes import PackedHashes
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.router.config import RouterConfig
from stretto.router.messages import (
    Check,
    Cut,
    NamedProgram,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    Stop,
    Ticket,
    Withdraw,
    WorkerGone,
    WorkerId,
    WorkerUsage,
)
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig
from stretto.sched.orders import ORDERS

REQUEST = RoutedRequest(model="m", num_tokens=100)
MODELS = {"m": {"id": "m"}}


def router_state_of(
    num: int, placement: Placement | None = None, *, num_slots: int = 256, **settings: object
) -> RouterState:
    router_state = RouterState(RouterConfig(**settings), placement or RoundRobin())  # type: ignore[arg-type]
    for index in range(num):
        worker = router_state.membership.add(WorkerConfig(url=f"http://w{index}", num_slots=num_slots)).id
        assert sends(router_state.membership.check_passed(worker, MODELS, None, 0.0)) == []
    return router_state


def sends(actions: list[RouterAction]) -> list[tuple[Ticket, WorkerId]]:
    return [(action.ticket, action.worker) for action in actions if isinstance(action, Send)]


def arrive(
    router_state: RouterState, now_s: float, request: RoutedRequest = REQUEST
) -> tuple[Ticket, list[RouterAction]]:
    ticket, actions = router_state.arrive(request, now_s)
    router_state.check_invariants()
    return ticket, actions


def test_a_request_goes_to_the_workers_in_turn() -> None:
    router_state = router_state_of(3)
    assert [sends(arrive(router_state, 0.0)[1]) for _ in range(4)] == [[(0, 0)], [(1, 1)], [(2, 2)], [(3, 0)]]


def test_requests_wait_in_order_for_room() -> None:
    router_state = router_state_of(1, num_slots=1)
    first, second, third = (arrive(router_state, 0.0)[0] for _ in range(3))
    assert router_state.view.num_waiting == 2
    assert sends(router_state.answered(first, 200, WorkerUsage(), 1.0)) == [(second, 0)]
    assert sends(router_state.left(second, 2.0)) == [(third, 0)]
    assert router_state.answered(third, 200, WorkerUsage(), 3.0) == []
    assert router_state.view.num_clients == 0


@pytest.mark.parametrize("leaves", [False, True])
def test_offline_requests_that_must_begin_to_keep_their_deadline_are_sent(leaves: bool) -> None:
    router_state = router_state_of(1, num_slots=1)
    offline = replace(REQUEST, objective="offline", deadline_s=10.0)
    first, second, third = (arrive(router_state, 0.0, offline)[0] for _ in range(3))
    assert sends(router_state.membership.check_passed(0, MODELS, None, 9.9)) == []  # they are urgent now
    if leaves:
        assert sends(router_state.left(second, 10.0)) == []
    router_state.check_invariants()
    sent = [
        *sends(router_state.answered(first, 200, WorkerUsage(), 10.0)),
        *sends(router_state.timers.expire(11.0)),
    ]
    assert sent == [(third if leaves else second, 0)]
    router_state.check_invariants()


def test_a_waiting_request_of_a_lost_client_is_never_sent() -> None:
    router_state = router_state_of(1, num_slots=1)
    first, second = (arrive(router_state, 0.0)[0] for _ in range(2))
    assert router_state.left(second, 0.5) == []
    assert sends(router_state.answered(first, 200, WorkerUsage(), 1.0)) == []
    assert router_state.view.num_waiting == 0


def test_a_failed_attempt_goes_elsewhere_and_the_worker_is_checked_at_once() -> None:
    router_state = router_state_of(2)
    ticket, _ = arrive(router_state, 5.0)
    actions = router_state.failed(ticket, "it closed", 6.0)
    assert sends(actions) == [(ticket, 1)]
    assert Check(0, 6.0) in actions
    assert [worker.state for worker in router_state.view.workers()] == ["suspect", "serving"]


def test_an_unrepeatable_request_is_repeated_only_if_it_was_not_sent() -> None:
    request = RoutedRequest(is_repeatable=False)
    router_state = router_state_of(2)
    ticket, _ = arrive(router_state, 0.0, request)
    assert sends(router_state.failed(ticket, "refused", 0.0, was_sent=False)) == [(ticket, 1)]
    assert router_state.failed(ticket, "it closed", 0.0)[0] == Refuse(ticket, 502, "it closed")


def test_a_suspect_worker_is_checked_after_growing_delays() -> None:
    router_state = router_state_of(1, health_interval_s=1.0)
    times = []
    for now_s in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0):
        (check,) = (
            one for one in router_state.membership.check_failed(0, "refused", now_s) if isinstance(one, Check)
        )
        times.append(round(check.at_s - now_s, 3))
    assert times == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_worker_on_trial_gets_one_request_and_a_good_answer_ends_the_trial() -> None:
    router_state = router_state_of(1, LeastLoaded())
    first, _ = arrive(router_state, 0.0)
    assert sends(router_state.failed(first, "it closed", 0.0)) == [(first, 0)]
    second, waits = arrive(router_state, 0.1)
    assert waits == []
    assert sends(router_state.membership.check_passed(0, MODELS, None, 0.1)) == []
    assert router_state.view.workers()[0].on_trial
    assert sends(router_state.answered(first, 404, WorkerUsage(), 0.3)) == [(second, 0)]
    assert sends(arrive(router_state, 0.4)[1]) == [(2, 0)]


def test_attempts_that_were_not_sent_are_not_counted() -> None:
    router_state = router_state_of(1, max_attempts=2)
    ticket, _ = arrive(router_state, 0.0)
    for now_s in range(1, 9):
        actions = router_state.failed(ticket, "refused", float(now_s), was_sent=False)
        actions += router_state.membership.check_passed(0, MODELS, None, now_s + 0.5)
        assert sends(actions) == [(ticket, 0)]
    assert router_state.view.num_clients == 1


def test_a_stream_that_begins_ends_the_trial() -> None:
    router_state = router_state_of(1)
    router_state.membership.check_failed(0, "refused", 0.0)
    router_state.membership.check_passed(0, MODELS, None, 0.1)
    first, second = (arrive(router_state, 0.2)[0] for _ in range(2))
    assert router_state.view.num_waiting == 1
    assert sends(router_state.began(first, 200, 0.3)) == [(second, 0)]


def test_many_requests_that_fail_at_once_are_one_suspicion() -> None:
    router_state = router_state_of(2, RoundRobin(), max_attempts=9)
    tickets = [arrive(router_state, 0.0)[0] for _ in range(40)]
    checks = [
        action.at_s
        for ticket in tickets[::2]
        for action in router_state.failed(ticket, "it closed", 5.0)
        if isinstance(action, Check)
    ]
    assert len(checks) == 20
    assert max(checks) <= 5.1


def test_answers_with_5xx_in_a_row_open_the_breaker_and_4xx_close_it() -> None:
    router_state = router_state_of(1, max_failures=2, max_attempts=1)
    for status in (500, 404, 500):
        ticket, _ = arrive(router_state, 0.0)
        router_state.answered(ticket, status, WorkerUsage(), 0.0)
        assert router_state.view.workers()[0].state == "serving"
    ticket, _ = arrive(router_state, 0.0)
    assert router_state.refused(ticket, 503, 0.0)[0] == Refuse(
        ticket, 502, "the worker answered with status 503"
    )
    assert router_state.view.workers()[0].state == "suspect"


def test_a_model_is_asked_of_the_workers_that_list_it_or_of_all() -> None:
    router_state = router_state_of(2)
    router_state.membership.check_passed(1, {"other": {}}, None, 0.0)
    for _ in range(3):
        assert sends(arrive(router_state, 0.0)[1])[0][1] == 0
        assert sends(arrive(router_state, 0.0, RoutedRequest(model="other"))[1])[0][1] == 1
    assert {sends(arrive(router_state, 0.0, RoutedRequest(model="new"))[1])[0][1] for _ in range(2)} == {0, 1}


def test_a_drained_worker_is_gone_with_its_last_request() -> None:
    router_state = router_state_of(2)
    ticket, _ = arrive(router_state, 0.0)
    assert router_state.membership.drain(0, 0.0) == []
    assert sends(arrive(router_state, 0.0)[1]) == [(1, 1)]
    assert router_state.answered(ticket, 200, WorkerUsage(), 1.0) == [WorkerGone(0)]
    assert router_state.membership.drain(1, 1.0) == []
    assert router_state.left(1, 2.0) == [WorkerGone(1)]
    assert router_state.view.workers() == []


def test_a_removed_worker_cuts_what_has_begun_and_moves_the_rest() -> None:
    router_state = router_state_of(2, LeastLoaded())
    (begun, _), _, (other, _) = (
        arrive(router_state, 0.0),
        arrive(router_state, 0.0),
        arrive(router_state, 0.0),
    )
    router_state.began(begun, 200, 0.0)
    actions = router_state.membership.remove(0, 1.0)
    assert sends(actions) == [(other, 1)]
    assert actions[-2:] == [Cut(begun, "the worker was removed"), WorkerGone(0)]


def test_an_early_policy_lets_a_request_wait_at_a_worker_and_move() -> None:
    router_state = router_state_of(2, SoonestStart(), num_slots=1)
    tickets = [arrive(router_state, 0.0)[0] for _ in range(6)]
    assert router_state.view.num_waiting == 4
    moved = sends(router_state.answered(tickets[1], 200, WorkerUsage(), 1.0))
    assert [worker for _, worker in moved] == [1]
    moved += sends(router_state.answered(moved[0][0], 200, WorkerUsage(), 1.1))
    moved += sends(router_state.answered(moved[1][0], 200, WorkerUsage(), 1.2))
    router_state.check_invariants()
    assert [worker for _, worker in moved] == [1, 1, 1]


def test_what_waits_at_a_suspect_worker_goes_elsewhere() -> None:
    router_state = router_state_of(2, SoonestStart(), num_slots=1)
    tickets = [arrive(router_state, 0.0)[0] for _ in range(4)]
    assert sends(router_state.membership.check_failed(0, "refused", 0.5)) == []
    moved = list[tuple[Ticket, WorkerId]]()
    for _ in range(3):
        ticket = tickets[1] if not moved else moved[-1][0]
        moved += sends(router_state.answered(ticket, 200, WorkerUsage(), 1.0))
    assert sorted(moved) == [(tickets[2], 1), (tickets[3], 1)]


def test_single_programs_are_not_made_known_to_the_account_while_nothing_waits() -> None:
    """Where nearly all programs make one request, a few are watched. What waits has its turn."""
    router_state = router_state_of(1, num_slots=2)
    account = router_state._open.account

    def opening(name: str, now_s: float) -> tuple[Ticket, bool]:
        program = NamedProgram(name, has_returned=False)
        ticket, _ = arrive(router_state, now_s, replace(REQUEST, program=program))
        return ticket, account.now.find(("", name)) is not None

    for number in range(78):  # each is silent for long enough to have ended when the next ones come
        ticket, is_known = opening(f"first {number}", float(number))
        assert is_known
        router_state.answered(ticket, 200, WorkerUsage(100, 10), number + 0.5)
    later = []
    for number in range(64):
        ticket, is_known = opening(f"later {number}", 200.0 + number)
        router_state.answered(ticket, 200, WorkerUsage(100, 10), 200.5 + number)
        later.append(is_known)
    assert later[0]  # not enough were silent for long before
    assert later[1:].count(True) == 8
    assert [opening(f"many {number}", 300.0)[1] for number in range(20)][2:] == [True] * 18
    _, actions = router_state.arrive(replace(REQUEST, program=NamedProgram("agent")), 301.0)
    assert not sends(actions)
    assert account.now.find(("", "agent")) is not None


def test_reported_hits_reach_the_policy() -> None:
    policy = SoonestStart()
    router_state = router_state_of(1, policy)
    ticket, _ = arrive(router_state, 0.0)
    router_state.answered(ticket, 200, WorkerUsage(100, 7, 64), 1.0)
    (ended,) = (event for event in policy.events if isinstance(event, Ended))
    assert ended.held_tokens == 64


def test_counts_without_hits_tell_of_a_miss_where_a_worker_tells_of_hits() -> None:
    policy = SoonestStart()
    router_state = router_state_of(1, policy)
    missed, hit = WorkerUsage(100, 7, is_older_api=True), WorkerUsage(100, 7, 64, is_older_api=True)
    uncounted, of_another_api = WorkerUsage(), WorkerUsage(100, 7)
    for usage in (missed, hit, missed, uncounted, of_another_api):
        ticket, _ = arrive(router_state, 0.0)
        router_state.answered(ticket, 200, usage, 1.0)
    told = [event.held_tokens for event in policy.events if isinstance(event, Ended)]
    assert told == [None, 64, 0, None, None]


def test_an_answer_that_waited_for_its_client_does_not_make_a_worker_slow() -> None:
    for was_paused in (False, True):
        router_state = router_state_of(2, SoonestStart())
        first, _ = arrive(router_state, 0.0)
        second, _ = arrive(router_state, 0.0)
        router_state.answered(second, 200, WorkerUsage(100, 7), 900.0)
        router_state.answered(first, 200, WorkerUsage(100, 7), 900.0, was_paused=was_paused)
        views = [router_state._loads.table.get(worker) for worker in (0, 1)]
        slowest = [view is not None and view.slowness > 2 for view in views]
        assert slowest == [not was_paused, True]


def test_keys_reach_a_policy_that_reads_them() -> None:
    class KeyReader(SoonestStart):
        uses_keys: KeyUse = "always"

    policy = KeyReader()
    router_state = router_state_of(1, policy)
    key = PromptKey((b"first", b"second"), 64)
    arrive(router_state, 0.0, RoutedRequest(num_tokens=200, key=key))
    joined, dispatched = policy.events
    assert joined == Joined(0, "bytes")
    assert isinstance(dispatched, Dispatched)
    assert dispatched.request.keys == {"bytes": key}
    assert router_state.view.uses_keys
    assert not router_state_of(1).view.uses_keys


def held_tokens(router_state: RouterState, key: PromptKey, now_s: float) -> int:
    """Send a request with a key and answer it; return what its worker was believed to hold of it."""
    ticket, actions = arrive(router_state, now_s, RoutedRequest(num_tokens=200, key=key))
    (send,) = (action for action in actions if isinstance(action, Send))
    router_state.answered(ticket, 200, WorkerUsage(), now_s + 0.1)
    return send.choice.held_tokens


def test_a_worker_whose_process_has_ended_is_not_believed_to_hold_what_it_held() -> None:
    key = PromptKey((b"first", b"second"), 64)
    for is_gone in (False, True):
        router_state = router_state_of(1, Stretto())
        assert [held_tokens(router_state, key, now_s) > 0 for now_s in (0.0, 1.0)] == [False, True]
        router_state.membership.check_failed(0, "it took no connection", 2.0, is_gone=is_gone)
        router_state.membership.check_passed(0, MODELS, None, 60.0)
        assert (held_tokens(router_state, key, 60.0) > 0) is not is_gone


@pytest.mark.parametrize("status", [200, 400, 503])
def test_a_refused_prompt_is_not_believed_to_be_held(status: int) -> None:
    key = PromptKey((b"first", b"second"), 64)
    router_state = router_state_of(1, Stretto(), max_attempts=1)
    ticket, _ = arrive(router_state, 0.0, RoutedRequest(num_tokens=200, key=key))
    if status == 503:
        router_state.refused(ticket, status, 0.5)
    else:
        router_state.answered(ticket, status, WorkerUsage(), 0.5)
    assert (held_tokens(router_state, key, 1.0) > 0) is (status == 200)


def test_a_worker_that_comes_back_with_another_memory_is_filled_as_it_allows() -> None:
    router_state = router_state_of(1, Stretto())
    key = PromptKey((b"first", b"second"), 64)
    ticket, _ = arrive(router_state, 0.0, RoutedRequest(num_tokens=200, key=key))
    assert held_tokens(router_state, key, 0.5) > 0
    router_state.membership.check_failed(0, "slow", 1.0)
    router_state.membership.check_passed(0, MODELS, 1000, 60.0)
    router_state.check_invariants()
    router_state.answered(ticket, 200, WorkerUsage(), 61.0)
    router_state.check_invariants()
    assert held_tokens(router_state, key, 62.0) == 0
    sent = [sends(arrive(router_state, 63.0, RoutedRequest(num_tokens=400))[1]) for _ in range(3)]
    assert [len(one) for one in sent] == [1, 0, 0]


def test_a_failure_is_passed_on_when_all_workers_that_list_the_model_have_failed() -> None:
    router_state = router_state_of(2)
    other = router_state.membership.add(WorkerConfig(url="http://other")).id
    router_state.membership.check_passed(other, {"o": {}}, None, 0.0)
    ticket, _ = arrive(router_state, 0.0)
    assert sends(router_state.refused(ticket, 503, 0.1)) == [(ticket, 1)]
    (refusal,) = router_state.refused(ticket, 503, 0.2)
    assert isinstance(refusal, Refuse)
    assert router_state.view.num_clients == 0


def test_a_request_returns_to_a_worker_where_it_failed_when_the_others_are_gone() -> None:
    router_state = router_state_of(2, num_slots=1)
    failing, _ = arrive(router_state, 0.0)
    arrive(router_state, 0.0)
    assert sends(router_state.refused(failing, 503, 0.1)) == []
    assert sends(router_state.membership.drain(1, 0.2)) == [(failing, 0)]
    router_state.check_invariants()


@pytest.mark.parametrize("num_dead", [1, 2, 3])
def test_requests_that_have_failed_at_a_worker_go_there_when_it_is_back(num_dead: int) -> None:
    """Others that they have not tried stay down: they must not wait for those."""
    router_state = router_state_of(1 + num_dead)
    for dead in range(1, 1 + num_dead):
        router_state.membership.check_failed(dead, "it is down", 0.0)
    tickets = [arrive(router_state, 0.0)[0] for _ in range(4)]
    lost = [router_state.failed(ticket, "it has reset the connection", 0.1) for ticket in tickets]
    for tried, worker in (sent for actions in lost for sent in sends(actions)):  # the one at a time
        router_state.failed(tried, "it is down", 0.1, was_sent=False)
        assert worker != 0
    router_state.check_invariants()
    sent = sends(router_state.membership.check_passed(0, MODELS, None, 1.0))
    assert len(sent) == 1, "it is on trial"
    sent += sends(router_state.answered(sent[0][0], 200, WorkerUsage(), 1.1))
    assert sorted(sent) == [(ticket, 0) for ticket in tickets]
    router_state.check_invariants()


def test_a_repeated_request_that_waits_delays_no_others() -> None:
    router_state = router_state_of(2, num_slots=1)
    failing, _ = arrive(router_state, 0.0)
    busy, _ = arrive(router_state, 0.0)
    assert sends(router_state.refused(failing, 503, 0.1)) == []
    new, actions = arrive(router_state, 0.2)
    assert sends(actions) == [(new, 0)]
    assert sends(router_state.answered(busy, 200, WorkerUsage(), 0.3)) == [(failing, 1)]


def test_requests_for_all_models_are_served_in_order() -> None:
    router_state = router_state_of(1, num_slots=1)
    router_state.membership.check_passed(0, {"m": {}, "n": {}}, None, 0.0)
    running, _ = arrive(router_state, 0.0)
    models = ["m", "n", "m", "", "unknown", "m", "n", "other", "m"]
    waiting = [arrive(router_state, 0.1, RoutedRequest(model=model, num_tokens=1))[0] for model in models]
    for expected in waiting:
        assert sends(router_state.answered(running, 200, WorkerUsage(), 1.0)) == [(expected, 0)]
        running = expected


def _hashes(beginning: int, num_blocks: int) -> PackedHashes:
    return PackedHashes(b"".join(b"%04d%04d" % (beginning, place) for place in range(num_blocks)))


@pytest.mark.parametrize("policy", [RoundRobin, LeastLoaded, LeastSeconds, SoonestStart, E2, Stretto])
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 8))])
def test_whatever_happens_every_request_ends_once_and_all_loads_return(
    policy: type[Placement], seed: int
) -> None:
    """Random arrivals, answers, failures, health checks, drains and additions, of programs that are held for
    room and of requests without one.
    """
    choices = random.Random(seed)
    placement = policy()
    settings = {"max_hold_s": choices.choice([5.0, 60.0]), "order": [*ORDERS][seed % len(ORDERS)]}
    router_state = router_state_of(3, placement, num_slots=2, max_waiting=6, max_wait_s=30.0, **settings)
    sizes = choices.choice([(None,), (1000,), (3000,), (None, 1000, 3000)])
    at_worker: dict[Ticket, WorkerId] = {}
    open_tickets: set[Ticket] = set()
    begun: set[Ticket] = set()
    gone: set[WorkerId] = set()
    now_s = 0.0

    def act(actions: list[RouterAction]) -> None:
        for action in actions:
            match action:
                case Send(ticket, worker):
                    assert ticket in open_tickets
                    assert worker not in gone
                    at_worker[ticket] = worker
                    begun.discard(ticket)
                case Stop(ticket) | Withdraw(ticket):
                    del at_worker[ticket]
                case Refuse(ticket) | Cut(ticket):
                    open_tickets.remove(ticket)
                    at_worker.pop(ticket, None)
                case WorkerGone(worker):
                    assert worker not in at_worker.values()
                    gone.add(worker)
        router_state.check_invariants()
        if isinstance(placement, ScoredPlacement):
            placement.index.check_invariants()

    def step(kind: str) -> None:
        running = sorted(at_worker)
        workers = [worker.id for worker in router_state.view.workers()]
        match kind:
            case "arrive":
                num_blocks = choices.randrange(14)
                beginnings = [_hashes(n, num_blocks) for n in range(3)]
                request = RoutedRequest(
                    model=choices.choice(["m", ""]),
                    num_tokens=64 * num_blocks + choices.randrange(64),
                    key=PromptKey(choices.choice(beginnings), 64),
                    client_key=choices.choice(["", "", "k1", "k2"]),
                    objective=choices.choice(["latency", "throughput", "throughput", "offline"]),
                    deadline_s=choices.choice([None, None, 1.0, 20.0]),
                    program=NamedProgram(
                        choices.choice(["", "a", "b", "c", "d"]),
                        is_final=choices.random() < 0.1,
                        has_returned=choices.random() < 0.7,
                    ),
                )
                ticket, actions = router_state.arrive(request, now_s)
                open_tickets.add(ticket)
                act(actions)
            case "begin" if running:
                ticket = choices.choice(running)
                act(router_state.began(ticket, 200, now_s))
                begun.add(ticket)
            case "answer" | "refuse" | "fail" if running:
                ticket = choices.choice(running)
                del at_worker[ticket]
                if kind == "answer":
                    open_tickets.remove(ticket)
                    status = choices.choice([200, 200, 400, 429, 500])
                    num_cached = choices.choice([0, choices.randrange(900), None])
                    usage = WorkerUsage(choices.randrange(900), choices.randrange(300), num_cached)
                    act(router_state.answered(ticket, status, usage, now_s))
                elif kind == "refuse" and ticket not in begun:
                    act(router_state.refused(ticket, choices.choice([503, 429, 401, 403]), now_s))
                else:
                    act(router_state.failed(ticket, "it closed", now_s))
            case "leave" if open_tickets:
                ticket = choices.choice(sorted(open_tickets))
                open_tickets.remove(ticket)
                at_worker.pop(ticket, None)
                act(router_state.left(ticket, now_s))
            case "pass" if workers:
                act(
                    router_state.membership.check_passed(
                        choices.choice(workers), MODELS, choices.choice(sizes), now_s
                    )
                )
            case "miss" if workers:
                is_gone = choices.random() < 0.3
                act(
                    router_state.membership.check_failed(
                        choices.choice(workers), "refused", now_s, is_gone=is_gone
                    )
                )
            case "drain" | "remove" if len(workers) > 1:
                worker = choices.choice(workers)
                act(
                    router_state.membership.drain(worker, now_s)
                    if kind == "drain"
                    else router_state.membership.remove(worker, now_s)
                )
            case "add" if len(workers) < 5:
                worker = router_state.membership.add(
                    WorkerConfig(url=f"http://new{now_s}", num_slots=2, api_key="k")
                ).id
                act(router_state.membership.check_passed(worker, MODELS, choices.choice(sizes), now_s))

    common = ["arrive"] * 6 + ["answer"] * 5 + ["begin", "pass", "pass"]
    rare = ["refuse", "fail", "leave", "miss", "drain", "remove", "add"]
    for _ in range(250):
        now_s += choices.random() * 0.3
        step(choices.choice(common + rare))
        act(router_state.timers.expire(now_s))
    for _ in range(120):
        now_s += 1.0
        for worker in router_state.view.workers():
            act(router_state.membership.check_passed(worker.id, MODELS, choices.choice(sizes), now_s))
        step("answer")
        act(router_state.timers.expire(now_s))
    assert not open_tickets
    assert router_state.view.num_clients == router_state.view.num_waiting == 0
    assert all(router_state.view.num_running(worker.id) == 0 for worker in router_state.view.workers())
    for worker in router_state.view.workers():
        router_state.membership.remove(worker.id, now_s)
    if isinstance(placement, ScoredPlacement):
        assert (placement.index.members, placement.index.caches) == ({}, {})
