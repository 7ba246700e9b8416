"""Executables by the name that a file calls them by; each is imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from stretto.costs.profile import Profile
from stretto.deployment import Contract, RunsIn
from stretto.engines.catalogue import PROFILES
from stretto.engines.server_process.programs import PROGRAMS
from stretto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Executable:
    """One row.

    Attributes:
        contract: what it can serve.
        module: module of the executable and of its configuration, both by name.
        runs_in: where it runs unless its replica says otherwise.
        profile: its latency unless its replica says otherwise.
        fixed: fields of the configuration that the name stands for.
    """

    contract: Contract
    module: str
    name: str
    config: str
    runs_in: RunsIn = "thread"
    profile: Profile = field(default_factory=Profile)
    fixed: Mapping[str, object] = field(default_factory=dict)

    def load(self) -> tuple[Callable[[Any], Any], type]:
        """Import the executable; return it and the dataclass of its configuration.

        Raises:
            ConfigError: packages that it needs are missing.
        """
        try:
            module = import_module(self.module)
        except ImportError as cause:
            raise ConfigError(
                f"{self.name} needs the package {cause.name}, which is not installed"
            ) from cause
        return getattr(module, self.name), getattr(module, self.config)


def _batch(module: str, name: str, profile: str) -> Executable:
    return Executable(
        "batch", f"stretto.engines.batch.{module}", name, f"{name}Config", profile=PROFILES[profile]
    )


def _llm(module: str, name: str, config: str, runs_in: RunsIn = "thread", **fixed: object) -> Executable:
    return Executable("llm", f"stretto.engines.{module}", name, config, runs_in, PROFILES["llm"], fixed)


EXECUTABLES: Mapping[str, Executable] = {
    "transformer": _llm("transformer.engine", "TransformerLLM", "TransformerConfig"),
    "reference": _llm("reference.engine", "ReferenceLLM", "ReferenceConfig"),
    "stand-in": _llm("scripted.standin", "StandIn", "StandInConfig"),
    "openai": _llm("openai_server", "OpenAIServer", "OpenAIServerConfig", "loop"),
    **{
        f"server:{name}": _llm(
            "server_process.engine", "ServerProcess", "ServerProcessConfig", "loop", program=name
        )
        for name in PROGRAMS
    },
    "chunking": _batch("chunking", "Chunking", "chunking"),
    "embedding": _batch("embedding", "Embedding", "embedding"),
    "vectors": _batch("vectors", "MemoryVectors", "vectors"),
    "postgres": Executable(
        "batch",
        "stretto.engines.batch.postgres",
        "PostgresVectors",
        "PostgresConfig",
        profile=PROFILES["vectors"],
    ),
    "reranking": _batch("reranking", "Reranking", "reranking"),
    "web": _batch("web_search", "WebSearch", "web"),
}


def executable_named(name: str) -> Executable:
    """Return the row of an executable.

    Raises:
        ConfigError: there is no such name. The message lists those that there are.
    """
    if name not in EXECUTABLES:
        raise ConfigError(f"there is no executable {name!r}; there are {', '.join(EXECUTABLES)}")
    return EXECUTABLES[name]
