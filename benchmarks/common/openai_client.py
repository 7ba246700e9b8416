"""The `openai` client, as programs by hand use it."""

from __future__ import annotations

from typing import Any

from stretto.model.errors import ConfigError


def openai_client(url: str, timeout_s: float) -> Any:
    """Return an `openai.AsyncOpenAI` for a server, a context manager that keeps its connections and tries
    nothing again.

    Raises:
        ConfigError: the package `openai` is not installed.
    """
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            f"the program by hand needs the package {error.name}: pip install -e '.[bench]'"
        ) from error
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=timeout_s)
