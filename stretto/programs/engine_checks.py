"""Checks that a runtime has the engines that a call needs, before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.model.deployment import Deployment
from stretto.model.errors import CapacityError, ConfigError
from stretto.programs.fragment import Work
from stretto.programs.operators import TRANSFORMS


def check_engines(work: Work, deployments: Mapping[str, Deployment]) -> None:
    """Check that there are the engines that a call needs, and that its outputs fit them.

    Raises:
        ConfigError: there is no such engine, or it is of another kind.
        CapacityError: an output may be as long as what the LLM can hold, or longer.
    """
    for engine, kind in work.engines.items():
        if engine not in deployments:
            known = ", ".join(deployments) or "none"
            hint = "; add transforms_engine() to the runtime" if engine == TRANSFORMS else ""
            raise ConfigError(f"{work.name}: there is no engine {engine!r}; there are {known}{hint}")
        if deployments[engine].engine.contract != kind:
            raise ConfigError(f"{work.name}: the engine {engine!r} is no {kind} engine")
        held = [replica.kv_tokens for replica in deployments[engine].replicas]
        most = max((tokens for tokens in held if tokens is not None), default=0)
        if kind == "llm" and held and None not in held and work.max_tokens >= most:
            raise CapacityError(
                f"max_tokens {work.max_tokens} leaves no room: {engine!r} holds {most} tokens at most",
                step=work.name,
            )
