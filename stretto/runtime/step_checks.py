"""Checks of whether engines can run the steps of a query, before it begins."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.engines.contract import CheckedConfig
from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.sched.engine_tier import EngineTier


class StepChecks:
    """Checks the steps of compiled graphs. A step is refused if no replica runs it that its engine has had.

    Args:
        deployments: engines, whose replicas' configurations may refuse a step (`CheckedConfig`).
    """

    def __init__(self, engines: EngineTier, deployments: Iterable[Deployment]) -> None:
        self._engines = engines
        self._configs: dict[str | None, list[CheckedConfig]] = {}
        for deployment in deployments:
            if deployment.replicas:
                self._configs[deployment.name] = []
            for replica in deployment.replicas:
                self.add(deployment.name, replica)

    def add(self, engine: str, replica: Replica) -> None:
        """Note that an engine gets one more replica."""
        config, known = replica.config, self._configs.get(engine)
        if not isinstance(config, CheckedConfig):
            self._configs.pop(engine, None)  # it may run any step
        elif known is not None and all(config is not one for one in known):
            known.append(config)

    def check(self, egraph: ExecutionGraph) -> None:
        """Check that an engine of the right kind can run each step of a graph. Raises ConfigError."""
        self._engines.check_engines(egraph)
        if not self._configs:
            return
        for node in egraph.engine_nodes:
            self._check(node)

    def _check(self, node: Node) -> None:
        refusal: ConfigError | None = None
        for config in self._configs.get(node.engine, ()):
            try:
                config.check_step(node.config)
            except ConfigError as error:
                refusal = refusal or error
            else:
                return
        if refusal is not None:
            raise refusal.at(node.name) from None
