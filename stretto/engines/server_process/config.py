"""The configuration of a server process: which server is started, with which model, and its API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.engines.openai_server.config import NO_LIMIT
from stretto.model.devices import cores_of
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.wire.paths import ApiChoice


@dataclass(frozen=True, slots=True)
class ServerProcessConfig:
    """The configuration of an LLM server that Stretto starts as a process of its own.

    Attributes:
        program: name of the server, a key of `PROGRAMS`.
        model: path or name of the model, as the server takes it.
        command: how the program is called here, in place of its usual name, as in
            ("/opt/vllm/bin/python", "-m", "vllm.entrypoints.cli.main").
        arguments: further arguments, after those that the program's row fills in.
        environment: further variables of the server's process.
        memory_share: share of each accelerator's memory that the server takes; None leaves its own choice,
            and then it takes the device whole.
        api, tokenizer, stop, timeout_s, quiet_s, max_connections, warms_prefixes, token_s: how we talk to the
            server, as in `OpenAIServerConfig`.
        grace_s: seconds from being told to end to being killed.
        address: address that the server listens on; a Ray worker fills in that of its node.
        devices, threads, tp, port, num_slots, start_timeout_s: devices, limits and time to start, which are
            set in `Replica` and copied from there.
    """

    program: str
    model: str
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_share: float | None = None
    api: ApiChoice = "auto"
    tokenizer: str = "auto"
    stop: tuple[str, ...] = ()
    timeout_s: float = 60.0
    quiet_s: float | None = None
    max_connections: int = NO_LIMIT
    warms_prefixes: bool = True
    token_s: float | None = None
    grace_s: float = 15.0
    address: str = "127.0.0.1"
    devices: tuple[str, ...] = ()
    threads: int | None = None
    tp: int = 1
    port: int | None = None
    num_slots: int | None = None
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(f"server {self.program!r}: model is empty; name a path or a model")
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"server {self.program!r}: memory_share is {self.memory_share}; it must be above 0, at most 1"
            )

    @property
    def output_key(self) -> tuple[str, ...]:
        """Key that is equal for servers with equal answers, up to rounding: model and arguments.

        The arguments may choose a dtype. An interrupted task may go on at a server with an equal key.
        """
        return "served", self.model, *self.arguments

    def at(self, replica: Replica) -> ServerProcessConfig:
        """Return a copy of the configuration with the devices, threads, port and limits of `replica` (the
        declaration of a copy of the engine).
        """
        return replace(
            self,
            devices=replica.devices,
            threads=replica.threads,
            tp=replica.tp,
            port=replica.port,
            num_slots=replica.num_slots,
            start_timeout_s=replica.start_timeout_s,
        )

    def on_node(self, address: str) -> ServerProcessConfig:
        """Return the configuration for a server that a Ray worker starts on the node with this address.

        No devices are named in it, because Ray chooses them.
        """
        threads = self.threads or len(cores_of(self.devices)) or None
        return replace(self, address=address, devices=(), threads=threads)

    def device_bytes(self, kind: str, total: int) -> int:
        """Return the bytes that the server takes of a device's memory, of which the device has `total`.

        `kind` is "cuda" or "cpu"; for main memory the result is 0, because it is not known.
        """
        return 0 if kind == "cpu" else math.ceil((self.memory_share or 1.0) * total)
