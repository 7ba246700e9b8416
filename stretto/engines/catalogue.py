"""The engines of this machine, ready to register: what the command line and the examples run on.

Profiles were measured on two cores of a server CPU without a GPU; `stretto profile` measures others.
Embedding is that of chunks of 256 tokens, on both cores; what a token adds to reranking was not measured. The
LLM is a model of 6.5 million parameters, where a prefill takes at least a step, and a fetched one SmolLM2 in
bfloat16, both on one thread. The LLM server is vLLM on one thread, with the small model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.batch.embedding import (
    DTYPES,
    MINILM,
    Embedding,
    EmbeddingConfig,
    model_name,
)
from stretto.engines.batch.reranking import Reranking, RerankingConfig
from stretto.engines.batch.tools import Tools, ToolsConfig, TurnRecords
from stretto.engines.batch.transforms import Transforms, TransformsConfig
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.batch.web_search import WebSearch, WebSearchConfig
from stretto.engines.chat_markup import PLAIN_STOP
from stretto.engines.contract import SteppedLLM
from stretto.engines.gguf_file import is_gguf
from stretto.engines.models.store import FETCHED_MODELS, check_here
from stretto.engines.processor import has_bfloat16
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.model.deployment import Deployment, Engine, Replica, RunsIn, deploy
from stretto.model.devices import parse_device
from stretto.model.errors import ConfigError
from stretto.model.extras import check_installed, imports_of
from stretto.model.profile import Profile
from stretto.model.tools import Tool
from stretto.model.values import Document
from stretto.transforms.function_tools import as_tools
from stretto.wire.server_url import read_server_url

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

STAND_IN = "stand-in"
DEFAULT_LLM = "smollm2"
"""Name of the LLM that is used if none is named; `stretto models add` fetches it."""

RAG_ENGINES = ("chunking", "embedding", "vectors", "reranking", "llm")
SEARCH_ENGINES = ("llm", "llm_small", "web")
"""Names of the engines that the ready-made apps use."""


def llm_engine(
    where: str | Sequence[str] | None,
    *,
    instances: int = 1,
    api: str | None = None,
    tokenizer: str | None = None,
    model: str | None = None,
) -> Deployment:
    """Return the declaration of the engine "llm": servers, or a model on this machine.

    Args:
        where: URL of a server, path of a checkpoint (a directory or a GGUF file), name of a fetched model, or
            "stand-in" (no model, quotes the documents); None is the default model. A list of these is as many
            replicas, which share the requests.
        instances: number of replicas of each.
        api: "chat", "completions" or "auto" (the chat if it has one), for a server.
        tokenizer: tokenizer of a server's model: a directory, "none" or "auto".
        model: name of a server's model; None for the only one that it lists.

    Raises:
        ConfigError: the place or an option cannot be used.
    """
    places = [where] if where is None or isinstance(where, str) else [*where]
    if (api or tokenizer or model) and not any(map(is_url, places)):
        raise ConfigError(FOR_SERVERS)
    replicas = [
        server_replica(place, api=api, tokenizer=tokenizer, model=model)
        if place is not None and is_url(place)
        else llm_replica(place)
        for place in places
        for _ in range(instances)
    ]
    return llm_deployment(replicas)


def llm_deployment(replicas: Sequence[Replica], *, policy: str | None = None) -> Deployment:
    """Return the declaration of the engine "llm" with these replicas. Several are placed by prefixes.

    Args:
        policy: name of the order in which waiting requests are served; None leaves the default.
    """
    keeps_state = any(replica.runs_in != "loop" for replica in replicas)
    engine = Engine("llm", contract="llm", keeps_state=keeps_state, recover_s=RECOVER_S)
    if len(replicas) > 1:
        engine = replace(engine, placement=BY_PREFIXES)
    return Deployment(engine if policy is None else replace(engine, policy=policy), tuple(replicas))


BY_PREFIXES = "stretto"
"""Placement of the usual LLM: what programs share stays at one replica, whether servers report it or not."""
FOR_SERVERS = "--api, --tokenizer and --model are for an --llm that is a URL"
"""Message of the error for options of a server where there is none."""
RECOVER_S = 2.0
"""Seconds that a question waits for a server that refuses connections. Short, because a person waits."""


def is_url(where: str | None) -> bool:
    """Return whether a value of the option `--llm` is the URL of a server."""
    return where is not None and where.startswith(("http://", "https://"))


def llm_replica(
    where: str | None, *, device: str | None = None, dtype: str | None = None, runs_in: RunsIn = "thread"
) -> Replica:
    """Return a replica of an LLM that runs on this machine.

    Args:
        where: path of a checkpoint (a directory or a GGUF file), name of a fetched model, or "stand-in" (no
            model, quotes the documents); None is the default model.
        device: "cpu", "cuda", "auto", or a device of this machine such as "cuda:1"; None is the CPU.
        dtype: type of weights and activations, one of `DTYPES`; None is float32, and for a fetched model
            bfloat16 on a CPU that computes with it.

    Raises:
        ConfigError: there is no such file or directory, packages are missing, or an option does not fit the
            model.
    """
    where = DEFAULT_LLM if where is None else where
    is_named = where == STAND_IN or where in FETCHED_MODELS
    if not is_named and not _is_checkpoint(Path(where)):
        raise ConfigError(
            f"--llm {where!r} is neither a URL, nor a directory with a checkpoint or a GGUF file"
        )
    for option, value in (("--device", device), ("--dtype", dtype)):
        if value is not None and where == STAND_IN:
            raise ConfigError(f"{option} is for a checkpoint; {STAND_IN!r} has no weights")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"there is no dtype {dtype!r}; there are {', '.join(DTYPES)}")
    executable, config = _model(where)
    devices = _devices(device, runs_in)
    changes = {"device": device if not devices else None, "dtype": dtype}
    config = replace(config, **{name: value for name, value in changes.items() if value is not None})
    profile = PROFILES["llm-fetched" if where in FETCHED_MODELS else "llm"]
    return Replica(executable, config, runs_in=runs_in, devices=devices, profile=profile)


def _is_checkpoint(path: Path) -> bool:
    return path.is_file() if is_gguf(path) else path.is_dir()


def _devices(device: str | None, runs_in: RunsIn) -> tuple[str, ...]:
    """Return the devices that a replica claims; one that shares our process claims none."""
    if device is None or device in _WHOLE:
        return ()
    kind = _kind(device)
    if runs_in != "thread":
        return (device,)
    if kind == "cpu":
        raise ConfigError(f"--device {device!r} is one core, which takes a process: add --runs-in process")
    return ()


_WHOLE = ("cpu", "cuda", "auto")
"""Names of devices that stand for no single core or accelerator."""


def _shared_device(device: str | None) -> str:
    """Return the device of a model in our process; a single core cannot be claimed there."""
    if device is None:
        return "cpu"
    return "cpu" if device not in _WHOLE and _kind(device) == "cpu" else device


def _kind(device: str) -> str:
    try:
        return parse_device(device)[0]
    except ConfigError as cause:
        raise ConfigError(
            f"--device {device!r} is unknown; it must be 'cpu', 'cuda', 'auto', 'cuda:N' or 'cpu:N'"
        ) from cause


def check_llm_is_here(where: str | None) -> None:
    """Check that an LLM which is named as a fetched model is on this machine; None is the default model.

    Raises:
        ConfigError: it is not. The message names the command that fetches it.
    """
    where = DEFAULT_LLM if where is None else where
    if where in FETCHED_MODELS:
        check_here(where)


def checkpoint_path(where: str) -> Path:
    """Return the path of a checkpoint that is given by its path, or by the name of a fetched model."""
    return FETCHED_MODELS[where].path if where in FETCHED_MODELS else Path(where)


def _model(where: str) -> tuple[Callable[[Any], SteppedLLM], Any]:
    """Return the in-process engine if it supports the kind of model, else the reference engine."""
    if where == STAND_IN:
        return StandIn, StandInConfig()
    from stretto.engines.reference.engine import ReferenceConfig, ReferenceLLM
    from stretto.engines.transformer.config import is_supported_model
    from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM

    path = checkpoint_path(where)
    check_installed("local", f"--llm {str(path)!r}", "torch", "transformers", "tokenizers")
    if is_gguf(path):
        check_installed("local", f"--llm {str(path)!r}", "gguf")
        is_short = where in FETCHED_MODELS and has_bfloat16()
        return TransformerLLM, TransformerConfig(path, dtype="bfloat16" if is_short else "float32")
    if is_supported_model(path):
        return TransformerLLM, TransformerConfig(path)
    return ReferenceLLM, ReferenceConfig(path)


def server_replica(
    url: str, *, api: str | None = None, tokenizer: str | None = None, model: str | None = None
) -> Replica:
    """Return a replica of an LLM that is an OpenAI-compatible server, running
    already.

    Prompts in their plain form stop where a base model would begin a further question.

    Args:
        api: "chat", "completions" or "auto": the chat if the server has one. By default the API whose path
            the URL ends with, else "auto".
        model: name of the model at the server; None for the only one that it lists.
        tokenizer: a directory with the model's tokenizer, to send token ids; "none" sends text; "auto" (the
            default) sends token ids if the server names a directory that is on this machine.

    Raises:
        ConfigError: the URL or an option cannot be used, or packages are missing.
    """
    with imports_of("client", f"--llm {url!r}"):
        from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
    spoken: Any = api or read_server_url(url).api or "auto"
    stop = PLAIN_STOP if spoken == "completions" else ()
    config = OpenAIServerConfig(url, model=model, api=spoken, tokenizer=tokenizer or "auto", stop=stop)
    return Replica(OpenAIServer, config, runs_in="loop", profile=PROFILES["llm-server"])


def vectors_engine() -> Deployment:
    """Return the declaration of the engine "vectors", which keeps collections of vectors in memory.

    A collection without a name belongs to one query and is dropped when that ends.
    """
    return deploy(
        "vectors",
        MemoryVectors,
        MemoryVectorsConfig(),
        profile=PROFILES["vectors"],
        max_batch=1024,
        keeps_state=True,
    )


def local_engines(
    *,
    llm: Deployment | None = None,
    vectors: Deployment | None = None,
    embedding_model: str = MINILM,
    reranking_model: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    functions: Mapping[str, Callable[..., object]] | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> list[Deployment]:
    """Return the declarations of the engines that the ready-made RAG apps need, with one instance each.

    Args:
        llm: the engine "llm"; None takes the default model.
        vectors: the engine "vectors"; None keeps vectors in memory.
        embedding_model: a sentence-transformers name or path, or the URL of a server. Chunks are measured in
            the model's tokens; with a server, in those of all-MiniLM-L6-v2.
        reranking_model: a cross-encoder's name or path, or the URL of a server; None scores by words.
        device: device of the models that embed and rerank here, see `embedding_engine`.
        dtype: type of their weights and activations.
        functions: functions that the op `call` may call, by name; if given, there is an engine "calls" too.
        profiles: profiles by engine, in place of the built-in ones.
    """
    counted_by = MINILM if is_url(embedding_model) else embedding_model
    engines = [
        deploy("chunking", Chunking, ChunkingConfig(counted_by), profile=PROFILES["chunking"]),
        embedding_engine(embedding_model, device=device, dtype=dtype),
        vectors or vectors_engine(),
        reranking_engine(reranking_model, device=device, dtype=dtype),
        llm or llm_engine(None),
    ]
    if functions is not None:
        engines.append(deploy("calls", Calls, CallsConfig(functions)))
    given = profiles or {}
    return [
        engine.changed(profile=given[engine.name]) if engine.name in given else engine for engine in engines
    ]


def embedding_engine(model: str, *, device: str | None = None, dtype: str | None = None) -> Deployment:
    """Return the engine "embedding": a model's name or path, or the URL of a server.

    Args:
        device: device of a model that runs here: "cpu" (the default), "cuda", "cuda:1" or "auto". A single
            core, such as "cpu:3", stands for the CPU.
        dtype: type of its weights and activations; None is bfloat16 on a CPU that computes with it, else
            float32.
    """
    if is_url(model):
        return _at_server("embedding", model)
    config = EmbeddingConfig(model, dtype=dtype or "auto", device=_shared_device(device))
    profile = PROFILES["embedding" if config.dtype_on("cpu") == "bfloat16" else "embedding-float32"]
    return deploy("embedding", Embedding, config, profile=profile)


def reranking_engine(model: str | None, *, device: str | None = None, dtype: str | None = None) -> Deployment:
    """Return the engine "reranking": a cross-encoder's name or path, or the URL of a server.

    None scores by words.

    Args:
        device: device of a model that runs here, see `embedding_engine`.
        dtype: type of its weights and activations; None is float32.
    """
    if model is not None and is_url(model):
        return _at_server("reranking", model)
    config = RerankingConfig()
    if model is not None:
        config = RerankingConfig(model, device=_shared_device(device), dtype=dtype or "float32")
    return deploy("reranking", Reranking, config, profile=PROFILES["reranking"])


def _at_server(engine: str, url: str) -> Deployment:
    with imports_of("client", repr(url)):
        from stretto.engines.batch.server.config import INSTANCES_PER_SERVER, BatchServerConfig
        from stretto.engines.batch.server.embedding import EmbeddingServer
        from stretto.engines.batch.server.reranking import RerankingServer
    server: Callable[[Any], Any] = EmbeddingServer if engine == "embedding" else RerankingServer
    config, profile = BatchServerConfig(url), PROFILES[f"{engine}-server"]
    return deploy(
        engine, server, config, instances=INSTANCES_PER_SERVER, profile=profile, recover_s=RECOVER_S
    )


def search_engines(llm: Deployment, url: str | None, documents: Sequence[Document]) -> list[Deployment]:
    """Return the declarations of the engines of the ready-made app "search": "llm", "llm_small" (the same
    model) and "web".

    That app drafts an answer, judges the draft, and searches only if the draft is not good enough.

    Args:
        url: URL of a web search service; None searches in `documents`.
        documents: documents to search in instead of the web.
    """
    return [llm, llm.changed(name="llm_small"), web_engine(url, documents)]


def web_engine(url: str | None, documents: Sequence[Document]) -> Deployment:
    """Return the declaration of the engine "web": a web search service at `url`, or if that is None a search
    in `documents`.
    """
    web: Callable[[Any], Any] = CorpusSearch
    config: object = CorpusSearchConfig(tuple(documents))
    if url is not None:
        web, config = WebSearch, WebSearchConfig(url)
    return deploy("web", web, config, profile=PROFILES["web"], max_batch=8)


def tools_engine(
    tools: Sequence[Tool | Callable[..., object]],
    *,
    instances: int = 16,
    max_result_chars: int = 4000,
    records: TurnRecords | None = None,
) -> Deployment:
    """Return the declaration of the engine "tools", which runs the tools of agents, up to `instances` calls
    side by side.

    Args:
        max_result_chars: largest number of characters of a result that the LLM reads; it is told what was
            cut.
        records: memory of the turns of named runs, such as a `stretto.ToolJournal`.
    """
    config = ToolsConfig(as_tools(tools), max_result_chars, records)
    profile = PROFILES["tools"]
    # Each call has a time of its own, and the effects of a turn run one after the other.
    return deploy("tools", Tools, config, instances=instances, profile=profile, max_batch=1, timeout_s=None)


def transforms_engine() -> Deployment:
    """Return the declaration of the engine "transforms", which transforms values between steps, in a
    thread.
    """
    return deploy("transforms", Transforms, TransformsConfig(), profile=PROFILES["transforms"], max_batch=16)


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
