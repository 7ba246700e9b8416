"""The table of an app service's queries, and the rule that admits them."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.apps import naive_rag
from stretto.apps.plan_cache import PlanCache
from stretto.model.deployment import deploy
from stretto.model.errors import DeadlineTooClose
from stretto.model.profile import Profile
from stretto.runtime.query import Query
from stretto.service.apps.admission import Admission, share_of, work_s
from stretto.service.apps.query_table import QueryTable

LLM = deploy(
    "llm",
    FakeLLM,
    FakeLLMConfig(),
    contract="llm",
    instances=2,
    max_running=4,
    profile=Profile(0.0, 0.0, per_output_s=0.01, per_neighbour_s=0.001),
)
EMBEDDING = deploy(
    "embedding", FakeBatch, FakeBatchConfig(), profile=Profile(0.1, 0.01, max_efficient_batch=10)
)


def query() -> Query:
    return Query("q1", lambda: None, asyncio.new_event_loop())


def test_ended_queries_are_kept_for_a_while_and_are_their_tenants_alone() -> None:
    table = QueryTable(keep_s=10, max_kept=2, max_kept_bytes=100)
    first, second, third = (table.add("app", "me", query(), now_s) for now_s in (0.0, 1.0, 2.0))
    assert len({first.id, second.id, third.id}) == 3
    assert table.get("app", "me", first.id, 100.0) is first
    assert table.get("app", "you", first.id, 100.0) is None
    assert table.get("other", "me", first.id, 100.0) is None
    assert table.get("app", "me", "q_none", 100.0) is None
    table.end(first.id, 100.0)
    assert [one.id for one in table.running("me")] == [second.id, third.id]
    assert table.get("app", "me", first.id, 110.0) is first
    assert table.get("app", "me", first.id, 110.1) is None
    table.end(second.id, 111.0)
    table.end(third.id, 112.0)
    fourth = table.add("app", "me", query(), 113.0)
    table.end(fourth.id, 113.0)
    assert table.get("app", "me", second.id, 113.0) is None
    assert table.get("app", "me", third.id, 113.0) is third


def test_many_queries_of_a_tenant_push_out_no_query_of_another() -> None:
    table = QueryTable(keep_s=10, max_kept=2, max_kept_bytes=100)
    mine = table.add("app", "me", query(), 0.0)
    table.end(mine.id, 0.0)
    others = [table.add("app", "you", query(), 1.0) for _ in range(5)]
    for one in others:
        table.end(one.id, 1.0)
    assert table.get("app", "me", mine.id, 2.0) is mine
    kept = [table.get("app", "you", one.id, 2.0) is one for one in others]
    assert kept == [False, False, False, True, True]
    assert len(table) == 3
    assert table.get("app", "you", others[4].id, 12.0) is None
    assert len(table) == 0


def test_outputs_of_ended_queries_that_are_too_large_together_are_forgotten() -> None:
    table = QueryTable(keep_s=10, max_kept=9, max_kept_bytes=100)
    queries = [table.add("app", "me", query(), 0.0) for _ in range(4)]
    other = table.add("app", "you", query(), 0.0)
    table.end(other.id, 0.0, 100)

    def kept() -> list[bool]:
        return [table.get("app", "me", one.id, 1.0) is one for one in queries]

    table.end(queries[0].id, 1.0, 60)
    table.end(queries[1].id, 1.0, 40)
    assert kept() == [True, True, True, True]
    table.end(queries[2].id, 1.0, 1)
    assert kept() == [False, True, True, True]
    table.end(queries[3].id, 1.0, 1000)
    assert kept() == [False, False, False, True], "the last one is kept in any case"
    assert table.get("app", "you", other.id, 1.0) is other


def test_work_is_counted_in_seconds_of_full_batches_on_all_instances() -> None:
    decode, embedding = share_of(LLM), share_of(EMBEDDING)
    assert decode.decode == pytest.approx((0.013 / 4) / 0.01 / 2)
    assert embedding.unit == pytest.approx((0.2 / 10) / 0.11)
    assert embedding.batch == 1.0
    profiles = {one.name: one.profile for one in (LLM, EMBEDDING)}
    nodes = PlanCache(profiles).plan(naive_rag(), {"synthesis": {"max_tokens": 100}}, ()).nodes
    found = work_s(nodes, {"llm": decode, "embedding": embedding})
    assert found["llm"] == pytest.approx(4 * 1.0 * decode.decode)
    assert found["embedding"] == pytest.approx(0.2 + 0.11 * embedding.unit)


def test_a_query_is_refused_with_what_it_would_need() -> None:
    admission = Admission([LLM])
    nodes = PlanCache({"llm": LLM.profile}).plan(naive_rag(), {"synthesis": {"max_tokens": 100}}, ()).nodes
    alone = admission.estimate("app", nodes, (), 0.0)
    assert alone.needs_s == pytest.approx(2.0)
    admission.check(alone, 0.5, (), 0.0)  # nothing is known of the app yet, and nothing runs
    busy = admission.estimate("app", nodes, [*nodes] * 10, 0.0)
    assert busy.needs_s == pytest.approx(2.0 + 10 * 4 * 0.1625)
    admission.check(busy, 8.6, nodes, 0.0)
    with pytest.raises(DeadlineTooClose, match=r"predicted to need 8\.5 s now") as refused:
        admission.check(busy, 5.0, nodes, 0.0)
    assert (refused.value.needs_s, refused.value.retry_after_s) == (busy.needs_s, busy.needs_s - 5.0)
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (copy.needs_s, copy.retry_after_s, str(copy)) == (
        busy.needs_s,
        busy.needs_s - 5,
        str(refused.value),
    )


def test_what_queries_took_corrects_predictions_until_it_is_old() -> None:
    admission = Admission([LLM])
    nodes = PlanCache({"llm": LLM.profile}).plan(naive_rag(), {"synthesis": {"max_tokens": 100}}, ()).nodes
    estimate = admission.estimate("app", nodes, (), 0.0)
    for number in range(10):
        admission.note_end(estimate, 0.1 * number, float(number))
    corrected = admission.estimate("app", nodes, (), 10.0)
    assert corrected.needs_s == pytest.approx(0.8)  # nine of ten took that long at most
    assert admission.estimate("other", nodes, (), 10.0).needs_s == pytest.approx(2.0)
    with pytest.raises(DeadlineTooClose):
        admission.check(corrected, 0.7, (), 10.0)
    assert admission.estimate("app", nodes, (), 100.0).needs_s == pytest.approx(2.0)


def test_a_query_that_its_deadline_ended_teaches_only_that_it_takes_longer() -> None:
    admission = Admission([LLM])
    nodes = PlanCache({"llm": LLM.profile}).plan(naive_rag(), {"synthesis": {"max_tokens": 100}}, ()).nodes
    estimate = admission.estimate("app", nodes, (), 0.0)
    admission.note_end(estimate, 1.0, 0.0, is_whole=False)
    assert admission.estimate("app", nodes, (), 0.0).needs_s == pytest.approx(2.0)
    admission.note_end(estimate, 3.0, 0.0, is_whole=False)
    assert admission.estimate("app", nodes, (), 0.0).needs_s == pytest.approx(3.0)
