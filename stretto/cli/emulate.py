"""`stretto emulate`: servers that behave like LLM servers on GPUs, in real time, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.verbosity import say
from stretto.model.errors import UserError
from stretto.model.extras import imports_of

if TYPE_CHECKING:
    from stretto.emulate.wanted import WantedFleet


_BESIDE_FLEET = ("fleet", "host", "port", "processes", "speed", "output_lengths", "faults")
"""Options that go with a fleet's file."""
_OF_EACH_SERVER = (
    *("model", "kv_events", "memory_share", "served_name", "max_sequences", "max_batch_tokens"),
    *("block_tokens", "max_context_tokens", "loading_s", "tokenizer", "replies"),
)
"""Options that are fields of `WantedServer` too."""


class Dialect(StrEnum):
    """Server software whose paths and answers are spoken."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Scheduling(StrEnum):
    """Order in which waiting requests are served."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateOptions:
    """The options of `stretto emulate`."""

    model: Annotated[
        str | None, typer.Option("--model", help="Model whose times are emulated.", metavar="NAME|DIR")
    ] = None
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="Device whose times are emulated, or a file like its preset.",
            metavar="NAME|FILE.json",
        ),
    ] = "A100-80G"
    replicas: Annotated[
        int, typer.Option("--replicas", help="Number of servers.", min=1, max=1024, metavar="NUMBER")
    ] = 1
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel",
            "--tensor-parallel-size",
            help="Devices of each server.",
            min=1,
            metavar="NUMBER",
        ),
    ] = 1
    fleet: Annotated[
        Path | None,
        typer.Option(
            "--fleet",
            help="File that describes a machine and its servers, instead of --model.",
            metavar="FILE",
        ),
    ] = None
    host: Annotated[str, typer.Option("--host", help="Address to listen at.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        typer.Option(
            "--port", help="Port of the first server; the others follow.", min=0, max=65535, metavar="NUMBER"
        ),
    ] = 8001
    processes: Annotated[bool, typer.Option("--processes", help="Give each server a process of its own.")] = (
        False
    )
    speed: Annotated[
        float,
        typer.Option(
            "--speed",
            help="Emulated seconds per real second; 0.1 gives a slow machine more time.",
            metavar="NUMBER",
        ),
    ] = 1.0
    loading_s: Annotated[
        float | None,
        typer.Option(
            "--loading-s", help="Seconds before a server answers. Default: as predicted.", metavar="SECONDS"
        ),
    ] = None
    output_lengths: Annotated[
        Path | None,
        typer.Option(
            "--output-lengths",
            help="File with counted lengths of answers, drawn where a request leaves that to the model. "
            "Default: as long as max_tokens allows.",
            metavar="FILE",
        ),
    ] = None
    faults: Annotated[
        tuple[str, ...],
        typer.Option(
            "--fault",
            help="Fault of one server, for example replica=0,kind=slow,factor=5,after_s=10. Repeatable.",
            metavar="FAULT",
        ),
    ] = ()
    dialect: Annotated[
        Dialect, typer.Option("--dialect", help="Whose paths and answers the servers have.")
    ] = Dialect.VLLM
    kv_events: Annotated[
        str | None,
        typer.Option(
            "--kv-events",
            help="ZeroMQ address of the KV events; {port} stands for each server's port.",
            metavar="ADDRESS",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="Folder with the model's tokenizer. Default: a token is four characters.",
            metavar="DIR",
        ),
    ] = None
    replies: Annotated[
        Path | None,
        typer.Option(
            "--replies",
            help="File with prescribed replies, calls of tools among them. Default: made-up texts.",
            metavar="FILE",
        ),
    ] = None
    served_name: Annotated[
        str | None, typer.Option("--served-model-name", help="Name of the model in requests.", metavar="NAME")
    ] = None
    max_sequences: Annotated[
        int,
        typer.Option(
            "--max-num-seqs", help="Largest number of sequences that run at once.", metavar="NUMBER"
        ),
    ] = 256
    max_batch_tokens: Annotated[
        int,
        typer.Option(
            "--max-num-batched-tokens", help="Largest number of tokens of a step.", metavar="NUMBER"
        ),
    ] = 2048
    block_tokens: Annotated[
        int, typer.Option("--block-size", help="Tokens of a KV block.", metavar="NUMBER")
    ] = 16
    max_context_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            help="Longest prompt and answer together. Default: the model's.",
            metavar="TOKENS",
        ),
    ] = None
    memory_share: Annotated[
        float,
        typer.Option(
            "--gpu-memory-utilization", help="Share of the devices' memory that is used.", metavar="SHARE"
        ),
    ] = 0.9
    scheduling: Annotated[
        Scheduling, typer.Option("--scheduling-policy", help="Order in which requests are served.")
    ] = Scheduling.FCFS


def emulate(context: typer.Context, given: EmulateOptions) -> None:
    """Run servers that behave like LLM servers on GPUs, in real time and over HTTP, without a GPU."""
    from stretto.emulate.answer_lengths import read_answer_tokens
    from stretto.emulate.fleet import check_fleet
    from stretto.emulate.llm_plan import load_tokens
    from stretto.emulate.ports import check_ports
    from stretto.emulate.real_time import check_real_time
    from stretto.emulate.tokens import FOUR_CHARACTERS
    from stretto.engines.processor import num_cores

    if (given.model is None) == (given.fleet is None):
        raise UserError("give either --model or --fleet")
    if given.fleet is not None:
        _check_beside_fleet(context)
    planned = check_fleet(_wanted(given))
    load = check_real_time(planned, min(len(planned.servers), num_cores()) if given.processes else 1)
    answer_tokens = read_answer_tokens(
        given.output_lengths, load_tokens(given.tokenizer) if given.tokenizer else FOUR_CHARACTERS
    )
    check_ports((server.host, server.port) for server in planned.servers)
    with imports_of("emulate", "emulated servers"):
        from stretto.emulate.processes import run_processes
        from stretto.emulate.serve import run_servers
    say(
        f"predicted for this machine: {load.whole:.2f} cores at full load if no answer is streamed; "
        f"at most {load.num_streams} streams at once"
    )
    if given.processes:
        run_processes(planned, answer_tokens, say)
    else:
        run_servers(planned, answer_tokens, say)


def _check_beside_fleet(context: typer.Context) -> None:
    """Check that no option is given whose value the file of a fleet has. Raises UserError if one is."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _BESIDE_FLEET and source is not None and source.name == "COMMANDLINE":
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise UserError(f"{option} is for --model; the file of --fleet says it of each server")


def _wanted(given: EmulateOptions) -> WantedFleet:
    """Return the servers that the file of a fleet describes, or equal ones, each on devices of its own."""
    from stretto.emulate.faults import parse_fault
    from stretto.emulate.fleet import read_fleet
    from stretto.emulate.wanted import WantedFleet, WantedServer

    faults = tuple(map(parse_fault, given.faults))
    if given.fleet is not None:
        machine, servers = read_fleet(given.fleet)
        devices, links = machine.devices, machine.links
    else:
        assert given.model is not None
        same: dict[str, Any] = {name: getattr(given, name) for name in _OF_EACH_SERVER}
        same |= {"dialect": given.dialect.value, "scheduling": given.scheduling.value}
        num_devices, width = given.replicas * given.tensor_parallel, given.tensor_parallel
        devices, links = (given.device,) * num_devices, None
        servers = tuple(
            WantedServer(**same, devices=tuple(range(first, first + width)))
            for first in range(0, num_devices, width)
        )
    return WantedFleet(devices, servers, links, given.host, given.port, given.speed, faults)
