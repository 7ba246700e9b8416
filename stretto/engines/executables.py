"""The table of the kinds of engines, by the names that engines files use; imported only when used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, get_args

from stretto.engines.profiles import PROFILES
from stretto.engines.server_process.programs import PROGRAMS
from stretto.model.errors import ConfigError
from stretto.model.extras import check_installed
from stretto.model.profile import Profile
from stretto.model.replica import Contract, RunsIn


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
