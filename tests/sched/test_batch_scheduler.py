"""The lower tier for batch engines: events in, exact actions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from support.machines import add_ready, batch_engine, batch_request, lost, serving, start_all

from stretto.cluster.messages import StartInstance, StopInstance
from stretto.graph.compile import compile_graph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import (
    BadReply,
    BadServer,
    EffectInDoubt,
    EngineFailure,
    EngineTimeout,
    EngineUnavailable,
    StrettoError,
)
from stretto.model.profile import Profile
from stretto.model.values import Failure
from stretto.sched.actions import Action, CancelTask, Release, StartBatch
from stretto.sched.engines.batch_scheduler import BatchScheduler
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.results import Completed, Report

Batch = list[tuple[str, str]]


class Machine(BatchScheduler):
    """A scheduler under test that remembers the last batch of each instance."""

    batches: dict[int, int]

    def start(self, now_s: float = 0.0) -> list[tuple[int, list[tuple[str, str | list[str]]]]]:
        """Return what `schedule` starts: (instance, [(step, items)])."""
        actions = [action for action in self.schedule(now_s) if isinstance(action, StartBatch)]
        self.check_invariants()
        self.batches.update({action.instance: action.batch for action in actions})
        return [(action.instance, parts(action)) for action in actions]

    def answer(self, results: object, instance: int = 0) -> list[Report]:
        return self.done(instance, self.batches[instance], results)  # type: ignore[arg-type]

    def fail(self, error: StrettoError, instance: int = 0) -> list[Report]:
        return self.failed(instance, self.batches[instance], error)


def machine(*works: StepRequest, engine: Deployment | None = None) -> Machine:
    deployment = engine or batch_engine()
    scheduler = Machine(deployment.engine, deployment.profile, count(1))
    scheduler.batches = {}
    serving(scheduler, deployment)
    for work in works:
        scheduler.add(work, 0.0)
    return scheduler


def parts(action: Action) -> list[tuple[str, str | list[str]]]:
    assert isinstance(action, StartBatch)
    found = []
    for task in action.tasks:
        texts = task.inputs["texts"]
        assert isinstance(texts, str | list)
        found.append((task.step, texts))
    return found


def errors(reports: Sequence[Report]) -> list[tuple[str, type[StrettoError], str | None]]:
    found = []
    for report in reports:
        assert isinstance(report, Completed)
        failures = [result for result in report.results if isinstance(result, Failure)]
        assert len(failures) == len(report.results)
        found += [(report.query, type(failure.error), failure.error.step) for failure in failures[:1]]
    return found


def test_a_batch_is_filled_from_several_queries_and_a_part_stays_behind() -> None:
    scheduler = machine(batch_request("1", "a", "xyz"), batch_request("2", "b", "uvw"))
    (action,) = scheduler.schedule(0.0)
    assert isinstance(action, StartBatch)
    assert (action.engine, action.instance, action.batch, action.num_units) == ("e", 0, 3, 4)
    assert parts(action) == [("a", ["x", "y", "z"]), ("b", ["u"])]
    assert [(t.id, t.query, t.op, t.num_items, t.each) for t in action.tasks] == [
        (1, "1", "embed", 3, ("texts",)),
        (2, "2", "embed", 1, ("texts",)),
    ]
    assert scheduler.start() == []
    reports = scheduler.done(0, action.batch, [["X", "Y", "Z"], ["U"]])
    assert reports == [Completed("1", 0, 0, ["X", "Y", "Z"]), Completed("2", 0, 0, ["U"])]
    assert scheduler.start() == [(0, [("b", ["v", "w"])])]
    assert scheduler.answer([["V", "W"]]) == [Completed("2", 0, 1, ["V", "W"])]
    assert scheduler.is_idle()


def test_every_idle_instance_gets_a_batch_the_least_worked_first() -> None:
    engine = batch_engine(instances=3, max_batch=2, profile=Profile(1.0, 1.0))
    scheduler = machine(batch_request("1", "a", "pqrst"), engine=engine)
    assert scheduler.start() == [(0, [("a", ["p", "q"])]), (1, [("a", ["r", "s"])]), (2, [("a", ["t"])])]
    for instance, items in enumerate(("PQ", "RS", "T")):
        scheduler.answer([list(items)], instance)
    scheduler.add(batch_request("1", "b", "u"), 1.0)
    assert scheduler.start() == [(2, [("b", ["u"])])], "it has had one unit less"


def test_an_item_larger_than_a_batch_runs_alone_and_is_not_starved() -> None:
    large = batch_request("1", "large", "xy", units=(9, 1))
    for policy in ("topology_aware", "throughput", "per_invocation"):
        scheduler = machine(large, engine=batch_engine(policy=policy))
        assert scheduler.start() == [(0, [("large", ["x"])])], policy
    scheduler = machine(large, batch_request("2", "b", "uvwxyz"))
    assert scheduler.start() == [(0, [("b", ["u", "v", "w", "x"])])]
    scheduler.answer([list("UVWX")])
    assert scheduler.start(11.0) == [(0, [("large", ["x"])])], "aged by now"


def test_a_single_application_has_no_item_count() -> None:
    scheduler = machine(batch_request("1", "a", "x", each=()))
    (action,) = scheduler.schedule(0.0)
    assert isinstance(action, StartBatch)
    assert action.tasks[0].num_items is None
    assert scheduler.done(0, action.batch, ["X"]) == [Completed("1", 0, 0, ("X",))]


def test_a_failed_batch_is_run_again_task_by_task() -> None:
    """And then item by item: only the culprit fails. Attempts do not count: the instance was not at fault."""
    scheduler = machine(
        batch_request("1", "a", "xy"), batch_request("2", "b", "u"), engine=batch_engine(max_attempts=1)
    )
    scheduler.start()
    scheduler.add(batch_request("3", "c", "p"), 0.0)
    assert scheduler.fail(EngineFailure("broken")) == []
    assert scheduler.start() == [(0, [("a", ["x", "y"])])]
    assert scheduler.fail(EngineFailure("broken")) == []
    assert scheduler.start() == [(0, [("b", ["u"])])]
    assert scheduler.answer([["U"]]) == [Completed("2", 0, 0, ["U"])]
    assert scheduler.start() == [(0, [("a", ["x"])])]
    assert errors(scheduler.fail(EngineFailure("broken"))) == [("1", EngineFailure, "a")]
    assert scheduler.start() == [(0, [("a", ["y"])])]
    assert scheduler.answer([["Y"]]) == [Completed("1", 0, 1, ["Y"])]
    assert scheduler.start() == [(0, [("c", ["p"])])]


def test_a_step_that_the_error_names_keeps_its_name() -> None:
    scheduler = machine(batch_request("1", "a", "x"))
    scheduler.start()
    assert errors(scheduler.fail(BadReply("no", step="inner"))) == [("1", BadReply, "inner")]


@pytest.mark.parametrize("results", [[["X"]], [], [["X"], ["U"], ["?"]], None, "XU", 7, {"a": 1}])
def test_a_batch_with_the_wrong_number_of_answers_is_run_again_apart(results: object) -> None:
    scheduler = machine(batch_request("1", "a", "x"), batch_request("2", "b", "u"))
    scheduler.start()
    assert scheduler.answer(results) == []
    assert scheduler.start() == [(0, [("a", ["x"])])]
    assert errors(scheduler.answer(None)) == [("1", BadReply, "a")]
    assert scheduler.start() == [(0, [("b", ["u"])])]


@pytest.mark.parametrize(
    ("result", "failed", "kind", "message"),
    [
        (None, [0, 1], BadReply, "None"),
        (["X"], [0, 1], BadReply, "1 results for 2 items"),
        ("XY", [0, 1], BadReply, "a str, not a list"),
        ({"a": 1}, [0, 1], BadReply, "a dict, not a list"),
        (["X", None], [1], BadReply, "None for item 1"),
        (EngineFailure("no"), [0, 1], EngineFailure, "no"),
        (["X", EngineFailure("no")], [1], EngineFailure, "no"),
    ],
)
def test_a_bad_answer_fails_its_own_items_only(
    result: object, failed: list[int], kind: type[StrettoError], message: str
) -> None:
    scheduler = machine(batch_request("1", "a", "xy"), batch_request("2", "b", "u"))
    scheduler.start()
    broken, fine = scheduler.answer([result, ["U"]])
    assert isinstance(broken, Completed)
    failures = {i: item for i, item in enumerate(broken.results) if isinstance(item, Failure)}
    assert list(failures) == failed
    for failure in failures.values():
        assert type(failure.error) is kind
        assert failure.error.step == "a"
        assert message in failure.error.message
    assert fine == Completed("2", 0, 0, ["U"])


def test_lost_work_is_tried_elsewhere_apart_and_not_for_ever() -> None:
    engine = batch_engine(max_attempts=3, instances=2)
    scheduler = machine(batch_request("1", "a", "xy"), batch_request("2", "b", "u"), engine=engine)
    assert scheduler.start() == [(0, [("a", ["x", "y"]), ("b", ["u"])])]
    error = EngineUnavailable("it died")
    assert lost(scheduler, 0, error) == []
    assert scheduler.start() == [(1, [("a", ["x", "y"])]), (2, [("b", ["u"])])]
    assert lost(scheduler, 1, error) == []
    assert lost(scheduler, 2, error) == []
    assert scheduler.start() == [(3, [("a", ["x", "y"])]), (4, [("b", ["u"])])]
    assert sorted(errors(lost(scheduler, 3, error) + lost(scheduler, 4, error))) == [
        ("1", EngineUnavailable, "a"),
        ("2", EngineUnavailable, "b"),
    ]
    assert scheduler.is_idle()


def test_a_batch_that_says_the_instance_is_gone_counts_as_lost() -> None:
    scheduler = machine(batch_request("1", "a", "x"), engine=batch_engine(max_attempts=2))
    scheduler.start()
    assert scheduler.fail(EngineUnavailable("no route")) == []
    assert scheduler.start() == [(0, [("a", ["x"])])]
    assert errors(scheduler.fail(EngineUnavailable("no route"))) == [("1", EngineUnavailable, "a")]


def test_losing_an_idle_instance_starts_another_and_is_nothing_else() -> None:
    engine = batch_engine()
    scheduler = machine(engine=engine)
    restart = StartInstance("e", 1, engine.replicas[0])
    assert scheduler.lost(0, EngineUnavailable("it died"), 1.0) == ([], [restart])


def test_an_instance_that_does_not_answer_is_given_up() -> None:
    engine = batch_engine(timeout_s=5.0, instances=2, max_batch=1)
    (replica, _) = engine.replicas
    scheduler = machine(batch_request("1", "a", "x"), engine=engine)
    assert scheduler.next_expiry_s() is None
    scheduler.schedule(1.0)
    scheduler.add(batch_request("2", "b", "u"), 2.0)
    scheduler.schedule(2.0)
    assert scheduler.next_expiry_s() == 6.0
    assert scheduler.expire(5.9) == ([], [])
    reports, actions = scheduler.expire(6.0)
    assert (reports, actions) == ([], [StopInstance("e", 0, "kill"), StartInstance("e", 2, replica)])
    assert start_all(scheduler, actions, 6.0) == [2]
    assert scheduler.start(6.0) == [(2, [("a", ["x"])])]
    assert scheduler.next_expiry_s() == 7.0
    reports, actions = scheduler.expire(20.0)
    assert reports == []
    assert actions == [
        StopInstance("e", 1, "kill"),
        StartInstance("e", 3, replica),
        StopInstance("e", 2, "kill"),
    ], "the second failure of a replica in a row has its successor wait a little"
    assert start_all(scheduler, [*actions, *scheduler.expire(20.1)[1]], 20.1) == [3, 4]
    scheduler.start(20.1)
    reports, _ = scheduler.expire(25.1)
    assert errors(reports) == [("1", EngineTimeout, "a")]
    assert isinstance(reports[0], Completed)
    (failure,) = reports[0].results
    assert isinstance(failure, Failure)
    assert failure.error.message == "engine 'e' gave no answer for 5 s"


def test_late_answers_are_ignored() -> None:
    scheduler = machine(batch_request("1", "a", "x"))
    scheduler.start()
    old = scheduler.batches[0]
    lost(scheduler, 0, EngineUnavailable("it died"))
    assert scheduler.start() == [(1, [("a", ["x"])])]
    assert scheduler.done(0, old, [["old"]]) == []
    assert scheduler.failed(0, old, EngineFailure("old")) == []
    assert scheduler.done(1, old, [["old"]]) == []
    assert scheduler.answer([["X"]], 1) == [Completed("1", 0, 0, ["X"])]
    assert scheduler.answer([["again"]], 1) == []


def test_an_ended_query_is_released_once_nothing_of_it_runs() -> None:
    engine = batch_engine(keeps_state=True, max_batch=2)
    scheduler = machine(batch_request("1", "a", "xyz"), batch_request("2", "b", "u"), engine=engine)
    assert scheduler.start() == [(0, [("a", ["x", "y"])])]
    assert scheduler.end_query("1") == [CancelTask("e", 0, 1)]
    assert [work.query for work in scheduler.queue] == ["2"]
    assert scheduler.kept.releases() == []
    scheduler.answer([["X", "Y"]])
    assert scheduler.kept.releases() == [Release("e", 0, "1")]
    assert scheduler.kept.releases() == []
    assert scheduler.end_query("3") == [], "never seen here"


def test_what_a_cancelled_query_lost_is_not_tried_again() -> None:
    engine = batch_engine(keeps_state=True)
    scheduler = machine(batch_request("1", "a", "x"), batch_request("2", "b", "u"), engine=engine)
    scheduler.start()
    scheduler.end_query("1")
    assert scheduler.fail(EngineFailure("broken")) == []
    assert scheduler.kept.releases() == [Release("e", 0, "1")]
    assert scheduler.start() == [(0, [("b", ["u"])])]


def test_throughput_waits_and_then_starts() -> None:
    scheduler = machine(batch_request("1", "a", "x"), engine=batch_engine(policy="throughput"))
    assert scheduler.start() == []
    assert scheduler.not_before_s == 0.005
    assert scheduler.start(0.005) == [(0, [("a", ["x"])])]
    assert scheduler.not_before_s is None


ROUNDS = [[("A1", "ab")], [("B1", "de")]], [[("A2", "c"), ("B2", "f")]]
AS_THEY_COME = [[("A1", "ab")], [("A2", "c"), ("B1", "d")]], [[("B1", "e"), ("B2", "f")]]
ONE_BY_ONE = [[("A1", "ab")], [("A2", "c")]], [[("B1", "de")], [("B2", "f")]]


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("topology_aware", *ROUNDS),
        ("least_work", *AS_THEY_COME),
        ("throughput", *AS_THEY_COME),
        ("per_invocation", *ONE_BY_ONE),
    ],
)
def test_what_each_policy_starts(policy: str, first: list[Batch], second: list[Batch]) -> None:
    """Two queries with two levels each, two instances, two items in a batch."""
    engine = batch_engine(policy=policy, instances=2, max_batch=2, profile=Profile(per_unit_s=0.1))
    scheduler = machine(
        batch_request("A", "A1", "ab", depth=2, path_s=2.0),
        batch_request("A", "A2", "c", depth=1, path_s=1.0),
        batch_request("B", "B1", "de", depth=1, path_s=1.0),
        batch_request("B", "B2", "f", depth=0),
        engine=engine,
    )

    def started() -> list[Batch]:
        return [[(step, "".join(items)) for step, items in batch] for _, batch in scheduler.start()]

    assert started() == first
    for instance, batch in enumerate(first):
        scheduler.answer([list(items.upper()) for _, items in batch], instance)
    assert started() == second


def effect(query: str, name: str, **settings: object) -> StepRequest:
    """A call that changes something outside."""
    text = 'graph g(%x: text)\n%done = call(%x) {result="effect"} : effect @e'
    (node,) = compile_graph(parse_graph(text), {}).nodes
    node = replace(node, name=name, config={**node.config, **settings})
    return StepRequest(query=query, node=node, step=name, lo=0, hi=1, inputs={"texts": name})


@pytest.mark.parametrize(
    "error",
    [EngineUnavailable("the node has died"), EngineTimeout("no answer")],
    ids=lambda e: type(e).__name__,
)
def test_an_effect_that_had_begun_is_not_tried_again_but_fails_by_name(error: StrettoError) -> None:
    scheduler = machine(effect("1", "pay"), engine=batch_engine(instances=2))
    assert scheduler.start() == [(0, [("pay", "pay")])]
    (broken,) = lost(scheduler, 0, error)
    assert isinstance(broken, Completed)
    (failure,) = broken.results
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, EffectInDoubt)
    assert "it may have happened" in str(failure.error)
    assert failure.error.step == "pay"
    assert scheduler.start() == []
    assert scheduler.is_idle()


def test_an_effect_with_an_idempotency_key_is_tried_again() -> None:
    scheduler = machine(effect("1", "pay", idempotent=True), engine=batch_engine(instances=2))
    assert scheduler.start() == [(0, [("pay", "pay")])]
    assert lost(scheduler, 0, EngineUnavailable("the node has died")) == []
    assert scheduler.start() == [(1, [("pay", "pay")])]


def test_ingesting_is_tried_again_for_it_replaces_what_is_there() -> None:
    text = "graph g(%c: chunk, %v: vector)\n%i = ingest(%c, %v) : effect @e"
    (node,) = compile_graph(parse_graph(text), {}).nodes
    assert node.is_effect
    assert not node.runs_once


def test_an_effect_runs_in_a_batch_of_its_own_so_that_no_neighbour_has_it_run_again() -> None:
    works = (
        batch_request("1", "a", "x"),
        effect("2", "pay"),
        effect("3", "send"),
        batch_request("4", "b", "y"),
    )
    scheduler = machine(*works, engine=batch_engine(policy="throughput", fill_timeout_s=0.0))
    batches = []
    while started := scheduler.start():
        batches.append([step for step, _ in started[0][1]])
        scheduler.fail(EngineFailure("it broke"))
    assert ["pay"] in batches
    assert ["send"] in batches
    assert all(len(batch) == 1 for batch in batches if {"pay", "send"} & set(batch))
    assert sum(batch.count("pay") for batch in batches) == 1


def test_items_answered_wrongly_do_not_wait_for_ever_for_an_instance_that_stays_away() -> None:
    """All of a batch is answered wrongly by both instances; then one of them is down for good."""
    deployment = batch_engine()
    scheduler = machine(batch_request("1", "a", "xy"), engine=deployment)
    add_ready(scheduler, deployment.replicas[0], 0.0)
    ((first, _),) = scheduler.start()
    assert scheduler.fail(BadServer("no API"), first) == []
    ((other, _),) = scheduler.start(1.0)
    assert other != first
    assert scheduler.fail(BadServer("no API"), other) == []
    scheduler.suspected(other, "down", 2.0)
    assert scheduler.start(2.0) == []
    limit_s = batch_engine().engine.recover_s
    ((again, _),) = scheduler.start(2.0 + limit_s)
    assert again == first
