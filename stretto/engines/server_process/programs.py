"""The table of servers that we can start: how each takes its model, port, devices and limits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.model.errors import ConfigError

if TYPE_CHECKING:
    from stretto.engines.server_process.config import ServerProcessConfig


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A kind of LLM server that we can start, such as vLLM. It must answer GET /health when it is ready.

    Attributes:
        command: command that starts it where it is installed.
        arguments: function that returns the command's arguments for a configuration and a port.
    """

    command: tuple[str, ...]
    arguments: Callable[[ServerProcessConfig, int], list[str]]


def command_line(config: ServerProcessConfig, port: int) -> list[str]:
    """Return the whole command line that starts an LLM server (program, model, port, devices and limits).

    Raises:
        ConfigError: `config.program` is not the name of a server that we know how to start.
    """
    if config.program not in PROGRAMS:
        raise ConfigError(f"there is no server program {config.program!r}; there are {', '.join(PROGRAMS)}")
    program = PROGRAMS[config.program]
    return [*(config.command or program.command), *program.arguments(config, port), *config.arguments]


def _vllm(config: ServerProcessConfig, port: int) -> list[str]:
    return [
        *("serve", config.model, "--host", config.address, "--port", str(port)),
        *("--tensor-parallel-size", str(config.tp)),
        *_optional("--max-num-seqs", config.num_slots),
        *_optional("--gpu-memory-utilization", config.memory_share),
    ]


def _sglang(config: ServerProcessConfig, port: int) -> list[str]:
    return [
        *("--model-path", config.model, "--host", config.address, "--port", str(port)),
        *("--tensor-parallel-size", str(config.tp)),
        *_optional("--max-running-requests", config.num_slots),
        *_optional("--mem-fraction-static", config.memory_share),
    ]


def _llama_cpp(config: ServerProcessConfig, port: int) -> list[str]:
    return [
        *("--model", config.model, "--host", config.address, "--port", str(port)),
        *(("--split-mode", "row") if config.tp > 1 else ()),
        *_optional("--parallel", config.num_slots),
        *_optional("--threads", config.threads),
    ]


def _emulated(config: ServerProcessConfig, port: int) -> list[str]:
    return [
        *("emulate", "--model", config.model, "--host", config.address, "--port", str(port)),
        *("--tensor-parallel-size", str(config.tp)),
        *_optional("--max-num-seqs", config.num_slots),
        *_optional("--gpu-memory-utilization", config.memory_share),
    ]


def _optional(name: str, value: float | None) -> list[str]:
    return [] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]


PROGRAMS: Mapping[str, ServerProgram] = {
    "vllm": ServerProgram(("vllm",), _vllm),
    "sglang": ServerProgram(("python3", "-m", "sglang.launch_server"), _sglang),
    "llama.cpp": ServerProgram(("llama-server",), _llama_cpp),
    "emulated": ServerProgram((sys.executable, "-m", "stretto.cli.main"), _emulated),
}
