"""What a service tells its admin, without workers: its engines, and the steps of apps and programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from support.services import served

from stretto import Input, Template
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.engines.llms import STAND_IN, llm_engine
from stretto.operate.watch import Watch
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import Limits, ServiceConfig, TenantConfig
from stretto.wire.metrics import read_samples

PAGES = (
    *("/", "/admin/live", "/admin/programs", "/admin/program?program=x", "/admin/prompts"),
    "/metrics",
)
TENANTS = (TenantConfig(name="physics", keys=("k",)), TenantConfig(name="support", keys=("other",)))


@contextmanager
def serving(config: ServiceConfig) -> Iterator[tuple[Watch, httpx.Client]]:
    """Run a service with one LLM in this process and the app "reply"; yields its watch and a client."""
    call = LLMCall(prompt="Reply to {text}", text=Input("text", "text"))
    apps = {"reply": deploy_app("reply", Template("reply", call, {"reply": call["text"]}))}
    watch = Watch()
    engines = [llm_engine(STAND_IN), transforms_engine()]
    with (
        served(engines, config, apps, watch=watch) as (_, url),
        httpx.Client(base_url=url, timeout=60, headers={"authorization": "Bearer k"}) as client,
    ):
        yield watch, client


def test_steps_of_apps_and_programs_are_counted_and_explained() -> None:
    with serving(ServiceConfig(port=0, tenant=TENANTS)) as (watch, client):
        answer = client.post("/v1/apps/reply/queries", json={"inputs": {"text": "hi"}})
        assert answer.status_code == 200, answer.text
        counts = list(read_samples(client.get("/metrics").text, ("stretto_requests_total",)))
        found = {(one.labels["door"], one.labels["tenant"], one.labels["model"]): one.value for one in counts}
        assert found["apps", "physics", "llm"] >= 1
        assert {one.labels["worker"] for one in counts} == {"llm/0"}
        states = list(read_samples(client.get("/metrics").text, ("stretto_worker_state",)))
        assert {one.labels["worker"] for one in states if one.value} >= {"llm/0"}
        (program,) = client.get("/admin/programs").json()
        assert (program["door"], program["tenant"]) == ("apps", "physics")
        assert program["wall_s"] == pytest.approx(sum(program["path"].values()), rel=0.01)
        (explained,) = client.get("/admin/program", params={"program": program["program"]}).json()
        assert explained["last_requests"][-1]["worker"] == "llm/0"
        watch.programs.check_invariants()
        assert client.head("/admin/live").headers["content-length"] == "0"
        with client.stream("GET", "/admin/live") as live:
            line = next(line for line in live.iter_lines() if line.startswith("data: "))
        shown = json.loads(line.removeprefix("data: "))
        assert {one["name"] for one in shown["workers"]} >= {"llm/0"}
        assert [one["tenant"] for one in shown["tenants"]] == ["physics"]


def test_a_tenants_key_is_not_the_admins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", "admin")
    config = ServiceConfig(port=0, tenant=TENANTS, admin_key_env="TEST_ADMIN_KEY")
    with serving(config) as (_, client):
        for path in PAGES:
            for headers in ({}, {"host": "rebound.example"}, {"authorization": "Bearer nobody"}):
                refused = client.get(path, headers=headers)
                assert refused.status_code == 401, path
                assert refused.headers["www-authenticate"].startswith("Basic")
                assert "physics" not in refused.text
        assert client.get("/admin/programs", headers={"authorization": "Bearer admin"}).json() == []
        assert client.get("/v1/models").status_code == 200, "a tenant may still ask for what is its own"


def test_metrics_are_open_where_there_are_no_tenants() -> None:
    with serving(ServiceConfig(port=0)) as (_, client):
        assert client.get("/metrics", headers={"host": "prometheus.example"}).status_code == 200
        assert client.get("/admin/programs", headers={"host": "prometheus.example"}).status_code == 401


def test_refused_requests_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    limited = TenantConfig(name="physics", keys=("k",), limits=Limits(requests_per_minute=1))
    chat = {"model": "llm", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    with (
        caplog.at_level(logging.INFO, "stretto.requests"),
        serving(ServiceConfig(port=0, tenant=(limited,))) as (_, client),
    ):
        path = "/v1/chat/completions"
        asked = [client.post(path, json={**chat, "messages": 1}), client.post(path, json=chat)]
        asked.append(client.post(path, json=chat, headers={"authorization": "Bearer wrong"}))
        asked.append(client.post("/v1/submit", json={}, headers={"authorization": "Bearer wrong"}))
        asked.append(client.get("/events"))
        assert [answer.status_code for answer in asked] == [400, 429, 401, 401, 404]
        counts = list(read_samples(client.get("/metrics").text, ("stretto_refused_total",)))
        found = {(one.labels["door"], one.labels["status"]): one.value for one in counts}
        assert found == {
            **{("openai", status): 1 for status in ("400", "401", "404", "429")},
            ("programs", "401"): 1,
        }
    lines = [record.request for record in caplog.records if hasattr(record, "request")]
    (line,) = (line for line in lines if line["status"] == 429)
    assert (line["tenant"], line["path"], line["error"]) == ("physics", path, "over_limit")
    assert [line.get("path") for line in lines if line["status"] in (401, 404)] == [path, "/v1/submit", None]
