"""Asks the servers of engines whether they take connections, before models are loaded beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stretto.model.deployment import Deployment
from stretto.model.errors import EngineUnreachable, StrettoError
from stretto.model.replica import Replica

_PATIENCE_S = 5.0


async def out_of_reach(deployments: Iterable[Deployment]) -> list[EngineUnreachable]:
    """Return an error for each engine that runs at servers only of which none takes a connection."""
    errors = []
    for deployment in deployments:
        found = await asyncio.gather(*map(_refusal, deployment.replicas))
        refusals = [refusal for refusal in found if refusal is not None]
        if refusals and len(refusals) == len(found):
            errors.append(EngineUnreachable(f"engine {deployment.name!r}: {refusals[-1]}"))
    return errors


async def _refusal(replica: Replica) -> EngineUnreachable | None:
    """Return why the server of a replica takes no connection; None if it does, or if there is no server."""
    config: Any = replica.config
    if not hasattr(config, "connect_timeout_s"):
        return None
    from stretto.engines.openai_server.http import Http  # of an extra, which those who have servers have

    http = Http(replace(config, timeout_s=_PATIENCE_S, connect_timeout_s=_PATIENCE_S))
    try:
        await http.fetch("v1/models", is_retried=False)
    except EngineUnreachable as refusal:
        return refusal
    except StrettoError:
        pass  # whatever it answers, it is there
    finally:
        await http.aclose()
    return None
