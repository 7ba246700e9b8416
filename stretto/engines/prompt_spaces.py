"""The space in which a replica's instances report what their prefix caches hold."""

from __future__ import annotations

from stretto.cluster.prompt_keys import PromptSpace
from stretto.deployment import Replica


def prompt_space(engine: str, replica: Replica) -> PromptSpace | None:
    """Return what the executable says (`prompt_space`, called with its configuration); None if nothing.

    Raises:
        ConfigError: the tokenizer cannot be used.
    """
    says = getattr(replica.executable, "prompt_space", None)
    space: PromptSpace | None = None if says is None else says(replica.instance_config())
    return space
