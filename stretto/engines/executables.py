"""The table of the kinds of engines, by the names that engines files use; imported only when used. And
latency profiles of engines as they are without a measurement, and the keys of measured ones.

Profiles were measured on two cores of a server CPU without a GPU; `stretto profile` measures others.
Embedding is that of chunks of 256 tokens, on both cores; what a token adds to reranking was not measured. The
LLM is a model of 6.5 million parameters, where a prefill takes at least a step, and a fetched one SmolLM2 in
bfloat16, both on one thread. The LLM server is vLLM on one thread, with the small model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any, get_args

from stretto.engines.batch.local_models import model_name
from stretto.engines.server_process.programs import PROGRAMS
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.extras import check_installed
from stretto.model.profile import Profile
from stretto.model.replica import Contract, Replica, RunsIn

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


@dataclass(frozen=True, slots=True)
class Executable:
    """A kind of engine that an engines file can name, such as "embedding" or "server:vllm".

    Attributes:
        contract: interface that it has, "batch" or "llm".
        role: name of the engine that it can be in the ready-made apps; "llm" for all LLMs.
        module: module with the engine's class (`name`) and the dataclass of its configuration (`config`).
        runs_in: where it runs unless its replica says otherwise.
        places: all places where it can run.
        profile: latency unless its replica says otherwise.
        keeps_state: whether it keeps data for a query, and must be told when that has ended.
        fixed: configuration fields that the name in the file determines, as "server:vllm" the program.
        extra: extra of the installed package that brings what the engine needs.
        packages: packages of that extra that the engine imports.
    """

    contract: Contract
    role: str
    module: str
    name: str
    config: str
    runs_in: RunsIn = "thread"
    places: tuple[RunsIn, ...] = get_args(RunsIn)
    profile: Profile = field(default_factory=Profile)
    keeps_state: bool = False
    fixed: Mapping[str, object] = field(default_factory=dict)
    extra: str = ""
    packages: tuple[str, ...] = ()

    def load(self) -> tuple[Callable[[Any], Any], type]:
        """Import the engine's module; return the engine's class and the dataclass of its configuration.

        Raises:
            ConfigError: packages that it needs are missing.
        """
        check_installed(self.extra, self.name, *self.packages)
        module = import_module(self.module)
        return getattr(module, self.name), getattr(module, self.config)


_SERVER_PACKAGES = ("httpx", "httptools")
_MODEL_PACKAGES = ("torch", "transformers", "tokenizers")


def _batch(
    role: str, module: str, name: str, config: str = "", *packages: str, keeps_state: bool = False
) -> Executable:
    return Executable(
        "batch",
        role,
        f"stretto.engines.batch.{module}",
        name,
        config or f"{name}Config",
        profile=PROFILES.get(role, Profile()),
        keeps_state=keeps_state,
        extra="local",
        packages=packages,
    )


def _remote(role: str, name: str) -> Executable:
    return Executable(
        "batch",
        role,
        f"stretto.engines.batch.server.{role}",
        name,
        "BatchServerConfig",
        places=("thread", "process"),
        profile=PROFILES[f"{role}-server"],
        extra="client",
        packages=_SERVER_PACKAGES,
    )


def _model(module: str, name: str, config: str, *packages: str) -> Executable:
    return Executable(
        "llm",
        "llm",
        f"stretto.engines.{module}",
        name,
        config,
        places=("thread", "process"),
        profile=PROFILES["llm"],
        keeps_state=True,
        extra="local",
        packages=packages,
    )


def _server(module: str, name: str, *more_places: RunsIn, **fixed: object) -> Executable:
    return Executable(
        "llm",
        "llm",
        f"stretto.engines.{module}",
        name,
        f"{name}Config",
        runs_in="loop",
        places=("loop", *more_places),
        profile=PROFILES["llm-server"],
        fixed=fixed,
        extra="client",
        packages=_SERVER_PACKAGES,
    )


EXECUTABLES: Mapping[str, Executable] = {
    "transformer": _model("transformer.engine", "TransformerLLM", "TransformerConfig", *_MODEL_PACKAGES),
    "stand-in": _model("scripted.standin", "StandIn", "StandInConfig"),
    "openai": _server("openai_server", "OpenAIServer"),
    **{
        f"server:{name}": _server("server_process.engine", "ServerProcess", "ray", program=name)
        for name in PROGRAMS
    },
    "chunking": _batch("chunking", "chunking", "Chunking", "", "tokenizers"),
    "embedding": _batch("embedding", "embedding", "Embedding", "", "torch", "sentence_transformers"),
    "embedding-server": _remote("embedding", "EmbeddingServer"),
    "vectors": _batch("vectors", "vectors", "MemoryVectors", keeps_state=True),
    "postgres": _batch("vectors", "postgres", "PostgresVectors", "PostgresConfig"),
    "reranking": _batch("reranking", "reranking", "Reranking"),
    "reranking-server": _remote("reranking", "RerankingServer"),
    "web": _batch("web", "web_search", "WebSearch", "", "httpx"),
    "transforms": _batch("transforms", "transforms", "Transforms"),
}


def executable_named(name: str) -> Executable:
    """Return the kind of engine that has this name in engines files.

    Raises:
        ConfigError: there is no such name. The message lists those that there are.
    """
    if name not in EXECUTABLES:
        raise ConfigError(f"there is no executable {name!r}; there are {', '.join(EXECUTABLES)}")
    return EXECUTABLES[name]
