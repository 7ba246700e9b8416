"""Starts a real vLLM server on this machine for a benchmark, and ends it with the benchmark.

vLLM has a separate environment (`make vllm-env`), because it pins versions of packages that Stretto also
needs. The settings are for a small model on a few cores: nothing is bound to a core, 1 GiB of KV, blocks of
32 tokens.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx

from stretto.engines.openai_server.config import KVEventsConfig
from stretto.engines.server_process.kept import KeptProcess, take_port
from stretto.model.errors import ConfigError, EngineTimeout, EngineUnavailable

VARIABLE = "STRETTO_VLLM_PYTHON"
DEFAULT_PYTHON = Path(".venv-vllm/bin/python")
NOT_INSTALLED = f"vLLM is left out: not installed (`make vllm-env`, or name its Python: --vllm, ${VARIABLE})"
MODEL = "model"
MAX_RUNNING = 16

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
}
_MAX_CONTEXT_TOKENS = 2048
_FIND_S = 120.0
_GRACE_S = 15.0
_LOOK_S = 0.5
_FIND = """
import importlib.metadata as metadata
print(metadata.version(metadata.packages_distributions()["vllm"][0]))
"""


@dataclass(frozen=True, slots=True)
class VLLM:
    """An installation of vLLM: the Python interpreter of its environment, and the version."""

    python: Path
    version: str


def find_vllm(given: Path | None = None, patience_s: float = _FIND_S) -> VLLM | None:
    """Find an installation: `given`, else that of `$STRETTO_VLLM_PYTHON`, else that of `make vllm-env`.

    Returns:
        None if no installation is named and `make vllm-env` was not run.

    Raises:
        ConfigError: the named installation has no vLLM, does not exist, or does not answer in `patience_s`.
    """
    named = given or os.environ.get(VARIABLE)
    python = Path(named or DEFAULT_PYTHON)
    if named is None and not python.exists():
        return None
    code, output = _ask(python, patience_s)
    last = output.rpartition("\n")[2]
    if code or not re.fullmatch(r"\d+\.\w+(\.\w+)*([.+-]\w+)*", last):
        raise ConfigError(f"{python} is no Python with vLLM: it ended with {code}, saying {output[-200:]!r}")
    return VLLM(python, last)


def _ask(python: Path, patience_s: float) -> tuple[int, str]:
    """Run `_FIND`; returns its exit code and output. If it does not answer, all its processes are ended."""
    with tempfile.TemporaryFile() as words:  # a pipe would be kept open by a child that outlives its parent
        try:
            process = subprocess.Popen(
                [python, "-c", _FIND],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as cause:
            raise ConfigError(f"{python} is no Python with vLLM: {cause}") from cause
        try:
            code = process.wait(patience_s)
        except subprocess.TimeoutExpired as cause:
            raise ConfigError(
                f"{python} is no Python with vLLM: it did not say its version in {patience_s:g} s"
            ) from cause
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return code, _last_words(words.fileno())


@contextmanager
def serving(
    vllm: VLLM,
    checkpoint: Path,
    *,
    dtype: str,
    num_threads: int,
    say: Callable[[str], None],
    is_compiled: bool = False,
    kv_events: KVEventsConfig | None = None,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
    patience_s: float = 600,
    grace_s: float = _GRACE_S,
) -> Iterator[str]:
    """Context with the URL of a server of `checkpoint`; at its end the server is ended with all its
    processes.

    Args:
        num_threads: threads that run the model.
        say: called with a text about the progress of the start.
        is_compiled: whether the model is compiled first, which takes one more minute.
        kv_events: where it publishes what its prefix cache holds; None publishes nothing.
        options: further options of the command line.
        variables: further variables of its environment.
        patience_s: seconds allowed for the start.
        grace_s: seconds from SIGTERM to SIGKILL at the end.

    Raises:
        ConfigError: `checkpoint` is not a checkpoint.
        EngineUnavailable: the server ended before it was ready; the message has its last output.
        EngineTimeout: the server was not ready in time.
    """
    port = take_port(None)
    command = [
        *(str(vllm.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(checkpoint), "--served-model-name", MODEL, "--dtype", dtype),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(_context_tokens(checkpoint)), "--max-num-seqs", str(MAX_RUNNING)),
        *("--block-size", "32", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *(() if is_compiled else ("--enforce-eager",)),
        *(() if kv_events is None else ("--kv-events-config", _events_option(kv_events))),
        *options,
    ]
    environment = {**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": str(num_threads), **variables}
    process = KeptProcess(command, environment, grace_s=grace_s)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, say, patience_s)
        yield url
    finally:
        process.end()


def _events_option(kv_events: KVEventsConfig) -> str:
    wanted = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": kv_events.endpoint,
        "replay_endpoint": kv_events.replay_endpoint,
        "topic": kv_events.topic,
    }
    return json.dumps(wanted)


def _wait(process: KeptProcess, url: str, say: Callable[[str], None], patience_s: float) -> None:
    """Wait until the server answers."""
    start_s = time.monotonic()
    while (waited_s := time.monotonic() - start_s) < patience_s:
        if (code := process.poll()) is not None:
            raise EngineUnavailable(f"vLLM ended with {code} before it was ready: {process.last_words()}")
        say(f"vLLM is starting: {waited_s:.0f} s")
        try:
            if httpx.get(f"{url}/health", timeout=_GRACE_S).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(_LOOK_S)
    raise EngineTimeout(f"vLLM was not ready after {patience_s:.0f} s: {process.last_words()}")


def _last_words(log: int) -> str:
    end = os.fstat(log).st_size
    return os.pread(log, 2000, max(0, end - 2000)).decode(errors="replace").strip()


def _context_tokens(checkpoint: Path) -> int:
    try:
        config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{checkpoint} is no checkpoint: {cause}") from cause
    return min(_MAX_CONTEXT_TOKENS, int(config.get("max_position_embeddings", _MAX_CONTEXT_TOKENS)))
