"""The bound is below every time, equal where a schedule can reach it, and its outputs are the query's."""

import pytest

from benchmarks.common.query_bound import lower_bound
from benchmarks.common.virtual_engines import PROFILES, Lengths, inputs, virtual_engines
from benchmarks.passes.virtual import ALL, Setting, bound_of, end_to_end_s
from stretto.apps import APPS
from stretto.apps.plan_cache import PlanCache
from stretto.graph.passes.pipeline import PASSES
from stretto.sim.driver import VirtualDriver


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize(
    ("num_chunks", "policy"),
    [
        (130, "topology_aware"),
        *((num, policy) for num in (1, 2) for policy in ("topology_aware", "per_invocation")),
        pytest.param(130, "per_invocation", marks=pytest.mark.long),
        *(pytest.param(num, "throughput", marks=pytest.mark.long) for num in (1, 2, 130)),
    ],
)
def test_no_run_beats_the_bound(app: str, num_chunks: int, policy: str) -> None:
    setting = Setting(app, 5, num_chunks)
    bound = bound_of(setting)
    for passes in ((), *((name,) for name in PASSES), ALL):
        assert end_to_end_s(setting, passes, bound, policy) >= bound.seconds - 1e-9


def test_with_many_instances_the_critical_path_still_holds() -> None:
    setting = Setting("advanced", 5, 20)
    graph = APPS["advanced"]().lower({})
    engines = virtual_engines(Lengths(answer_tokens=5), llm_instances=8)
    bound = lower_bound(graph, inputs(20), engines)
    assert bound.critical_path_s == bound_of(setting).critical_path_s
    driver = VirtualDriver(engines)
    driver.submit("query", PlanCache(PROFILES).plan(APPS["advanced"](), {}, ALL), inputs(20))
    driver.run()
    assert driver.now_s >= bound.critical_path_s


def test_the_critical_path_of_one_chunk_is_the_sum_of_its_steps() -> None:
    """Naive RAG over one chunk: index, search, one leaf; the other leaves have no hit; then the root."""
    engines = virtual_engines(Lengths(answer_tokens=4))
    bound = lower_bound(APPS["naive"]().lower({}), inputs(1), engines)
    p = PROFILES
    indexed_s = p["chunking"].batch_s(1) + p["embedding"].batch_s(1) + p["vectors"].batch_s(1)
    searched_s = indexed_s + p["vectors"].batch_s(1)
    decode_s = 4 * p["llm"].per_output_s
    context_tokens = 400 // 4 + 1
    leaf_s = searched_s + p["llm"].batch_s(context_tokens) + decode_s
    drafts = len("ab cd ef gh") // 4 + 1
    root_s = leaf_s + p["llm"].batch_s(drafts) + decode_s
    assert bound.critical_path_s == pytest.approx(root_s, abs=0.001)


def test_work_of_the_one_embedding_instance_bounds_long_documents() -> None:
    bound = bound_of(Setting("naive", 5, 1000))
    assert max(bound.work_s, key=bound.work_s.__getitem__) == "embedding"
    assert bound.seconds > PROFILES["embedding"].per_unit_s * 1001
