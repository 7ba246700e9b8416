"""How much offline work an LLM instance may do beside other requests.

A step of a few decodes takes nearly the time of reading the weights. Offline work may share it, as far as
it makes the step longer by a small part only: contexts take time of the memory, prefills take time of
the processors. A step of offline work alone has a limit too, because a request that arrives meanwhile has
to wait for its end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OfflineLimits:
    """The most offline work in one step of an LLM instance.

    Attributes:
        context_tokens: tokens of offline sequences that decode in a step with other work. The sequence
            that exceeds it is the last one.
        prefill_tokens: tokens of offline prompts in a step with other work.
        alone_context_tokens, alone_prefill_tokens: the same for a step without other work.
    """

    context_tokens: int = 2048
    prefill_tokens: int = 32
    alone_context_tokens: int = 1 << 20
    alone_prefill_tokens: int = 512
