"""A fleet of emulated servers as it is wanted, by a file or by options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stretto.emulate.faults import ServerFault

Kind: TypeAlias = Literal["llm", "embedding", "reranking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedServer:
    """One server of a fleet, as a file or options describe it.

    Attributes:
        devices: numbers of its devices; an LLM on several uses tensor parallelism.
        model: name of the model; for embedding and reranking only its name in requests.
        port: port that it listens on; None for the one after the server before.
        dialect: server software whose paths and answers it has.
        kv_events: ZeroMQ address where an LLM publishes KV events. "{port}" stands for the server's port. If
            it begins with "ipc:", missed ones are sent again at the same address with "-replay" behind it.
        asleep: whether it sleeps at first, and holds no memory.
        memory_gib: memory that an embedding or reranking server takes.
        memory_share: share of its devices' memory that an LLM takes.
        served_name, max_sequences, max_batch_tokens, block_tokens, max_context_tokens, scheduling,
            caches_prefixes, loading_s, tokenizer, replies: as in `LLMPlan`.
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
