"""What a viewer by others makes of a door's spans: Phoenix, if `STRETTO_PHOENIX` names its command."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import pytest
from support.routing import routing, run

from benchmarks.router.contestants import free_port
from stretto.operate import otel
from stretto.operate.otlp import SpanRecord, write_spans
from stretto.operate.watch import Watch

PHOENIX = os.environ.get("STRETTO_PHOENIX", "")
PATIENCE_S = 900
PAGE = 1000
SUMS = "{projects {edges {node {recordCount tokenCountPrompt tokenCountCompletion}}}}"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3 * PATIENCE_S),
    pytest.mark.skipif(not PHOENIX, reason="STRETTO_PHOENIX does not name the command of Phoenix"),
]


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[httpx.Client]:
    port = free_port()
    own = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(tmp_path),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([PHOENIX, "serve"], env=variables | own, stdout=log, stderr=log) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            for _ in range(2 * PATIENCE_S):
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    client.get("/healthz").raise_for_status()
                    break
                except httpx.HTTPError:
                    sleep(0.5)
            else:
                pytest.fail("Phoenix does not answer")
            yield client
        finally:
            process.kill()


def sums_of(viewer: httpx.Client) -> dict[str, Any]:
    """Return what the viewer counts of its only project; nothing if it has none."""
    answer = viewer.post("/graphql", json={"query": SUMS}).raise_for_status().json()
    found: dict[str, Any] = {}
    for edge in answer["data"]["projects"]["edges"]:
        found = edge["node"] if edge["node"]["recordCount"] else found
    return found


def test_the_viewer_counts_our_tokens_and_finds_all_parents(
    viewer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[SpanRecord] = []

    def written(records: list[SpanRecord], epoch_ns: int) -> bytes:
        sent.extend(records)
        return write_spans(records, epoch_ns)

    monkeypatch.setattr(otel, "write_spans", written)
    watch = Watch(otel.SpanSender(str(viewer.base_url)))

    async def main() -> None:
        async with routing("503", "well", watch=watch, max_failures=99) as at:
            for number in range(6):
                prompt = f"{number} " * 100
                assert (await at.ask(stream=bool(number % 2), prompt=prompt)).status_code == 200
        await asyncio.to_thread(watch.close)

    run(main())
    for _ in range(2 * PATIENCE_S):  # it reads what it has got later
        if (sums := sums_of(viewer)).get("recordCount") == len(sent):
            break
        sleep(0.5)
    _, prompt, _, generated = map(sum, zip(*watch.metrics.totals().values(), strict=True))
    assert sums == {"recordCount": len(sent), "tokenCountPrompt": prompt, "tokenCountCompletion": generated}
    assert prompt > 0

    answer = viewer.get("/v1/projects/default/spans", params={"limit": PAGE}).raise_for_status().json()
    seen = {one["context"]["span_id"]: one for one in answer["data"]}
    for one in sent:
        found = seen.pop(f"{one.span_id:016x}")
        assert found["context"]["trace_id"] == f"{one.trace_id:032x}"
        assert found["parent_id"] == (f"{one.parent_id:016x}" if one.parent_id else None)
        assert found["name"] == one.name
    assert not seen
    kinds = {one["name"].split()[0]: one["span_kind"] for one in answer["data"]}
    assert kinds["text_completion"] == "LLM"
    assert kinds["invoke_workflow"] == "CHAIN"
    name = "llm.token_count.prompt_details.cache_read"
    cached = sum(one["attributes"].get(name, 0) for one in answer["data"])
    assert cached == sum(one.cached for one in watch.metrics.totals().values()) > 0
