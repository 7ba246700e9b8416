"""Stretto as a contestant: the apps' templates on engines that are the emulated servers.

Options of a work are `passes` (names, or "all"), `policy` and `placement` (of all engines).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from benchmarks.fleet.apps import APPS, VOCABULARY
from benchmarks.fleet.programs.ours_engines import Passages, document_of, passage_of
from benchmarks.fleet.programs.running import Answer, Ask, run_program
from benchmarks.fleet.work import Asked, Passage, Work
from stretto.engines.batch.server.config import INSTANCES_PER_SERVER, BatchServerConfig
from stretto.engines.batch.server.embedding import EmbeddingServer
from stretto.engines.batch.server.reranking import RerankingServer
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.runtime.runtime import Runtime

_MAX_QUERIES = 100_000


def _at_server(
    name: str, server: Callable[[BatchServerConfig], object], url: str, profiles: Mapping[str, Profile]
) -> Deployment:
    config = BatchServerConfig(url, timeout_s=600.0, max_texts=1024, max_connections=16)
    return deploy(name, server, config, instances=INSTANCES_PER_SERVER, profile=profiles[name])


def engines(work: Work) -> list[Deployment]:
    """Return the engines of a work. Their predicted times are real seconds."""
    profiles = {name: Profile(**found) for name, found in work.options["profiles"].items()}
    policy = work.options.get("policy", "least_work")
    batches = [
        deploy("chunking", Passages, runs_in="loop", profile=profiles["chunking"]),
        _at_server("embedding", EmbeddingServer, work.servers.embedding, profiles),
        _at_server("reranking", RerankingServer, work.servers.reranking, profiles),
        deploy(
            "vectors",
            MemoryVectors,
            MemoryVectorsConfig(),
            runs_in="loop",
            keeps_state=True,
            max_batch=1024,
            profile=profiles["vectors"],
        ),
    ]
    llm = Engine(
        "llm",
        contract="llm",
        max_running=work.max_sequences,
        max_batch=work.options["kv_tokens"],
        placement=work.options.get("placement", "least_seconds"),
        age_limit_s=10.0 / work.speed,
        max_attempts=20,
    )
    replicas = tuple(
        Replica(
            OpenAIServer,
            OpenAIServerConfig(
                url,
                model=work.model,
                api="completions",
                tokenizer="none",
                priorities=True,
                max_connections=1000,
                timeout_s=600,
            ),
            runs_in="loop",
            profile=profiles["llm"],
        )
        for url in work.servers.llm
    )
    return [one.changed(policy=policy) for one in [*batches, Deployment(llm, replicas)]]


@asynccontextmanager
async def program(work: Work) -> AsyncIterator[Ask]:
    """Context with the function that answers the queries of a work."""
    app = APPS[work.app]
    async with Runtime(engines(work), vocabulary=VOCABULARY, max_queries=_MAX_QUERIES) as runtime:

        async def ask(asked: Asked) -> Answer:
            known = {"question": asked.question, "files": [document_of(one) for one in asked.documents]}
            inputs = {name: known[name] for name in dict(app.template.inputs)}
            outputs = await runtime.run(
                app.template,
                inputs,
                configuration=app.configuration,
                passes=work.options.get("passes", "all"),
            )
            sources: tuple[Passage, ...] = tuple(map(passage_of, outputs.get("sources", ())))
            return str(outputs["answer"]), sources

        yield ask


if __name__ == "__main__":
    run_program(program)
