"""The sources of workers that the settings of a router name."""

from __future__ import annotations

from pathlib import Path

from stretto.model.extras import imports_of
from stretto.router.config import RouterConfig
from stretto.router.discovery.dns import DnsNames
from stretto.router.discovery.source import Located, WorkerSource
from stretto.router.discovery.watched_file import WatchedFile


def worker_sources(config: RouterConfig) -> list[WorkerSource]:
    """Return the sources of workers that the settings name.

    Raises:
        ConfigError: a file cannot be read, nothing says where Kubernetes's API is, or the extra "kubernetes"
            is not installed.
    """
    sources: list[WorkerSource] = []
    if config.workers_file is not None:
        sources.append(WatchedFile(Path(config.workers_file)))
    for worker in config.worker:
        if worker.dns is not None:
            sources.append(DnsNames(worker.dns, Located(worker, config.worker_tls)))
        elif worker.kubernetes is not None:
            with imports_of("kubernetes", "kubernetes"):
                from stretto.router.discovery.kubernetes_api import EndpointApi
            from stretto.router.discovery.kubernetes import KubernetesEndpoints

            api = EndpointApi(worker.kubernetes)
            sources.append(KubernetesEndpoints(worker.kubernetes, Located(worker, config.worker_tls), api))
    return sources
