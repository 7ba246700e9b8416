"""Attempts of steps, as their user wants them: retries with backoff, timeouts, fallback engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.machines import CheckedSystem, batch_engine, llm_engine
from support.systems import error_of, started, steps, submit

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.errors import (
    BadReply,
    CapacityError,
    EngineFailure,
    EngineTimeout,
    InternalError,
    UserError,
)
from stretto.model.profile import Profile
from stretto.model.tasks import Done, Failed
from stretto.sched.actions import Action, Admit, CancelTask
from stretto.sched.engine_events import BatchDone, BatchFailed, LLMReport
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.messages import Cancel, Wake
from stretto.sched.orders import ORDERS
from stretto.sched.orders.arrival import PerInvocation
from stretto.sched.queries.attempts import Attempts
from stretto.sched.queries.request import QueueEntry, StepRequest
from stretto.sched.queries.results import Completed

DOWN = BadReply("no")


def embed(strategy: str, each: str = "each ") -> str:
    result = "list[vector]" if each else "vector"
    return (
        f"graph g(%xs: list[text], %x: text)\n"
        f"%v = embed({each}%{'xs' if each else 'x'}) : {result} @e with {{{strategy}}}\nreturn %v"
    )


def system_of(*engines: str) -> CheckedSystem:
    return CheckedSystem([batch_engine(name) for name in engines])


def begin(system: CheckedSystem, strategy: str, xs: Sequence[str] = ("a",)) -> list[Action]:
    return system.handle([submit("q", embed(strategy), xs=list(xs), x="x")], 0.0)


def fail(system: CheckedSystem, actions: Sequence[Action], now_s: float) -> list[Action]:
    """Fail the one batch that was started."""
    (batch,) = started(actions)
    return system.handle([BatchFailed(batch.engine, batch.instance, batch.batch, DOWN)], now_s)


def answer(system: CheckedSystem, actions: Sequence[Action], now_s: float, *results: object) -> list[Action]:
    (batch,) = started(actions)
    return system.handle([BatchDone(batch.engine, batch.instance, batch.batch, [list(results)])], now_s)


def test_a_failed_step_is_tried_again_after_times_that_double() -> None:
    system = system_of("e")
    actions = begin(system, '"retries": 2, "backoff_s": 1.0')
    fail(system, actions, 5.0)
    assert system.alarms_s == [6.0]
    assert "q" not in system.replies
    assert started(system.handle([Wake()], 5.5)) == []
    fail(system, system.handle([Wake()], 6.0), 7.0)
    assert system.alarms_s == [9.0]
    answer(system, system.handle([Wake()], 9.0), 9.5, "v")
    assert system.replies["q"].outputs == {"v": ["v"]}


def test_the_last_failure_is_reported() -> None:
    system = system_of("e")
    fail(system, begin(system, '"retries": 1, "backoff_s": 0.0'), 1.0)
    fail(system, system.handle([Wake()], 1.0), 2.0)
    assert isinstance(error_of(system, "q"), BadReply)
    assert error_of(system, "q").step == "v"


def test_the_fallback_engine_gets_what_has_failed_everywhere_else() -> None:
    system = system_of("e", "backup")
    begun = begin(system, '"retries": 1, "backoff_s": 0.0, "fallback": "backup"')
    fail(system, begun, 1.0)
    fail(system, system.handle([Wake()], 1.0), 2.0)
    actions = system.handle([Wake()], 2.0)
    assert [batch.engine for batch in started(actions)] == ["backup"]
    fail(system, actions, 3.0)
    actions = system.handle([Wake()], 3.0)
    assert [batch.engine for batch in started(actions)] == ["backup"]
    fail(system, actions, 4.0)
    assert isinstance(error_of(system, "q"), BadReply)


def test_only_the_items_that_failed_are_tried_again() -> None:
    system = system_of("e")
    actions = begin(system, '"retries": 1, "backoff_s": 1.0', "abcd")
    answer(system, actions, 1.0, "A", BadReply("b"), BadReply("c"), "D")
    again = system.handle([Wake()], 2.0)
    (batch,) = started(again)
    assert [item for task in batch.tasks for item in task.inputs["texts"]] == ["b", "c"]  # type: ignore[attr-defined]
    system.handle([BatchDone("e", batch.instance, batch.batch, [["B"]] * len(batch.tasks))], 3.0)
    assert system.replies["q"].outputs == {"v": ["A", "B", "B", "D"]}


def test_a_step_that_takes_too_long_goes_elsewhere_and_the_first_answer_counts() -> None:
    system = system_of("e", "backup")
    begun = begin(system, '"timeout_s": 3.0, "fallback": "backup"')
    assert system.alarms_s == [3.0]
    elsewhere = system.handle([Wake()], 3.0)
    assert [batch.engine for batch in started(elsewhere)] == ["backup"]
    answer(system, begun, 4.0, "late")
    assert system.replies["q"].outputs == {"v": ["late"]}
    answer(system, elsewhere, 5.0, "later")
    assert system.is_idle()


def test_a_step_without_an_answer_fails_with_a_timeout() -> None:
    system = system_of("e")
    begin(system, '"timeout_s": 3.0, "retries": 1, "backoff_s": 1.0')
    system.handle([Wake()], 3.0)
    system.handle([Wake()], 4.0)
    assert "q" not in system.replies
    system.handle([Wake()], 7.0)
    error = error_of(system, "q")
    assert isinstance(error, EngineTimeout)
    assert str(error) == "step 'v': no answer of engine 'e' for 3 s"


def texts_of(actions: Sequence[Action]) -> list[object]:
    """The items of all batches that were started."""
    tasks = [task for batch in started(actions) for task in batch.tasks]
    return [item for task in tasks for item in task.inputs["texts"]]  # type: ignore[attr-defined]


def test_a_timeout_of_some_items_leaves_the_others_where_they_are() -> None:
    """Two items run, two wait; the one that has been answered and those that wait are not sent again."""
    system = CheckedSystem([batch_engine("e", max_batch=1, instances=2)])
    begun = begin(system, '"timeout_s": 3.0, "retries": 1, "backoff_s": 1.0', "abc")
    assert texts_of(begun) == ["a", "b"]
    first, second = started(begun)
    third = system.handle([BatchDone("e", first.instance, first.batch, [["A"]])], 2.0)
    assert texts_of(third) == ["c"]
    assert texts_of(system.handle([Wake()], 3.0)) == []
    (batch,) = started(third)
    assert texts_of(system.handle([BatchDone("e", batch.instance, batch.batch, [["C"]])], 3.5)) == []
    again = system.handle([Wake()], 4.0)
    assert texts_of(again) == ["b"]
    assert texts_of(system.handle([BatchDone("e", second.instance, second.batch, [["B"]])], 6.5)) == []
    assert system.replies["q"].outputs == {"v": ["A", "B", "C"]}


def requests_of(count: int, gap_s: float) -> tuple[Attempts, ExecutionGraph]:
    """Attempts at one request for each item of a step, sent `gap_s` after one another."""
    graph = compile_graph(parse_graph(embed('"timeout_s": 1.0, "retries": 1, "backoff_s": 0.1')), {})
    attempts = Attempts()
    for i in range(count):
        request = StepRequest("q", graph.nodes[0], "v", i, i + 1, {"texts": [str(i)]}, ("texts",))
        attempts.sent(request, i * gap_s)
    return attempts, graph


@pytest.mark.parametrize("gap_s", [0.0, 1e-3, 0.3])
def test_each_item_that_times_out_is_sent_again_once(gap_s: float) -> None:
    attempts, _ = requests_of(40, gap_s)
    sent: list[int] = []
    withdrawn: list[int] = []
    failed: list[int] = []
    while (due_s := attempts.next_s) is not None:
        due = attempts.take(due_s)
        sent += [item for request in due.requests for item in range(request.lo, request.hi)]
        withdrawn += [item for items in due.withdrawn.values() for item in items]
        failed += [report.lo for report in due.reports]
    assert sorted(sent) == sorted(failed) == list(range(40))
    assert sorted(withdrawn) == sorted([*range(40), *range(40)])


def test_the_clock_of_an_attempt_begins_when_it_is_sent() -> None:
    """The second item was sent later, so its own time runs on when the first is tried again."""
    attempts, graph = requests_of(2, 0.5)
    assert attempts.next_s == 1.0
    assert [sorted(items) for items in attempts.take(1.0).withdrawn.values()] == [[0]]
    (again,) = attempts.take(1.1).requests
    assert (again.lo, again.hi) == (0, 1)
    assert attempts.next_s == 1.5
    attempts.judge([Completed("q", graph.nodes[0].id, 1, ("B",))], 1.4)
    assert attempts.next_s == 2.1


def test_a_timeout_of_one_llm_request_cancels_that_one_only() -> None:
    system = CheckedSystem([llm_engine()])
    strategy = 'with {"timeout_s": 2.0, "retries": 1, "backoff_s": 0.5}'
    text = (
        f"graph g(%xs: list[text])\n%A = prefill([each %xs]) : list[kv] @llm {strategy}\n"
        f"%B = decode(each %A) : list[text] @llm {strategy}\nreturn %B"
    )
    begun = system.handle([submit("q", text, xs=["a", "b"])], 0.0)
    first, second = (action for action in begun if isinstance(action, Admit))
    system.handle([LLMReport("llm", second.instance, Done(second.task.id, "B"))], 1.0)
    cancelled = [one.task for one in system.handle([Wake()], 2.0) if isinstance(one, CancelTask)]
    assert cancelled == [first.task.id]
    (again,) = (action for action in system.handle([Wake()], 2.5) if isinstance(action, Admit))
    assert again.task.prompt == first.task.prompt
    system.handle([LLMReport("llm", again.instance, Done(again.task.id, "A"))], 3.0)
    assert system.replies["q"].outputs == {"B": ["A", "B"]}


def test_waiting_items_that_time_out_leave_the_queue_and_others_stay_there() -> None:
    """The engine is busy with other work; of one request, one item was added later."""
    queue = EngineQueue(batch_engine("e").engine, Profile(), ORDERS)
    graph = compile_graph(parse_graph(embed('"timeout_s": 1.0')), {})
    request = StepRequest("q", graph.nodes[0], "v", 0, 5, {"texts": list("abcde")}, ("texts",))
    queue.add(QueueEntry(request, 0.0))
    assert queue.withdraw("q", 0, {1, 3, 9}) == 2
    assert sorted((entry.lo, entry.hi) for entry in queue) == [(0, 1), (2, 3), (4, 5)]
    assert queue.withdraw("q", 0, {7}) == 0
    assert queue.withdraw("q", 0) == 3
    assert not queue


def test_an_llm_call_is_cancelled_and_sent_to_the_fallback() -> None:
    system = CheckedSystem([llm_engine(), llm_engine("backup")])
    text = (
        "graph g(%q: text)\n"
        '%A = prefill([%q]) : kv @llm with {"timeout_s": 2.0, "fallback": "backup"}\n'
        '%B = decode(%A) : text @llm with {"timeout_s": 2.0, "fallback": "backup"}\nreturn %B'
    )
    begun = system.handle([submit("q", text, q="x")], 0.0)
    (first,) = (action for action in begun if isinstance(action, Admit))
    actions = system.handle([Wake()], 2.0)
    assert [(one.engine, one.task) for one in actions if isinstance(one, CancelTask)] == [
        ("llm", first.task.id)
    ]
    (second,) = (action for action in actions if isinstance(action, Admit))
    assert (second.engine, second.task.prompt) == ("backup", first.task.prompt)
    system.handle([LLMReport("backup", second.instance, Failed(second.task.id, BadReply("no")))], 3.0)
    assert isinstance(error_of(system, "q"), BadReply)


def test_the_end_of_a_query_ends_its_attempts() -> None:
    system = system_of("e")
    fail(system, begin(system, '"retries": 3, "backoff_s": 1.0'), 0.5)
    system.handle([Cancel("q")], 1.0)
    assert steps(system.handle([Wake()], 10.0)) == []
    assert system.is_idle()


@pytest.mark.parametrize("error", [CapacityError("too long"), UserError("wrong")])
def test_what_no_further_attempt_mends_is_not_tried_again(error: Exception) -> None:
    system = system_of("e")
    (batch,) = started(begin(system, '"retries": 3'))
    system.handle([BatchFailed("e", batch.instance, batch.batch, error)], 1.0)  # type: ignore[arg-type]
    assert error_of(system, "q") is not None


def test_an_effect_that_must_not_happen_twice_is_not_tried_again() -> None:
    system = system_of("e")
    text = (
        'graph g(%x: text)\n!s = call(%x) {result="effect"} : effect @e with {"retries": 3}\n'
        "%y = aggregate(%x) : list[text]\nreturn %y"
    )
    actions = system.handle([submit("q", text, x="x")], 0.0)
    fail(system, actions, 1.0)
    assert isinstance(error_of(system, "q"), EngineFailure)


class _Broken(PerInvocation):
    """An order with a bug that shows when work is withdrawn."""

    def remove(self, entry: QueueEntry) -> None:
        raise ValueError("a bug")


def test_a_bug_in_an_order_ends_the_queries_of_that_engine_when_an_attempt_takes_too_long() -> None:
    """Two of them have further attempts to send at that time; the query at another engine goes on."""
    vocabulary = replace(DEFAULT, policies={**DEFAULT.policies, "broken": _Broken})
    engines = [batch_engine(policy="broken"), batch_engine("other")]
    system = CheckedSystem(engines, vocabulary=vocabulary)
    text = embed('"timeout_s": 1.0, "retries": 1, "backoff_s": 0.0')
    for query in ("runs", "waits", "waits too"):
        system.handle([submit(query, text, xs=["a"], x="x")], 0.0)
    system.handle([submit("elsewhere", text.replace("@e", "@other"), xs=["a"], x="x")], 0.5)
    system.handle([Wake()], 1.0)
    assert sorted(system.replies) == ["runs", "waits", "waits too"]
    assert {type(reply.error) for reply in system.replies.values()} == {InternalError}
    system.handle([Wake()], 1.2)
    assert "elsewhere" not in system.replies
