"""A fleet of emulated servers as it is wanted, by a file or by options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stretto.emulate.faults import ServerFault

Kind: TypeAlias = Literal["llm", "embedding", "reranking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedServer:
    """One server of a fleet, as a file or options describe it. Defaults of an LLM are vLLM's for an A100.

    Attributes:
        devices: numbers of its devices; an LLM on several uses tensor parallelism.
        model: name of a model with known costs, or directory with its `config.json`; for embedding and
            reranking only its name in requests.
        port: port that it listens on; None for the one after the server before.
        dialect: server software whose paths and answers it has.
        kv_events: ZeroMQ address where an LLM publishes KV events. "{port}" stands for the server's port. If
            it begins with "ipc:", missed ones are sent again at the same address with "-replay" behind it.
        asleep: whether it sleeps at first, and holds no memory.
        memory_gib: memory that an embedding or reranking server takes.
        memory_share: share of its devices' memory that an LLM takes.
        served_name: name of the model in requests; None for `model`.
        max_context_tokens: longest prompt and answer together; None for the model's own.
        scheduling: "fcfs", first come first served, or "priority".
        loading_s: seconds before the server answers; None for the predicted ones.
        tokenizer: directory with the model's tokenizer; None for tokens of four characters.
        replies: file of prescribed replies (`scripted_replies.py`); None for made-up texts alone.
    """

    devices: tuple[int, ...]
    kind: Kind = "llm"
    model: str = ""
    port: int | None = None
    dialect: Literal["vllm", "sglang"] = "vllm"
    kv_events: str | None = None
    asleep: bool = False
    memory_gib: float = 2.0
    memory_share: float = 0.9
    served_name: str | None = None
    max_sequences: int = 256
    max_batch_tokens: int = 2048
    block_tokens: int = 16
    max_context_tokens: int | None = None
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    caches_prefixes: bool = True
    loading_s: float | None = None
    tokenizer: str | None = None
    replies: Path | None = None


@dataclass(frozen=True, slots=True)
class WantedFleet:
    """A fleet on a machine.

    Attributes:
        devices: kind of each device of the machine.
        links: groups of devices that are joined by NVLink; None if all are.
        port: port of the first server that names none.
        faults: faults of servers, by their numbers.
    """

    devices: tuple[str, ...]
    servers: tuple[WantedServer, ...]
    links: tuple[tuple[int, ...], ...] | None = None
    host: str = "127.0.0.1"
    port: int = 8001
    speed: float = 1.0
    faults: tuple[tuple[int, ServerFault], ...] = ()
