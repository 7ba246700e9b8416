"""Services of tests: a runtime with scripted engines behind real HTTP, on an event loop of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from stretto import Runtime
from stretto.deployment import Deployment
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.config import ServiceConfig
from stretto.service.service import Service


@contextmanager
def served(
    deployments: Sequence[Deployment],
    config: ServiceConfig | None = None,
    apps: Mapping[str, DeployedApp] | None = None,
) -> Iterator[tuple[Service, str]]:
    """Run a service until the end of the block; yields it and its URL."""
    with Runtime(deployments) as runtime:
        service = Service(runtime, config or ServiceConfig(port=0), apps)
        runtime.run_on_loop(service.__aenter__)
        try:
            yield service, service.url
        finally:
            runtime.run_on_loop(lambda: service.__aexit__(None, None, None))
