"""The engines that a command runs, put together from its options and its engines file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.cli.engines_file import check_replica_fits, deployed, labelled, shared_accelerator
from stretto.cli.options import EngineOptions
from stretto.cli.saved import with_saved_profiles
from stretto.cluster.machine import Machine, Placed
from stretto.engines.batch.local_models import MINILM, model_name
from stretto.engines.catalogue import RAG_ENGINES, SEARCH_ENGINES, local_engines, search_engines
from stretto.engines.executables import EXECUTABLES
from stretto.engines.llms import FOR_SERVERS, STAND_IN, is_url, llm_deployment, llm_replica, server_replica
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.runtime.devices import detect_devices
from stretto.sched.orders import check_policy
from stretto.schema.reading import read_tables
from stretto.schema.tables import Tables

_NAMES = tuple(dict.fromkeys((*RAG_ENGINES, *SEARCH_ENGINES)))
_ROLES = {"llm_small": "llm"}
_PLACES = ("thread", "process")


@dataclass(frozen=True, slots=True)
class Assembled:
    """The engines with which a command runs, put together from its options and files, and checked.

    Attributes:
        machine: devices that they are checked against; None if no replica names one.
        from_file: names of the engines that the engines file describes.
        embedder: model of the engine "embedding", or the URL of a server that names none.
    """

    deployments: tuple[Deployment, ...]
    machine: Machine | None
    from_file: frozenset[str]
    embedder: str

    def named(self, name: str) -> Deployment:
        """Return the engine of this name, with its replicas."""
        return next(deployment for deployment in self.deployments if deployment.name == name)

    @property
    def counted_by(self) -> str:
        """Model in whose tokens chunks are measured. That is the embedder, unless a server embeds."""
        return str(self.named("chunking").replicas[0].config.model)  # type: ignore[attr-defined]

    def only(self, used: Collection[str]) -> Assembled:
        """Return the engines that an app of the user uses, and those of the file.

        Raises:
            ConfigError: the app uses an engine that is neither a usual one nor in the file.
        """
        known = {one.name: one for one in self.deployments}
        for name in used:
            if name not in known:
                raise ConfigError(f"the app uses the engine {name!r}; describe it in a file with --engines")
        kept = [one for name, one in known.items() if name in used or name in self.from_file]
        return replace(self, deployments=tuple(kept))

    def with_engine(self, deployment: Deployment) -> Assembled:
        """Return the same engines, but with `deployment` instead of the engine that has its name."""
        changed = with_saved_profiles(deployment)
        others = (changed if old.name == changed.name else old for old in self.deployments)
        return replace(self, deployments=tuple(others))


def assemble(
    options: EngineOptions,
    *,
    searches: bool = False,
    default_llm: str | None = None,
    used: Collection[str] | None = (),
) -> Assembled:
    """Return the engines that a command runs: those of its engines file, and the default ones for the rest.

    Args:
        searches: whether the app searches instead of indexing; it needs other engines.
        default_llm: the LLM if neither the file nor an option names one.
        used: names of further engines that the file may describe, such as those of an app of the user; None
            for any.

    Raises:
        ConfigError: an option, or something in the file, is wrong or does not fit the rest or this machine.
    """
    file: Mapping[str, Deployment] = {}
    machine = None
    if options.file is not None:
        tables = read_tables(options.file)
        machine, deployments = deployed(tables)
        _check_rows(tables, deployments, used)
        file = {deployment.name: deployment for deployment in deployments}
    _check_described_once(options, file)
    llm = file["llm"] if "llm" in file else _llm(options, default_llm)
    embedder = _embedder(options, file)
    usual = (
        search_engines(llm, options.search, ())
        if searches
        else local_engines(
            llm=llm,
            embedding_model=_server_url(file) or embedder,
            reranking_model=options.reranker,
            device=options.device,
            dtype=options.dtype,
        )
    )
    _check_models_run_here(options, [engine for engine in usual if engine.name not in file])
    engines = [file.get(engine.name, engine) for engine in usual]
    engines += [engine for name, engine in file.items() if name not in _NAMES]
    chosen = tuple(map(with_saved_profiles, engines))
    if machine is None and any(r.devices or shared_accelerator(r) for _, r in labelled(chosen)):
        machine = detect_devices()
    if machine is not None:
        placed: list[Placed] = []
        for new in labelled(chosen):
            check_replica_fits(machine, new, placed)
            placed.append(new)
    return Assembled(chosen, machine, frozenset(file), embedder)


def _llm(options: EngineOptions, default: str | None) -> Deployment:
    """Return the engine "llm" of the options. Each option concerns the replicas that it can fit."""
    if options.policy is not None:
        check_policy(options.policy)
    if options.replicas is not None and options.replicas < 1:
        raise ConfigError(f"--replicas is {options.replicas}; it must be a whole number of at least 1")
    if options.runs_in is not None and options.runs_in not in _PLACES:
        raise ConfigError(f"--runs-in is {options.runs_in!r}; it must be {' or '.join(map(repr, _PLACES))}")
    wheres = options.llms or (default,)
    if (options.api or options.tokenizer or options.model) and not any(map(is_url, wheres)):
        raise ConfigError(FOR_SERVERS)
    if all(map(is_url, wheres)):
        for name in ("replicas", "runs_in"):
            if getattr(options, name) is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is for an --llm that is a folder; {wheres[0]!r} is a "
                    "server, whose own settings decide that"
                )
    replicas: list[Replica] = []
    for where in wheres:
        if where is not None and is_url(where):
            replicas.append(
                server_replica(where, api=options.api, tokenizer=options.tokenizer, model=options.model)
            )
        else:
            place: Any = options.runs_in or "thread"
            has_weights = where != STAND_IN
            replica = llm_replica(
                where,
                device=options.device if has_weights else None,
                dtype=options.dtype if has_weights else None,
                runs_in=place,
            )
            replicas += [replica] * (options.replicas or 1)
    return llm_deployment(replicas, policy=options.policy)


def _check_models_run_here(options: EngineOptions, engines: Sequence[Deployment]) -> None:
    """Check that --device and --dtype concern at least one model that this machine runs.

    `engines` are those that the engines file does not describe.

    Raises:
        ConfigError: all of `engines` are servers, or have no model.
    """
    configs = [replica.config for engine in engines for replica in engine.replicas]
    has_model = any(
        hasattr(config, "device") and getattr(config, "model", "") is not None for config in configs
    )
    for name in ("device", "dtype"):
        if getattr(options, name) is not None and not has_model:
            raise ConfigError(
                f"--{name} is for models that run on this machine, and none does beside those of the engines "
                "file; the file or a server's own settings decide that"
                if options.file is not None
                else f"--{name} is for models that run on this machine, and none does; a server's own "
                "settings decide that"
            )


def _embedder(options: EngineOptions, file: Mapping[str, Deployment]) -> str:
    """Return the model that embeds, which all replicas must share, and the chunking must count by.

    A server stands for the model that its configuration names, or else for its URL. Chunking cannot count by
    a server's tokens, and may count by any model's then.

    Raises:
        ConfigError: they name different models.
    """
    is_at_server = is_url(options.embedder)
    named = []
    for engine in ("embedding", "chunking"):
        for label, replica in labelled([file[engine]] if engine in file else []):
            served = getattr(replica.config, "served", None)
            is_at_server = is_at_server or served is not None
            if engine == "embedding" or not is_at_server:
                named.append((label, served or replica.config.model))  # type: ignore[attr-defined]
    model = named[0][1] if "embedding" in file else options.embedder or MINILM
    for label, other in named:
        if model_name(other) != model_name(model):
            raise ConfigError(
                f"{options.file}: {label}: model is {other!r}, but texts are embedded by {model!r}; "
                "all replicas of 'embedding' and 'chunking' must name the same model"
            )
    return str(model)


def _server_url(file: Mapping[str, Deployment]) -> str | None:
    """Return the URL of the server that embeds, if a replica of the file is one."""
    replicas = file["embedding"].replicas if "embedding" in file else ()
    urls = (getattr(replica.config, "url", None) for replica in replicas)
    return next((url for url in urls if url is not None), None)


def _check_rows(tables: Tables, deployments: Sequence[Deployment], used: Collection[str] | None) -> None:
    """Check that the apps use each engine of the file, that its replicas can be that engine, and run here.

    Raises:
        ConfigError: one of that is not so; the message names file and line.
    """
    for row, deployment in zip(tables.rows("engine"), deployments, strict=True):
        if used is not None and deployment.name not in (*_NAMES, *used):
            known = ", ".join(dict.fromkeys((*_NAMES, *used)))
            raise row.error(f"no app uses an engine {deployment.name!r}; they use {known}", "name")
        if not deployment.replicas:
            raise row.error(f"engine {deployment.name!r} has no [[replica]]; it needs at least one", "name")
    for row in tables.rows("replica"):
        name, executable = row.values["engine"], row.values["executable"]
        role = _ROLES.get(name, name)
        if name in _NAMES and EXECUTABLES[executable].role != role:
            able = ", ".join(key for key, other in EXECUTABLES.items() if other.role == role)
            raise row.error(f"{executable!r} cannot be the engine {name!r}; these can: {able}", "executable")


def _check_described_once(options: EngineOptions, file: Mapping[str, Deployment]) -> None:
    """Check that no option describes an engine that the engines file describes too. --device and --dtype
    describe every model that the file does not, so they may stand beside it.

    Raises:
        ConfigError: one does.
    """
    described_by = {
        "llm": ("llms", "api", "tokenizer", "model", "replicas", "runs_in", "policy"),
        "embedding": ("embedder",),
        "reranking": ("reranker",),
        "web": ("search",),
    }
    for engine, names in described_by.items():
        for name in names:
            if engine in file and getattr(options, name) not in (None, ()):
                option = name.removesuffix("s") if name == "llms" else name.replace("_", "-")
                raise ConfigError(
                    f"{options.file} describes the engine {engine!r}, and --{option} describes it again; "
                    "leave one of them out"
                )
