"""`stretto emulate`: servers that behave like LLM servers on GPUs, in real time, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.terminal import say
from stretto.model.errors import UserError
from stretto.model.extras import imports_of

if TYPE_CHECKING:
    from stretto.emulate.wanted import WantedFleet, WantedServer


_BESIDE_FLEET = ("fleet", "host", "port", "processes", "speed", "output_lengths", "faults")
"""Options that go with a fleet's file."""


class Dialect(StrEnum):
    """Server software whose paths and answers are spoken."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Scheduling(StrEnum):
    """Order in which waiting requests are served."""

    FCFS = "fcfs"
    PRIORITY = "priority"


def emulate(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option("--model", help="Model whose times are emulated.", metavar="NAME|DIR")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="Device whose times are emulated, or a file like its preset.",
            metavar="NAME|FILE.json",
        ),
    ] = "A100-80G",
    replicas: Annotated[int, typer.Option("--replicas", help="Number of servers.", min=1, max=1024)] = 1,
    tensor_parallel: Annotated[
        int,
        typer.Option("--tensor-parallel", "--tensor-parallel-size", help="Devices of each server.", min=1),
    ] = 1,
    fleet: Annotated[
        Path | None,
        typer.Option(
            "--fleet",
            help="File that describes a machine and its servers, instead of --model.",
            metavar="FILE",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port of the first server; the others follow.", min=0, max=65535)
    ] = 8001,
    processes: Annotated[
        bool, typer.Option("--processes", help="Give each server a process of its own.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option("--speed", help="Emulated seconds per real second; 0.1 gives a slow machine more time."),
    ] = 1.0,
    loading_s: Annotated[
        float | None,
        typer.Option(
            "--loading-s", help="Seconds before a server answers. Default: as predicted.", metavar="SECONDS"
        ),
    ] = None,
    output_lengths: Annotated[
        Path | None,
        typer.Option(
            "--output-lengths",
            help="File with counted lengths of answers, drawn where a request leaves that to the model. "
            "Default: as long as max_tokens allows.",
            metavar="FILE",
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            help="Fault of one server, for example replica=0,kind=slow,factor=5,after_s=10. Repeatable.",
            metavar="FAULT",
        ),
    ] = None,
    dialect: Annotated[
        Dialect, typer.Option("--dialect", help="Whose paths and answers the servers have.")
    ] = Dialect.VLLM,
    kv_events: Annotated[
        str | None,
        typer.Option(
            "--kv-events",
            help="ZeroMQ address of the KV events; {port} stands for each server's port.",
            metavar="ADDRESS",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="Directory with the model's tokenizer. Default: a token is four characters.",
            metavar="DIR",
        ),
    ] = None,
    replies: Annotated[
        Path | None,
        typer.Option(
            "--replies",
            help="File with prescribed replies, calls of tools among them. Default: made-up texts.",
            metavar="FILE",
        ),
    ] = None,
    served_name: Annotated[
        str | None, typer.Option("--served-model-name", help="Name of the model in requests.", metavar="NAME")
    ] = None,
    max_sequences: Annotated[
        int, typer.Option("--max-num-seqs", help="Largest number of sequences that run at once.")
    ] = 256,
    max_batch_tokens: Annotated[
        int, typer.Option("--max-num-batched-tokens", help="Largest number of tokens of a step.")
    ] = 2048,
    block_tokens: Annotated[int, typer.Option("--block-size", help="Tokens of a KV block.")] = 16,
    max_context_tokens: Annotated[
        int | None,
        typer.Option("--max-model-len", help="Longest prompt and answer together. Default: the model's."),
    ] = None,
    memory_share: Annotated[
        float, typer.Option("--gpu-memory-utilization", help="Share of the devices' memory that is used.")
    ] = 0.9,
    scheduling: Annotated[
        Scheduling, typer.Option("--scheduling-policy", help="Order in which requests are served.")
    ] = Scheduling.FCFS,
) -> None:
    """Run servers that behave like LLM servers on GPUs, in real time and over HTTP, without a GPU."""
    from stretto.emulate.answer_lengths import read_answer_tokens
    from stretto.emulate.faults import parse_fault
    from stretto.emulate.fleet import check_fleet
    from stretto.emulate.fleet_file import read_fleet
    from stretto.emulate.llm_plan import load_tokens
    from stretto.emulate.ports import check_ports
    from stretto.emulate.real_time import check_real_time
    from stretto.emulate.tokens import FOUR_CHARACTERS
    from stretto.emulate.wanted import WantedFleet, WantedServer
    from stretto.engines.processor import num_cores

    if (model is None) == (fleet is None):
        raise UserError("give either --model or --fleet")
    if fleet is not None:
        _check_beside_fleet(context)
    given = tuple(parse_fault(option) for option in faults or ())
    if fleet is not None:
        machine, servers = read_fleet(fleet)
        wanted = WantedFleet(machine.devices, servers, machine.links, host, port, speed, given)
    else:
        assert model is not None
        num_devices = replicas * tensor_parallel
        one = WantedServer(
            devices=(),
            model=model,
            dialect=dialect.value,
            kv_events=kv_events,
            memory_share=memory_share,
            served_name=served_name,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            block_tokens=block_tokens,
            max_context_tokens=max_context_tokens,
            scheduling=scheduling.value,
            loading_s=loading_s,
            tokenizer=tokenizer,
            replies=replies,
        )
        wanted = _equal_servers(one, device, num_devices, tensor_parallel, host, port, speed)
        wanted = replace(wanted, faults=given)
    planned = check_fleet(wanted)
    load = check_real_time(planned, min(len(planned.servers), num_cores()) if processes else 1)
    answer_tokens = read_answer_tokens(
        output_lengths, load_tokens(tokenizer) if tokenizer else FOUR_CHARACTERS
    )
    check_ports((server.host, server.port) for server in planned.servers)
    with imports_of("emulate", "emulated servers"):
        from stretto.emulate.processes import run_processes
        from stretto.emulate.serve import run_servers
    say(f"predicted: {load.whole:.1f} cores at full load without streams; {load.num_streams} streams at once")
    if processes:
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


def _equal_servers(
    one: WantedServer,
    device: str,
    num_devices: int,
    tensor_parallel: int,
    host: str,
    port: int,
    speed: float,
) -> WantedFleet:
    """Return a fleet of equal servers, each on devices of its own."""
    from stretto.emulate.wanted import WantedFleet

    groups = [
        tuple(range(first, first + tensor_parallel)) for first in range(0, num_devices, tensor_parallel)
    ]
    servers = tuple(replace(one, devices=group) for group in groups)
    return WantedFleet((device,) * num_devices, servers, None, host, port, speed)
