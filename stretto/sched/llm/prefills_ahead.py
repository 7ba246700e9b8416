"""A record of where the prefills of one LLM engine run, or have run, so that later requests can be sent
there.

A request does not wait for the prefill of its beginning. When it gets its instance, this record tells which
instance is computing that beginning by then, or has computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.model.profile import Profile
from stretto.model.record import record
from stretto.sched.queries.request import StepRequest


@record
class Hint:
    """A hint where to send a request: the LLM instance whose cache holds, or will soon hold, the first
    `num_tokens` tokens of the request's prompt.

    `instance` is None if there is none; `is_running` is whether the tokens are still being computed.
    """

    instance: int | None
    num_tokens: int
    is_running: bool = False


@dataclass(slots=True)
class _Prefill:
    instance: int
    num_tokens: int
    is_running: bool = True


class PrefillsAhead:
    """A record of which instance of an LLM engine has prefilled, or is prefilling, the beginnings of prompts
    before the requests that need them, so that these requests can be sent there.

    Prefills are known by query and node, until the query ends.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._prefills: dict[str, dict[int, _Prefill]] = {}

    def start(self, request: StepRequest, instance: int, num_tokens: int) -> None:
        """Record that the prefill in `request`, of `num_tokens` tokens, was sent to `instance`."""
        self._prefills.setdefault(request.query, {})[request.node.id] = _Prefill(instance, num_tokens)

    def end(self, query: str, node: int) -> None:
        """Mark the recorded prefill of a node as complete; nothing happens if none is recorded."""
        if (prefill := self._prefills.get(query, {}).get(node)) is not None:
            prefill.is_running = False

    def stop(self, query: str, node: int, started_s: float | None, now_s: float) -> None:
        """Mark the recorded prefill of a node as cancelled, and estimate how many of its tokens were
        computed.

        The estimate is the time since `started_s` multiplied by the speed in the engine's profile.
        """
        prefill = self._prefills.get(query, {}).get(node)
        if prefill is None:
            return
        prefill.is_running = False
        elapsed_s = 0.0 if started_s is None else now_s - started_s
        if elapsed_s < self._profile.batch_s(prefill.num_tokens):
            token_s = self._profile.per_unit_s
            prefill.num_tokens = min(prefill.num_tokens, int(elapsed_s / token_s)) if token_s else 0

    def lose(self, instance: int) -> None:
        """Forget all recorded prefills of an instance that has died, because its cache is lost."""
        for prefills in self._prefills.values():
            for node in [node for node, prefill in prefills.items() if prefill.instance == instance]:
                del prefills[node]

    def forget(self, query: str) -> None:
        """Forget all recorded prefills of a query that has ended."""
        self._prefills.pop(query, None)

    def hint_of(self, request: StepRequest) -> Hint:
        """Return which instance's cache holds, or is being filled with, the longest known beginning of a
        request's prompts.
        """
        if request.hint is None and request.hint_nodes:
            prefills = self._prefills.get(request.query, {})
            for node in request.hint_nodes:
                if (prefill := prefills.get(node)) is not None and prefill.num_tokens:
                    return Hint(prefill.instance, prefill.num_tokens, prefill.is_running)
        return Hint(request.hint, request.num_held_tokens)
