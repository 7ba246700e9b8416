"""Options that several commands share, one by one and as groups (`commands.py`)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.names import (
    APPS,
    DTYPES,
    EMBEDDER,
    HOST,
    POLICIES,
    RECOVER_S,
    ROUTER_PORT,
    SEARCH,
    SERVICE_PORT,
)

MAX_BYTES = 50_000_000
MACHINE_HELP = (
    "Machine that is planned for: a name such as 8xA100-80G, a machine file (.yaml), 'here' for the GPUs of "
    "this machine, or 'cpu' for its cores, on which models are measured at first."
)

ADVANCED = "advanced"

App = Annotated[
    str,
    typer.Option(
        "--app",
        help=f"Name of the app: {', '.join(APPS)} or {SEARCH}; or FILE.py:NAME, as for `stretto serve`.",
        metavar="NAME",
    ),
]
Docs = Annotated[
    tuple[Path, ...],
    typer.Option(
        "--docs",
        help="Document or folder of documents (PDF, HTML, Markdown, Word, Excel, CSV, text…). Repeatable.",
        metavar="PATH",
    ),
]
Passes = Annotated[
    str,
    typer.Option(
        "--passes",
        help="Graph passes: weighed (those predicted to pay), all, none, or names joined by commas.",
        metavar="NAMES",
    ),
]
Settings = Annotated[
    tuple[str, ...],
    typer.Option(
        "--set",
        help="Setting of a component, as in '--set searching.top_k=8'. Repeatable; "
        "'stretto explain --settings' lists them.",
        metavar="C.S=VALUE",
    ),
]
MaxBytes = Annotated[
    int, typer.Option("--max-bytes", help="Do not read documents larger than this.", metavar="BYTES", min=1)
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse to run when a document, or a part of one, cannot be read, instead of skipping it.",
    ),
]
EnginesFile = Annotated[
    Path | None,
    typer.Option(
        "--engines",
        help="TOML file with engines and their replicas. Engines that it does not name run as usual.",
        metavar="FILE",
    ),
]
Llms = Annotated[
    tuple[str, ...],
    typer.Option(
        "--llm",
        help="Folder of a checkpoint, GGUF file, URL of an OpenAI-compatible server, or the name of a "
        "fetched model. Default: 'smollm2' (stretto models add smollm2). 'stand-in' copies sentences without "
        "a model. Repeatable: all of them answer, and should be the same model. A question waits "
        f"{RECOVER_S:g} s for a server that refuses; in a file with engines, recover_s says how long.",
        metavar="DIR|FILE|URL",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Device of the models that run here (LLM, embedder, reranker): cpu (the default), cuda, cuda:1 "
        "or auto; for an LLM with --runs-in process also one core, for example cpu:3.",
        metavar="NAME",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Type of weights and activations of the models that run here (LLM, embedder, reranker): "
        f"{', '.join(DTYPES)}. Default: float32; for the embedder bfloat16 on a CPU that computes with "
        "it (AVX512-BF16 or AMX-BF16). On other CPUs bfloat16 works, and is slower than float32.",
        metavar="NAME",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        help="Number of replicas of each --llm that is a folder; repeat --llm for more servers. Default: 1.",
        metavar="NUMBER",
    ),
]
RunsIn = Annotated[
    str | None,
    typer.Option(
        "--runs-in",
        help="Place of each replica of an --llm that is a folder: thread (the default) or process.",
        metavar="PLACE",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help=f"Order in which waiting requests are taken, for the LLM only: {', '.join(POLICIES)}. "
        f"Default: {POLICIES[0]}.",
        metavar="NAME",
    ),
]
Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        help="API of the server: chat, completions or auto (the default): its chat if it has one.",
        metavar="NAME",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="Folder with the server's tokenizer, to send token ids; 'none' sends text. Default: ids are "
        "sent if the server names a folder on this machine.",
        metavar="DIR",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Name of the model at the servers. Default: the only one that they list.",
        metavar="NAME",
    ),
]
Embedder = Annotated[
    str | None,
    typer.Option(
        "--embedder",
        help="Name or path of an embedding model, or URL of a server that embeds (OpenAI's API, or Text "
        f"Embeddings Inference). Default: {EMBEDDER}.",
        metavar="NAME|PATH|URL",
    ),
]
Reranker = Annotated[
    str | None,
    typer.Option(
        "--reranker",
        help="Name or path of a cross-encoder, or URL of a server that reranks (vLLM, or Text Embeddings "
        "Inference). Default: words are compared.",
        metavar="NAME|PATH|URL",
    ),
]
SearchUrl = Annotated[
    str | None,
    typer.Option(
        "--search",
        envvar="STRETTO_SEARCH_URL",
        help=f"URL of a SearXNG-compatible service for the app {SEARCH}. Default: --docs are searched.",
        metavar="URL",
    ),
]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="STRETTO_DSN",
        help="PostgreSQL server for collections. Default: an embedded server.",
        metavar="DSN",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random choices.", metavar="NUMBER")]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="Most seconds of the search. Then, or on Ctrl-C, the best that was found so far is shown.",
        metavar="SECONDS",
        min=0.1,
    ),
]
Otel = Annotated[
    str | None,
    typer.Option(
        "--otel",
        help="Send spans of programs, requests and attempts to the OpenTelemetry collector at this address, "
        "by OTLP over HTTP.",
        metavar="URL",
    ),
]
TlsCertificate = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate",
        help="Answer in TLS with the certificate in this PEM file, which is read anew when it changes.",
        metavar="FILE",
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option("--tls-key", help="PEM file with the private key of this certificate.", metavar="FILE"),
]
WorkerCa = Annotated[
    str | None,
    typer.Option(
        "--worker-ca",
        help="PEM file with the authorities that may have signed the certificates of workers at https://…; "
        "without it, those that the system trusts.",
        metavar="FILE",
    ),
]
WorkerCertificate = Annotated[
    str | None,
    typer.Option(
        "--worker-certificate", help="PEM file with a certificate that workers are shown.", metavar="FILE"
    ),
]
WorkerKey = Annotated[
    str | None,
    typer.Option("--worker-key", help="PEM file with the private key of this certificate.", metavar="FILE"),
]
Announce = Annotated[
    str | None,
    typer.Option(
        "--announce",
        help="Address at which other routers before the same workers are told what this one sends there, "
        "such as tcp://0.0.0.0:7400.",
        metavar="ADDRESS",
    ),
]
Peer = Annotated[
    tuple[str, ...],
    typer.Option("--peer", help="Address at which such a router announces. Repeatable.", metavar="ADDRESS"),
]
Host = Annotated[
    str | None,
    typer.Option("--host", help=f"Address to listen at. Default: {HOST}.", metavar="ADDRESS"),
]
ServicePort = Annotated[
    int | None,
    typer.Option(
        "--port", help=f"Port to listen at; 0 takes a free one. Default: {SERVICE_PORT}.", metavar="NUMBER"
    ),
]
RouterPort = Annotated[
    int | None,
    typer.Option(
        "--port", help=f"Port to listen at; 0 takes a free one. Default: {ROUTER_PORT}.", metavar="NUMBER"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The options that say which models run where; None where an option was not given."""

    file: EnginesFile = None
    llms: Llms = ()
    api: Api = None
    tokenizer: Tokenizer = None
    model: Model = None
    device: Device = None
    dtype: Dtype = None
    embedder: Embedder = None
    reranker: Reranker = None

    def with_one_replica(self) -> EngineOptions:
        """Return the options of a command that runs one replica of each of these models."""
        return EngineOptions(**{one.name: getattr(self, one.name) for one in fields(ModelOptions)})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(ModelOptions):
    """The options that say which engines a command runs."""

    replicas: Replicas = None
    runs_in: RunsIn = None
    policy: Policy = None
    search: SearchUrl = None

    @property
    def has_small_llm(self) -> bool:
        """Whether ready-made apps need the settings for a small LLM (`engines/llm_size.py`).

        Raises:
            ConfigError: the engines file cannot be read.
        """
        from stretto.engines.llm_size import has_small_llm
        from stretto.schema.reading import read_tables

        rows = () if self.file is None else read_tables(self.file).rows("engine")
        return has_small_llm([row.values.get("name", "") for row in rows], self.llms)
