"""Latency profiles of engines as they are without a measurement, and the keys of measured ones.

Profiles were measured on two cores of a server CPU without a GPU; `stretto profile` measures others.
Embedding is that of chunks of 256 tokens, on both cores; what a token adds to reranking was not measured. The
LLM is a model of 6.5 million parameters, where a prefill takes at least a step, and a fetched one SmolLM2 in
bfloat16, both on one thread. The LLM server is vLLM on one thread, with the small model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass

from stretto.engines.batch.local_models import model_name
from stretto.model.deployment import Deployment
from stretto.model.profile import Profile
from stretto.model.replica import Replica

PROFILES: Mapping[str, Profile] = {
    "chunking": Profile(base_s=0.0002, per_unit_s=0.02, max_efficient_batch=1),
    "embedding": Profile(0.004, 0.013, max_efficient_batch=16, per_token_s=0.00005, unit_tokens=256),
    "embedding-float32": Profile(0.004, 0.033, max_efficient_batch=16, per_token_s=0.000125, unit_tokens=256),
    "vectors": Profile(base_s=0.0002, per_unit_s=0.00001, max_efficient_batch=256),
    "reranking": Profile(base_s=0.0002, per_unit_s=0.0002, max_efficient_batch=64),
    "embedding-server": Profile(base_s=0.01, per_unit_s=0.002, max_efficient_batch=64),
    "reranking-server": Profile(base_s=0.01, per_unit_s=0.002, max_efficient_batch=64),
    "tools": Profile(base_s=0.05, per_unit_s=0.0, max_efficient_batch=1),
    "transforms": Profile(base_s=0.0002, per_unit_s=0.0001, max_efficient_batch=16),
    "web": Profile(base_s=0.3, per_unit_s=0.0, max_efficient_batch=8),
    "llm": Profile(base_s=0.004, per_unit_s=0.00007, per_output_s=0.004, reads_shared_once=True),
    "llm-fetched": Profile(base_s=0.04, per_unit_s=0.0018, per_output_s=0.04, reads_shared_once=True),
    "llm-server": Profile(base_s=0.05, per_unit_s=0.00013, per_output_s=0.015),
}


def engine_and_model(deployment: Deployment) -> str:
    """Return the key under which the measured latency profile of an engine is saved: that of its first
    replica.
    """
    return profile_key(deployment.name, deployment.replicas[0])


def profile_key(engine: str, replica: Replica) -> str:
    """Return the key under which the measured latency profile of a replica is saved.

    It is the engine's name with its model, or with its kind where there is no model, and then the URL of a
    server, and the device and dtype if they are not the defaults.
    """
    config = replica.instance_config()
    kind = type(config).__name__.removesuffix("Config")
    if isinstance(url := getattr(config, "url", None), str):
        return "@".join((f"{engine}:{getattr(config, 'model', None) or kind}", url))
    model = getattr(config, "model", None) or getattr(config, "path", None)
    if model is None:
        return f"{engine}:{kind}"
    usual = {field.name: field.default for field in fields(config)} if is_dataclass(config) else {}
    others = [
        getattr(config, name)
        for name in ("device", "dtype")
        if usual.get(name, MISSING) not in (MISSING, getattr(config, name, None))
    ]
    return "@".join((f"{engine}:{model_name(str(model))}", *others))
