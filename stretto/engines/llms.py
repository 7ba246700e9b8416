"""Declarations of LLMs: servers, models on this machine, small ones too, and the stand-in without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.engines.batch.embedding import (
    DTYPES,
)
from stretto.engines.chat_markup import PLAIN_STOP
from stretto.engines.contract import SteppedLLM
from stretto.engines.executables import PROFILES
from stretto.engines.gguf_file import is_gguf
from stretto.engines.models.store import FETCHED_MODELS, check_here
from stretto.engines.processor import has_bfloat16
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.model.deployment import Deployment
from stretto.model.devices import parse_device
from stretto.model.errors import ConfigError
from stretto.model.extras import check_installed, imports_of
from stretto.model.replica import Engine, Replica, RunsIn
from stretto.wire.server_url import read_server_url

STAND_IN = "stand-in"
DEFAULT_LLM = "smollm2"
"""Name of the LLM that is used if none is named; `stretto models add` fetches it."""
BY_PREFIXES = "stretto"
"""Placement of the usual LLM: what programs share stays at one replica, whether servers report it or not."""
FOR_SERVERS = "--api, --tokenizer and --model are for an --llm that is a URL"
"""Message of the error for options of a server where there is none."""
RECOVER_S = 2.0
"""Seconds that a question waits for a server that refuses connections. Short, because a person waits."""


def llm_engine(
    where: str | Sequence[str] | None,
    *,
    instances: int = 1,
    api: str | None = None,
    tokenizer: str | None = None,
    model: str | None = None,
) -> Deployment:
    """Return the declaration of the engine "llm": servers, or a model on this machine.

    A second LLM of a runtime needs a name of its own: `llm_engine(…).changed(name="other")`.

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
        raise ConfigError(f"--llm {where!r} is neither a URL, nor a folder with a checkpoint or a GGUF file")
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


def shared_device(device: str | None) -> str:
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
    """Return the engine of a model on this machine, and its configuration.

    Raises:
        ConfigError: packages are missing.
    """
    if where == STAND_IN:
        return StandIn, StandInConfig()
    from stretto.engines.transformer.engine import TransformerLLM
    from stretto.engines.transformer.engine_config import TransformerConfig

    path = checkpoint_path(where)
    check_installed("local", f"--llm {str(path)!r}", "torch", "transformers", "tokenizers")
    if is_gguf(path):
        check_installed("local", f"--llm {str(path)!r}", "gguf")
        is_short = where in FETCHED_MODELS and has_bfloat16()
        return TransformerLLM, TransformerConfig(path, dtype="bfloat16" if is_short else "float32")
    return TransformerLLM, TransformerConfig(path)


def server_replica(
    url: str, *, api: str | None = None, tokenizer: str | None = None, model: str | None = None
) -> Replica:
    """Return a replica of an LLM that is an OpenAI-compatible server, running already.

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
