"""The instances of an index of prefixes with the requests that were sent there, and what a look-up finds."""

from __future__ import annotations

import math
from collections.abc import Callable

from stretto.cluster.held_blocks import LoadingShares
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.prefix_tree import PrefixTree
from stretto.model.record import record


class HeldTokens:
    """The numbers of tokens of one prompt that the instances hold.

    Attributes:
        tokens: the number for the instances that hold most, about 16 of them for each space.
        is_complete: whether all others hold nothing.
    """

    __slots__ = ("_of_others", "is_complete", "tokens")

    def __init__(
        self, tokens: dict[InstanceId, int], of_others: Callable[[InstanceView], int] | None = None
    ) -> None:
        self.tokens = tokens
        self._of_others = of_others
        self.is_complete = of_others is None

    def of(self, view: InstanceView) -> int:
        """Return how many tokens of the prompt an instance holds."""
        found = self.tokens.get(view.id)
        if found is None:
            return 0 if self._of_others is None else self._of_others(view)
        return found


@record
class SentRequest:
    """A request that runs or waits at an instance: the key of its prompt, the number of its blocks and of
    those that it was expected to find there, when these were last used before, and when it came.
    """

    request: PlacementRequest
    key: PromptKey
    num_blocks: int
    num_held: int
    used_s: float
    at_s: float


class IndexMember:
    """An instance that has joined.

    Attributes:
        tree: tree of the prefixes of its space; None without a space.
        followed: tree that has what it would hold if it evicted what was used least recently; only while it
            reports its cache. It stays empty if the size of the cache is unknown.
        cache_tokens: tokens that its prefix cache can hold.
        loading: what it costs there to load KV from host memory and from disk.
        sent: requests that run or wait there, by the id of the object.
        num_running: number of blocks of these requests' prompts.
        reports: whether it reports its cache.
    """

    __slots__ = (
        "cache_tokens",
        "followed",
        "id",
        "loading",
        "num_running",
        "reports",
        "sent",
        "space",
        "tree",
    )

    def __init__(
        self,
        instance: InstanceId,
        space: str,
        tree: PrefixTree | None,
        cache_tokens: float,
        loading: LoadingShares,
    ) -> None:
        self.id = instance
        self.space = space
        self.tree = tree
        self.followed: PrefixTree | None = None
        self.cache_tokens = cache_tokens
        self.loading = loading
        self.sent: dict[int, SentRequest] = {}
        self.num_running = 0
        self.reports = False

    def take(self, request: PlacementRequest) -> SentRequest | None:
        """Take a request out of those that run or wait here; None if it is none of them."""
        if (sent := self.sent.pop(id(request), None)) is not None:
            self.num_running -= sent.num_blocks
            self.keep_running()
        return sent

    def keep_running(self) -> None:
        """Where it reports its cache, believe of the requests sent here only those that run: its reports tell
        the rest.
        """
        if self.reports and self.tree is not None:
            self.tree.limit(self.id, self.num_running)

    def is_settled(self, sent: SentRequest) -> bool:
        """Return whether no request that runs may have used a request's prefix since it was used before."""
        oldest_s = min((one.at_s for one in self.sent.values()), default=math.inf)
        return sent.used_s < min(oldest_s, sent.at_s)
