"""The engines of a service: those of its engines file, and the usual ones for what that leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.deployment import Deployment
from stretto.engines.catalogue import (
    is_url,
    llm_deployment,
    llm_replica,
    server_replica,
    transforms_engine,
)
from stretto.errors import ConfigError


def with_usual_engines(
    described: Sequence[Deployment], llms: Sequence[str], api: str | None, tokenizer: str | None
) -> list[Deployment]:
    """Return the engines of a service: those that a file describes, an LLM, and transforms.

    Args:
        llms: directories of a checkpoint and URLs of servers that answer as the engine "llm". With none, and
            no such engine in the file, it is the small model that ships with Stretto.

    Raises:
        ConfigError: the file has the engine "llm" too, or an option does not fit.
    """
    names = [deployment.name for deployment in described]
    if "llm" in names and (llms or api or tokenizer):
        raise ConfigError("the engines file describes the engine 'llm', and --llm describes it again")
    if (api or tokenizer) and not any(map(is_url, llms)):
        raise ConfigError("--api and --tokenizer are for an --llm that is a URL")
    found = list(described)
    if "llm" not in names:
        replicas = [
            server_replica(where, api=api, tokenizer=tokenizer) if is_url(where) else llm_replica(where)
            for where in llms
        ]
        found.append(llm_deployment(replicas or [llm_replica(None)]))
    if "transforms" not in names:
        found.append(transforms_engine())
    return found
