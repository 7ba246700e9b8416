"""The rules by which a replica's prefix caches turn prompts into blocks, from its executable."""

from __future__ import annotations

from stretto.cluster.prompt_keys import PromptSpace
from stretto.model.replica import Replica


def prompt_space(engine: str, replica: Replica) -> PromptSpace | None:
    """Return the rule by which the instances of a replica turn a prompt into hashes of
    the KV blocks they cache.

    The hashes are those with which they report what they have cached; None if they report nothing. The
    executable's own `prompt_space` makes the rule for the replica's configuration.

    Raises:
        ConfigError: the tokenizer cannot be used.
    """
    says = getattr(replica.executable, "prompt_space", None)
    space: PromptSpace | None = None if says is None else says(replica.instance_config())
    return space
