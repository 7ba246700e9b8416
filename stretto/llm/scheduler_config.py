"""The configuration of a local scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.costs.offline import OfflineLimits
from stretto.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The configuration of one `LocalScheduler`, which forms the batches of one LLM instance.

    Attributes:
        num_blocks: number of KV blocks, each of `block_tokens` tokens.
        max_running: largest number of sequences that run at once.
        max_batch_tokens: the token budget of a step.
        policy: one of `stretto.llm.local_scheduler.STEP_POLICIES`.
        num_groups: number of priority groups by cached share of the prompt.
        level_s: width of ranks, in their unit (seconds, or e-folds of work where programs go first), within
            which sequences with more of their prompt cached may go first.
        lookahead: number of waiting sequences considered for a batch.
        with_events: record what the prefix cache holds.
        shares_partial_blocks: whether a prompt that ends or differs within a cached block reuses the tokens
            before that place; if not, only whole blocks are hits, as in vLLM.
        host_blocks: number of KV blocks in host memory, which keep the prefixes of sequences that have given
            theirs up; only simulated instances have some.
        offline: how much work offline sequences may do in a step.
    """

    num_blocks: int
    block_tokens: int = 32
    max_running: int = 16
    max_batch_tokens: int = 512
    policy: str = "chunked"
    num_groups: int = 10
    level_s: float = 1.0
    lookahead: int = 64
    with_events: bool = False
    shares_partial_blocks: bool = True
    host_blocks: int = 0
    offline: OfflineLimits = OfflineLimits()

    def check(self) -> None:
        """Check that the numbers of this configuration are positive and fit each other. Raises ConfigError if
        they do not.
        """
        for name in ("num_blocks", "block_tokens", "max_running", "num_groups", "lookahead"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if type(self.host_blocks) is not int or self.host_blocks < 0:
            raise ConfigError(f"host_blocks is {self.host_blocks!r}; it must be a whole number of at least 0")
        if type(self.max_batch_tokens) is not int or self.max_batch_tokens <= self.max_running:
            raise ConfigError(
                f"max_batch_tokens ({self.max_batch_tokens!r}) must exceed max_running "
                f"({self.max_running}), or decodes would leave prefills no room"
            )
        if not (isinstance(self.level_s, int | float) and self.level_s > 0):
            raise ConfigError(f"level_s is {self.level_s!r}; it must be positive")
