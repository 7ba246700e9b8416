"""A router that starts again knows what its workers hold, and does not believe it of those that lost it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.emulated import MODEL, emulating, fleet_of
from support.routing import Routing, routing, run, until

from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.wire.metrics import read_samples

PROMPTS = [f"Of harbour {number}: " + "its lanterns burn all night. " * 60 for number in range(6)]


async def ask(client: httpx.AsyncClient, prompt: str) -> tuple[str, int]:
    """Return the worker that answered a prompt, and how many tokens of it were in its cache."""
    reply = await client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 2})
    assert reply.status_code == 200
    return reply.headers["x-stretto-worker"], reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_router_that_starts_again_sends_prompts_where_they_are_held(tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = stack.enter_context(emulating(fleet_of(2)))

        def config(order: int) -> RouterConfig:
            workers = tuple(WorkerConfig(url=url) for url in urls[::order])
            file = str(tmp_path / "held")
            return RouterConfig(worker=workers, port=0, placement="stretto", snapshot=file)

        async def main() -> None:
            homes = {}
            async with (
                RunningRouter(config(1)) as router,
                httpx.AsyncClient(base_url=router.url, timeout=60) as client,
            ):
                for prompt in PROMPTS:
                    worker, _ = await ask(client, prompt)
                    homes[prompt] = urls[int(worker)]
            assert set(homes.values()) == set(urls)
            async with (
                RunningRouter(config(-1)) as router,
                httpx.AsyncClient(base_url=router.url, timeout=60) as client,
            ):
                for prompt in PROMPTS:
                    worker, num_cached = await ask(client, prompt)
                    assert urls[::-1][int(worker)] == homes[prompt]
                    assert num_cached > 100

        run(main())


def test_a_worker_that_has_lost_its_cache_is_soon_not_believed_to_hold_it() -> None:
    with ExitStack() as stack:
        (url,) = stack.enter_context(emulating(fleet_of()))

        async def main() -> None:
            config = RouterConfig(worker=(WorkerConfig(url=url),), port=0, placement="stretto")
            async with (
                RunningRouter(config) as router,
                httpx.AsyncClient(base_url=router.url, timeout=60) as client,
            ):
                for prompt in PROMPTS:
                    await ask(client, prompt)
                async with httpx.AsyncClient(base_url=url, timeout=60) as direct:
                    await direct.post("/reset_prefix_cache")
                predicted = []
                for prompt in PROMPTS[::-1]:
                    _, num_cached = await ask(client, prompt)
                    assert num_cached == 0
                    metrics = (await client.get("/metrics")).text
                    name = "stretto_predicted_cached_tokens_total"
                    predicted.append(sum(one.value for one in read_samples(metrics, (name,))))
                assert predicted[0] > 100
                assert predicted[-1] == predicted[0], "one answer without the expected hit says enough"

        run(main())


def test_a_worker_that_was_killed_and_comes_back_is_not_believed_to_hold_anything() -> None:
    async def predicted(at: Routing) -> float:
        """Ask, and return how many tokens in all the workers were believed to hold."""
        assert (await at.ask(prompt=PROMPTS[0])).status_code == 200
        return await at.total("stretto_predicted_cached_tokens_total")

    async def main() -> None:
        async with routing("well", placement="stretto", health_interval_s=0.02) as at:
            first, second = [await predicted(at) for _ in range(2)]
            assert second > first == 0
            worker = at.router_state.view.worker(0)
            at.servers[0].kill()
            await until(lambda: worker.state == "suspect" and "refused" in worker.reason)
            await at.servers[0].open()
            await until(lambda: worker.state == "serving")
            assert await predicted(at) == second

    run(main())


def test_a_router_does_not_start_with_a_foreign_snapshot_nor_write_over_it(tmp_path: Path) -> None:
    file = tmp_path / "held"
    file.write_text('{"format": "another router 3"}')

    async def main() -> None:
        config = RouterConfig(port=0, placement="stretto", snapshot=str(file))
        with pytest.raises(ConfigError, match=r"held: the snapshot has the format 'another router 3'"):
            async with RunningRouter(config):
                pass

    run(main())
    assert "another router 3" in file.read_text()


def test_a_snapshot_that_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'least_loaded' keeps none"):
        RouterConfig(placement="least_loaded", snapshot=str(tmp_path / "held"))

    async def main() -> None:
        config = RouterConfig(port=0, placement="stretto", snapshot=str(tmp_path / "absent" / "held"))
        with pytest.raises(ConfigError, match="there is no folder"):
            async with RunningRouter(config):
                pass

    run(main())
