"""One table has all names of metrics; servers, pages and the dashboard use no others."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from support.routing import routing, run

from stretto.cluster.placement import Choice
from stretto.operate.request_metrics import OTHER, RequestMetrics
from stretto.sched.request_trace import RequestTrace, Try
from stretto.wire import engine_metrics
from stretto.wire import metric_table as table
from stretto.wire.metrics import Family, Histogram, render

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"\b(?:stretto_|vllm:|sglang:)[a-z_:]+[a-z]\b(?!\()")
_ENDINGS = ("_bucket", "_count", "_sum")


def known_names() -> set[str]:
    """Return all names that stand in the text of `/metrics`."""
    names = set()
    for family in table.TABLE:
        names.add(family.name)
        names.update(family.name + ending for ending in _ENDINGS if family.kind == "histogram")
    return names


def names_in(text: str) -> set[str]:
    """Return what looks like names of metrics in a text."""
    return {name for name in _NAME.findall(text) if not name.endswith((".py", "_"))}


def trace_of(**more: Any) -> RequestTrace:
    """Return a request that was answered after 2 s."""
    trace = RequestTrace("r", "/v1/completions", 10.0, placed_s=10.0, decided_s=10.001, **more)
    trace.tries.append(Try(0, "http://w", Choice(0, held_tokens=60), 10.5, waited_s=0.5, held_s=0.2, why="x"))
    trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 100, 40, 11
    trace.first_token_s = 11.0
    trace.end(200, 12.0)
    return trace


def test_names_are_unique_and_every_metric_says_what_it_is() -> None:
    names = [family.name for family in table.TABLE]
    assert len(set(names)) == len(names)
    for family in table.TABLE:
        assert family.help.strip()
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert bool(family.bounds) == (family.kind == "histogram")
    known = (*vars(table).values(), *vars(engine_metrics).values())
    declared = {one for one in known if isinstance(one, Family)}
    assert declared == set(table.TABLE)


def test_pages_and_the_dashboard_use_names_of_the_table_alone() -> None:
    dashboard = files("stretto.operate").joinpath("grafana_dashboard.json").read_text("utf-8")
    expressions = " ".join(
        target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]
    )
    assert names_in(expressions) <= known_names(), names_in(expressions) - known_names()
    used = {re.sub("_(bucket|count|sum)$", "", name) for name in names_in(expressions)}
    own = {family.name for family in table.OWN}
    assert own - used <= {table.HELD_BYTES.name, table.HEDGES.name, table.WANTS_KEY.name}, own - used
    for page in (*ROOT.glob("docs/*.md"), *ROOT.glob("docs/design/*.md"), ROOT / "README.md"):
        found = names_in(page.read_text("utf-8"))
        assert found <= known_names(), (page, found - known_names())


def test_the_page_about_operation_lists_every_metric_of_a_door() -> None:
    page = (ROOT / "docs" / "operate.md").read_text("utf-8")
    for family in table.OWN:
        assert f"`{family.name}`" in page, family.name


def test_a_request_is_counted_by_door_tenant_model_and_worker() -> None:
    metrics = RequestMetrics()
    trace = trace_of(tenant="physics", model="m", is_listed=True, deadline_s=11.5)
    metrics.on_request_ended(trace, 12.0)
    text = render(metrics.published())
    labels = 'door="openai",tenant="physics",model="m",worker="http://w"'
    for line in (
        f'stretto_requests_total{{{labels},status="200"}} 1.0',
        f"stretto_computed_tokens_total{{{labels}}} 60.0",
        f"stretto_cached_tokens_total{{{labels}}} 40.0",
        f"stretto_predicted_cached_tokens_total{{{labels}}} 60.0",
        f"stretto_generated_tokens_total{{{labels}}} 11.0",
        f"stretto_held_seconds_sum{{{labels}}} 0.2",
        f"stretto_queue_seconds_sum{{{labels}}} 0.3",
        f"stretto_first_token_seconds_sum{{{labels}}} 1.0",
        f"stretto_token_seconds_sum{{{labels}}} 0.1",
        f"stretto_request_seconds_sum{{{labels}}} 2.0",
        f'stretto_deadlines_total{{{labels},kept="false"}} 1.0',
        'stretto_attempts_total{worker="http://w"} 1.0',
    ):
        assert line in text.splitlines()


def test_names_that_clients_invent_cost_bounded_memory() -> None:
    metrics = RequestMetrics(max_rows=10)
    for number in range(1000):
        metrics.on_request_ended(trace_of(model=f"invented {number}"), 12.0)
        metrics.on_request_ended(trace_of(model=f"listed {number}", is_listed=True), 12.0)
    text = render(metrics.published())
    requests = [line for line in text.splitlines() if line.startswith("stretto_requests_total")]
    assert len(requests) == 11
    assert sum(float(line.rsplit(" ", 1)[1]) for line in requests) == 2000
    assert f'model="{OTHER}"' in text
    assert "invented" not in text


def test_counts_that_cannot_be_true_are_left_out() -> None:
    metrics, trace = RequestMetrics(), trace_of()
    trace.output_tokens = 10**12
    metrics.on_request_ended(trace, 12.0)
    assert 'stretto_generated_tokens_total{door="openai",tenant="",model="",worker="http://w"} 0.0' in render(
        metrics.published()
    )


def test_metrics_of_several_parts_stand_under_one_heading() -> None:
    one, two = table.RUNNING.sample(1, "a"), table.RUNNING.sample(2, "b")
    text = render([(table.RUNNING, [one]), (table.OPEN, []), (table.RUNNING, [two])])
    assert text.count("# TYPE stretto_running gauge") == 1
    assert text.index('{worker="b"}') < text.index("stretto_open_requests")


def test_prometheus_reads_what_is_written() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    odd = 'a "b" \\ c\nd é'
    metrics, family = RequestMetrics(), engine_metrics.VLLM_REQUEST_S
    metrics.on_request_ended(trace_of(tenant=odd, model="m", is_listed=True), 12.0)
    histogram = Histogram(family.bounds)
    histogram.observe(3.0)
    text = render([*metrics.published(), (family, histogram.samples(family, "0", odd))])
    read = {one.name: one for one in parser.text_string_to_metric_families(text)}
    (requests,) = read["stretto_requests"].samples
    assert (requests.labels["tenant"], requests.value) == (odd, 1.0)
    assert read["stretto_request_seconds"].type == "histogram"
    buckets = [one for one in read[family.name].samples if one.name.endswith("_bucket")]
    assert [one.value for one in buckets] == sorted(one.value for one in buckets)
    assert buckets[-1].labels == {"engine": "0", "model_name": odd, "le": "+Inf"}


def test_a_router_publishes_its_workers_and_what_it_has_counted() -> None:
    async def main() -> None:
        async with routing("well", kv_tokens=5000) as at:
            assert (await at.ask(stream=True)).status_code == 200
            url = at.servers[0].url
            assert await at.total("stretto_requests_total", worker=url, model="m", door="openai") == 1
            assert await at.total("stretto_worker_state", worker=url, state="serving") == 1
            assert await at.total("stretto_kv_tokens", worker=url) > 0
            assert await at.total("stretto_running", worker=url) == 0
            text = (await at.client.get("/metrics")).text
            published = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
            assert published <= {family.name for family in table.OWN}

    run(main())
