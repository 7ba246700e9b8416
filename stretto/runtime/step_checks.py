"""Checks of whether engines can run the steps of a query, before it begins."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.engines.contract import CheckedConfig
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.sched.engine_tier import EngineTier


class StepChecks:
    """Checks the steps of compiled graphs.

    Args:
        deployments: engines, whose replicas' configurations may refuse a step (`CheckedConfig`).
    """

    def __init__(self, engines: EngineTier, deployments: Iterable[Deployment]) -> None:
        self._engines = engines
        self._configs: dict[str | None, list[CheckedConfig]] = {}
        for deployment in deployments:
            configs = {id(replica.config): replica.config for replica in deployment.replicas}.values()
            if checked := [config for config in configs if isinstance(config, CheckedConfig)]:
                self._configs[deployment.name] = checked

    def check(self, egraph: ExecutionGraph) -> None:
        """Check that an engine of the right kind can run each step of a graph. Raises ConfigError."""
        self._engines.check_engines(egraph)
        if not self._configs:
            return
        for node in egraph.engine_nodes:
            for config in self._configs.get(node.engine, ()):
                try:
                    config.check_step(node.config)
                except ConfigError as error:
                    raise error.at(node.name) from None
